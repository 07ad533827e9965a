package plainrelay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

const (
	maxChunk       = 32 << 10 // bytes: the contract's
	heartbeatEvery = 15 * time.Second
	defaultSlots   = 4
	// collected bounds the output of a command that does not stream, in bytes.
	collected = 8 << 20
	// heldFor is how long a process that was left behind may hold a command's output after its end.
	heldFor = 200 * time.Millisecond
)

// Worker runs a "bash -c" for each command.
type Worker struct {
	Relay   string // host:port
	Token   string
	Sandbox string
	Dir     string // where commands run; empty means here
	Slots   int    // commands at once; others wait; zero means 4
	// Credentials are the client's side of TLS; nil means none.
	Credentials credentials.TransportCredentials
	// Heartbeat is how often to beat; zero means 15 s.
	Heartbeat time.Duration
	// Labels and Capabilities are what the Hello says.
	Labels       map[string]string
	Capabilities []string
}

// call is one command that waits or runs.
type call struct {
	cancel context.CancelCauseFunc
}

// link is one attachment.
type link struct {
	w      *Worker
	stream grpc.BidiStreamingClient[sandboxv1.WorkerFrame, sandboxv1.ServerFrame]
	slots  chan struct{} // one element for each command that runs
	wg     sync.WaitGroup

	send sync.Mutex // held while a frame is sent

	mu    sync.Mutex // guards the field below
	calls map[uint64]call
}

// Run attaches and serves until ctx ends or the relay ends the stream, whose error it returns; a worker that is to stay
// calls it again.
func (w *Worker) Run(ctx context.Context) error {
	creds := w.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+w.Relay, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is left to be said
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	stream, err := sandboxv1.NewSandboxWorkerClient(conn).Attach(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+w.Token))
	if err != nil {
		return err
	}
	slots := w.Slots
	if slots == 0 {
		slots = defaultSlots
	}
	l := &link{w: w, stream: stream, slots: make(chan struct{}, slots), calls: map[uint64]call{}}
	defer l.wg.Wait()
	defer end(errDetached)
	hello := &sandboxv1.Hello{
		SandboxId: w.Sandbox, Labels: w.Labels, Capabilities: w.Capabilities, Arch: "x64", CapacityMax: uint32(slots), Trust: "untrusted",
	}
	l.sendFrame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Hello{Hello: hello}})
	l.wg.Go(func() { l.beat(ctx) })
	for {
		f, err := stream.Recv() // also tells why a Send has failed: that returns io.EOF only
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch {
		case f.GetExec() != nil:
			l.start(ctx, f.GetExec())
		case f.GetAbort() != nil:
			l.mu.Lock()
			c := l.calls[f.GetAbort().GetReqId()]
			l.mu.Unlock()
			if c.cancel != nil {
				c.cancel(errAborted)
			}
		}
	}
}

var (
	errAborted  = errors.New("aborted")
	errTimeout  = errors.New("timed out")
	errTooMuch  = errors.New("too much output")
	errDetached = errors.New("the stream to the relay has ended")
)

// sendFrame sends one frame. Its error is left to Recv, which has the reason.
func (l *link) sendFrame(f *sandboxv1.WorkerFrame) {
	l.send.Lock()
	defer l.send.Unlock()
	_ = l.stream.Send(f) // see above
}

func (l *link) beat(ctx context.Context) {
	every := l.w.Heartbeat
	if every == 0 {
		every = heartbeatEvery
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			l.sendFrame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Heartbeat{Heartbeat: &sandboxv1.Heartbeat{}}})
		case <-ctx.Done():
			return
		}
	}
}

// start runs a command in a goroutine of its own.
func (l *link) start(ctx context.Context, e *sandboxv1.Exec) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	l.calls[e.GetReqId()] = call{cancel}
	l.mu.Unlock()
	l.wg.Go(func() {
		defer cancel(nil)
		defer func() {
			l.mu.Lock()
			delete(l.calls, e.GetReqId())
			l.mu.Unlock()
		}()
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
			l.run(ctx, cancel, e)
		case <-ctx.Done():
			l.end(e, -1, false)
		}
	})
}

