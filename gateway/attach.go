package gateway

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/bus"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// attachStream is what a worker is on.
type attachStream = grpc.BidiStreamingServer[sandboxv1.WorkerFrame, sandboxv1.ServerFrame]

// worker is an attached worker.
type worker struct {
	gw     *Gateway
	id     bus.SandboxID
	stream attachStream
	send   sync.Mutex // held while a frame is sent; a worker that takes none is ended by its silence

	mu    sync.Mutex // guards the fields below
	execs map[uint64]*remoteExec
	ops   map[bus.OpID]*remoteExec // by the op that started them; those that have ended too, for a while
	order []bus.OpID               // of ops, the oldest first
	gone  error                    // why there are no more frames
}

// errWorkerGone is why the execs of a worker are lost whose stream has ended.
var errWorkerGone = errors.New("the worker's stream has ended")

// Attach serves SandboxWorker.Attach.
func (g *Gateway) Attach(stream attachStream) error {
	hello, err := g.welcome(stream)
	if err != nil {
		return err
	}
	w := &worker{
		gw: g, id: bus.SandboxID(hello.GetSandboxId()), stream: stream,
		execs: map[uint64]*remoteExec{}, ops: map[bus.OpID]*remoteExec{},
	}
	if err := g.park(w); err != nil {
		return err
	}
	defer g.unpark(w)
	return w.serve(hello)
}

// welcome checks who attaches.
func (g *Gateway) welcome(stream attachStream) (*sandboxv1.Hello, error) {
	if err := g.cfg.Tokens.anyWorker(stream.Context()); err != nil {
		return nil, err
	}
	if g.cfg.WorkerBus == nil {
		return nil, status.Error(codes.Unimplemented, "this gateway takes no workers: it has no credentials for sandboxes")
	}
	type first struct {
		frame *sandboxv1.WorkerFrame
		err   error
	}
	got := make(chan first, 1)
	g.wg.Go(func() {
		f, err := stream.Recv() // ends with the stream
		got <- first{f, err}
	})
	late := time.NewTimer(helloLimit)
	defer late.Stop()
	var f first
	select {
	case f = <-got:
	case <-late.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no hello within %s", helloLimit)
	case <-g.stopping:
		return nil, status.Error(codes.Unavailable, "the gateway is stopping")
	}
	if f.err != nil {
		return nil, f.err
	}
	hello := f.frame.GetHello()
	if hello == nil {
		return nil, status.Error(codes.InvalidArgument, "the first frame of a worker is a Hello")
	}
	if _, err := bus.ParseSandboxID(hello.GetSandboxId()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return hello, g.cfg.Tokens.worker(stream.Context(), hello.GetSandboxId())
}

// park takes the id for a worker, unless another one has it here.
func (g *Gateway) park(w *worker) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.workers[w.id] != nil {
		return status.Errorf(codes.AlreadyExists, "sandbox %s has a live worker: it stays, and this one is refused", w.id)
	}
	g.workers[w.id] = w
	return nil
}

func (g *Gateway) unpark(w *worker) {
	g.mu.Lock()
	delete(g.workers, w.id)
	g.mu.Unlock()
}

// serve makes the worker known at the hub and passes on what comes, until one of its ends is over.
func (w *worker) serve(hello *sandboxv1.Hello) error {
	cfg, err := w.gw.cfg.WorkerBus(w.id)
	if err != nil {
		return status.Errorf(codes.PermissionDenied, "no credential for sandbox %s at the hub: %v", w.id, err)
	}
	life, end := context.WithCancelCause(context.WithoutCancel(w.stream.Context()))
	defer end(errWorkerGone)
	lost := make(chan error, 1)
	cfg.OnClosed, cfg.OnDenied = tell(lost), tell(lost)
	conn, err := bus.Connect(w.stream.Context(), cfg)
	if err != nil {
		return status.Errorf(codes.Unavailable, "%v", err)
	}
	defer conn.Close()
	target := bus.Target{Zone: conn.Identity().Zone, Sandbox: w.id, Instance: bus.NewInstanceID()}
	log := w.gw.cfg.Logger.With("sandbox", string(w.id))
	srv := bus.NewServer(conn, target, log)
	srv.HandleRepeatable("exec.start", w.serveExec)
	bus.HandleOp(srv, "shell.run", w.serveShell)
	if err := srv.Start(); err != nil {
		return status.Errorf(codes.Unavailable, "%v", err)
	}
	var draining atomic.Bool
	announcer := &bus.Announcer{
		Conn: conn, Target: target, Hello: toBus(hello), Logger: log,
		Ready: func() { log.Info("worker attached", "instance", string(target.Instance)) },
		Beat:  func(b *sandbusv1.Beat) { b.Load, b.Draining = int32(srv.Load()), draining.Load() },
	}
	announced := make(chan error, 1)
	go func() { announced <- announcer.Run(life) }()

	err = w.watch(announced, lost)
	draining.Store(true)
	srv.Drain()
	grace, cancel := context.WithTimeout(context.WithoutCancel(life), w.gw.cfg.Grace)
	defer cancel()
	if !errors.Is(err, errStopping) {
		w.fail(errWorkerGone)
		cancel() // nothing that runs could end well
	} else {
		announcer.BeatNow()
	}
	srv.Stop(grace)
	end(errWorkerGone)
	if aerr := <-announced; aerr == nil {
		announcer.Goodbye("the worker's stream to the gateway has ended")
	}
	log.Info("worker detached", "instance", string(target.Instance))
	if errors.Is(err, errStopping) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}