// run runs a command and tells its end.
func (l *link) run(ctx context.Context, cancel context.CancelCauseFunc, e *sandboxv1.Exec) {
	if e.GetTimeoutS() > 0 {
		limit := time.AfterFunc(time.Duration(e.GetTimeoutS())*time.Second, func() { cancel(errTimeout) })
		defer limit.Stop()
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", e.GetCommand())
	cmd.Dir = l.w.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = heldFor
	if len(e.GetStdin()) > 0 {
		cmd.Stdin = bytes.NewReader(e.GetStdin())
	}
	out := &output{link: l, exec: e, stream: sandboxv1.Stream_STREAM_STDOUT, cancel: cancel}
	errs := &output{link: l, exec: e, stream: sandboxv1.Stream_STREAM_STDERR, cancel: cancel}
	err := runInto(cmd, out, errs)
	out.flush()
	errs.flush()
	switch cause := context.Cause(ctx); {
	case cmd.ProcessState == nil:
		l.fail(e, fmt.Sprintf("start: %v", err))
	case errors.Is(cause, errTimeout) && !cmd.ProcessState.Exited():
		l.fail(e, fmt.Sprintf("timeout:%d", e.GetTimeoutS()))
	case errors.Is(cause, errTooMuch):
		l.end(e, -1, true)
	case !cmd.ProcessState.Exited(): // by a signal, ours after an abort
		code := int32(-1)
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && cause == nil {
			code = -int32(ws.Signal())
		}
		l.end(e, code, false)
	default:
		l.end(e, int32(cmd.ProcessState.ExitCode()), false)
	}
}

// runInto runs a command and copies its outputs, for as long as they come; one that a process holds which the command has
// left behind is given up when nothing comes for a while.
func runInto(cmd *exec.Cmd, out, errs *output) error {
	var pipes [4]*os.File
	defer func() {
		for _, f := range pipes {
			if f != nil {
				_ = f.Close() // closed already, or read to its end
			}
		}
	}()
	for i := range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		pipes[i], pipes[2+i] = r, w
	}
	cmd.Stdout, cmd.Stderr = pipes[2], pipes[3]
	err := cmd.Start()
	for i := range 2 {
		_ = pipes[2+i].Close() // the command has its own
	}
	if err != nil {
		return err
	}
	var copies sync.WaitGroup
	exited := make(chan struct{})
	copies.Go(func() { out.copy(pipes[0], exited) })
	copies.Go(func() { errs.copy(pipes[1], exited) })
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left behind; mostly nothing
	close(exited)
	for i := range 2 {
		_ = pipes[i].SetReadDeadline(time.Now().Add(heldFor)) // a pipe has deadlines
	}
	copies.Wait()
	return err
}

func (l *link) end(e *sandboxv1.Exec, code int32, truncated bool) {
	l.sendFrame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_End{End: &sandboxv1.End{ReqId: e.GetReqId(), ExitCode: code, Truncated: truncated}}})
}

func (l *link) fail(e *sandboxv1.Exec, message string) {
	l.sendFrame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Error{Error: &sandboxv1.ExecError{ReqId: e.GetReqId(), Message: message}}})
}

// output is one of a command's two outputs.
type output struct {
	link   *link
	exec   *sandboxv1.Exec
	stream sandboxv1.Stream
	cancel context.CancelCauseFunc
	buf    []byte // of a command that does not stream
}

// copy takes what comes. Once the command has exited, each wait for more is bounded.
func (o *output) copy(r *os.File, exited <-chan struct{}) {
	buf := make([]byte, maxChunk)
	for {
		n, err := r.Read(buf)
		o.write(buf[:n])
		if err != nil {
			return
		}
		select {
		case <-exited:
			_ = r.SetReadDeadline(time.Now().Add(heldFor)) // a pipe has deadlines
		default:
		}
	}
}

func (o *output) write(p []byte) {
	if o.exec.GetStreaming() {
		o.send(p)
		return
	}
	if room := collected - len(o.buf); len(p) > room {
		p = p[:room]
		o.cancel(errTooMuch)
	}
	o.buf = append(o.buf, p...)
}

func (o *output) flush() { o.send(o.buf) }

func (o *output) send(p []byte) {
	for len(p) > 0 {
		n := min(len(p), maxChunk)
		chunk := &sandboxv1.Chunk{ReqId: o.exec.GetReqId(), Data: bytes.Clone(p[:n]), Stream: o.stream}
		o.link.sendFrame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Chunk{Chunk: chunk}})
		p = p[n:]
	}
}