// errStopping says that the gateway ends.
var errStopping = errors.New("the gateway is stopping: attach again")

// watch receives the worker's frames until something ends it.
func (w *worker) watch(announced chan error, lost <-chan error) error {
	received := make(chan error, 1)
	heard := make(chan struct{}, 1)
	w.gw.wg.Go(func() { received <- w.receive(heard) }) // ends with the stream
	silence := time.NewTimer(w.gw.cfg.WorkerSilence)
	defer silence.Stop()
	for {
		select {
		case <-heard:
			silence.Reset(w.gw.cfg.WorkerSilence)
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-silence.C:
			return status.Errorf(codes.DeadlineExceeded, "no frame for %s: a heartbeat is due every %s", w.gw.cfg.WorkerSilence, heartbeatEvery)
		case err := <-announced:
			announced <- err
			if errors.Is(err, bus.ErrDuplicate) {
				return status.Error(codes.AlreadyExists, err.Error())
			}
			return status.Errorf(codes.FailedPrecondition, "%v", err)
		case err := <-lost:
			return status.Errorf(codes.Unavailable, "connection to the hub: %v", err)
		case <-w.gw.stopping:
			return errStopping
		}
	}
}

// receive hands out frames.
func (w *worker) receive(heard chan<- struct{}) error {
	for {
		f, err := w.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case heard <- struct{}{}:
		default:
		}
		switch {
		case f.GetHello() != nil:
			return status.Error(codes.InvalidArgument, "a second Hello")
		case f.GetChunk() != nil:
			w.deliver(f.GetChunk().GetReqId(), f)
		case f.GetEnd() != nil:
			w.deliver(f.GetEnd().GetReqId(), f)
		case f.GetError() != nil:
			w.deliver(f.GetError().GetReqId(), f)
		}
	}
}

// deliver gives a frame to its exec. One of an exec that is over, or that never was, is nobody's.
func (w *worker) deliver(req uint64, f *sandboxv1.WorkerFrame) {
	w.mu.Lock()
	x := w.execs[req]
	w.mu.Unlock()
	if x != nil {
		x.heard(f)
	}
}

// fail ends all execs: nobody knows how they end.
func (w *worker) fail(err error) {
	w.mu.Lock()
	w.gone = err
	var all []*remoteExec
	for _, x := range w.execs {
		all = append(all, x)
	}
	w.mu.Unlock()
	for _, x := range all {
		x.fail(err)
	}
}

// sendFrame sends one frame to the worker.
func (w *worker) sendFrame(f *sandboxv1.ServerFrame) error {
	w.send.Lock()
	defer w.send.Unlock()
	return w.stream.Send(f)
}

// toBus is what presence gets to know of a worker. What is over presence's bounds is left out.
func toBus(h *sandboxv1.Hello) *sandbusv1.Hello {
	b := &sandbusv1.Hello{
		Labels: h.GetLabels(), Capabilities: []string{"exec", "shell"}, Image: h.GetImage(), Arch: goArch(h.GetArch()),
		Trust: "untrusted", Slots: int32(max(1, min(h.GetCapacityMax(), 65535))), Version: "sandbox/v1",
		Features: []string{"streams.1", "shell.run", "exec.start", "sandbox.v1"},
	}
	if h.GetTrust() == "trusted" {
		b.Trust = "trusted"
	}
	for _, c := range h.GetCapabilities() {
		if c != "files" && c != "exec" && c != "shell" { // those of the bus mean verbs that are not served here, or that are
			b.Capabilities = append(b.Capabilities, c)
		}
	}
	return b
}

// goArch is an architecture in Go's naming.
func goArch(arch string) string {
	switch strings.ToLower(arch) {
	case "x86_64", "x64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return arch
}

// tell hands on the first of several errors.
func tell(to chan error) func(error) {
	return func(err error) {
		select {
		case to <- err:
		default:
		}
	}
}
