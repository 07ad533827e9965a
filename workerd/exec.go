package workerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
	"github.com/sandbus/sandbus/workerd/shell"
)

// The bounds of an exec's request.
const (
	maxScript     = 4 << 20
	maxTimeout    = 7 * 24 * time.Hour
	maxGrace      = time.Hour
	defaultOutput = 8 << 20
	maxOutput     = 32 << 20 // a fast exec's output is held in memory until its end
)

// checkScript refuses what no shell can take.
func checkScript(script string) error {
	if i := strings.IndexByte(script, 0); i >= 0 {
		return invalid("the script has a NUL byte at offset %d: a shell cannot take it", i)
	}
	if len(script) > maxScript {
		return invalid("the script has %d bytes, the bound is %d", len(script), maxScript)
	}
	return nil
}

// dir is the absolute directory of an exec.
func (w *Worker) dir(cwd string) (string, error) {
	if strings.IndexByte(cwd, 0) >= 0 {
		return "", invalid("cwd %.200q has a NUL byte", cwd)
	}
	if cwd == "" || filepath.IsAbs(cwd) {
		return cwd, nil
	}
	return filepath.Join(w.cfg.Dir, cwd), nil
}

func noShell() *sandbusv1.Outcome {
	return &sandbusv1.Outcome{
		Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, Code: 127, Stage: "shell", Errno: int32(unix.ENOENT),
		Message: "this sandbox has no shell: give the command as argv",
	}
}

// startExec serves exec.start.
func (w *Worker) startExec(req *bus.Request) {
	var m sandbusv1.ExecStartRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	e := &execution{worker: w, req: req, msg: &m, arrived: time.Now()}
	if err := e.check(); err != nil {
		req.Fail(err)
		return
	}
	out, err := req.Outgoing(m.GetWindow())
	if err != nil {
		req.Fail(err)
		return
	}
	e.out = out
	req.EndStream(out, e.run(ctx))
}

// execution is one streaming exec.
type execution struct {
	worker  *Worker
	req     *bus.Request
	msg     *sandbusv1.ExecStartRequest
	arrived time.Time
	spec    proc.Spec
	timeout time.Duration
	out     *bus.Sender

	stdout, stderr int64 // bytes sent; each written by its own reader, read when those have ended
}

func (e *execution) check() (err error) {
	m := e.msg
	e.spec.Argv = bus.FromTexts(m.GetArgv(), m.GetArgvRaw())
	script := bus.FromText(m.GetScript(), m.GetScriptRaw())
	if (len(e.spec.Argv) > 0) == (script != "") {
		return invalid("want either argv or a script that is not empty")
	}
	if script != "" {
		if err := checkScript(script); err != nil {
			return err
		}
	}
	for i, a := range e.spec.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return invalid("argument %d has a NUL byte", i)
		}
		if len(a) > maxVariable {
			return invalid("argument %d has %d bytes, the system's bound is %d: pass it on standard input or in a file", i, len(a), maxVariable)
		}
	}
	env, err := checkEnv(m.GetEnv(), false)
	if err != nil {
		return err
	}
	e.spec.Env = append(append([]string{}, e.worker.env...), env...)
	if e.spec.Dir, err = e.worker.dir(bus.FromText(m.GetCwd(), m.GetCwdRaw())); err != nil {
		return err
	}
	if e.spec.Dir == "" {
		e.spec.Dir = e.worker.cfg.Dir
	}
	if e.timeout, err = checkTimeout("timeout", m.GetTimeoutMs(), maxTimeout); err != nil {
		return err
	}
	if e.spec.Grace, err = checkTimeout("grace", m.GetGraceMs(), maxGrace); err != nil {
		return err
	}
	if w := m.GetWindow(); w != bus.ClampWindow(w) && w != 0 {
		return invalid("window %d: want %d to %d bytes, or 0 for %d", w, bus.MinWindow, bus.MaxWindow, bus.DefaultWindow)
	}
	e.spec.Merge = m.GetMergeStderr()
	return nil
}

// run sees the command to its end, which it returns for the end frame.
func (e *execution) run(ctx context.Context) *sandbusv1.StreamEnd {
	end := &sandbusv1.StreamEnd{Timing: &sandbusv1.Timing{}}
	if ctx.Err() != nil { // aborted before the start
		end.Outcome = &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}
		return end
	}
	if script := bus.FromText(e.msg.GetScript(), e.msg.GetScriptRaw()); script != "" {
		if e.worker.cfg.Shell == "" {
			end.Outcome = noShell()
			return end
		}
		argv, extra, err := shell.Argv(e.worker.cfg.Shell, script)
		if err != nil {
			end.Outcome = resources(err)
			return end
		}
		e.spec.Argv, e.spec.Extra = argv, extra
	}
	stdin, err := e.openStdin()
	if err != nil {
		end.Outcome = resources(err)
		return end
	}
	starting := time.Now()
	end.Timing.QueueUs = starting.Sub(e.arrived).Microseconds()
	var drain proc.Drain
	// The output of an exec belongs to its stream: when that is over for any reason, nobody can take more.
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	started := make(chan struct{})
	send := func(kind bus.FrameKind, count *int64) func([]byte) bool {
		return func(b []byte) bool {
			<-started // the started frame is the first
			if err := e.out.Write(context.WithoutCancel(life), kind, b); err != nil {
				stop(err)
				return false
			}
			*count += int64(len(b))
			return true
		}
	}
	cmd, err := proc.Start(e.spec, &drain, send(bus.FrameStdout, &e.stdout), send(bus.FrameStderr, &e.stderr))
	if err != nil {
		closeAll(stdin)
		if se, ok := errors.AsType[*proc.StartError](err); !ok {
			end.Outcome = resources(err)
		} else {
			end.Outcome = se.Outcome()
		}
		return end
	}
	end.Timing.StartUs = time.Since(starting).Microseconds()
	e.sendStarted(cmd)
	close(started)

	var feeder sync.WaitGroup
	if stdin != nil {
		feeding, unfeed := context.WithCancelCause(life)
		feeder.Go(func() { e.feed(feeding, stdin) })
		defer feeder.Wait()
		defer closeAll(stdin)
		defer unfeed(nil)
	}
	end.Outcome = e.await(life, cmd, &drain)
	ended := time.Now()
	end.PipeHeld = drain.Wait()
	end.StdoutBytes, end.StderrBytes = e.stdout, e.stderr
	end.Timing.RunUs = ended.Sub(cmd.Began()).Microseconds()
	end.Timing.DrainUs = time.Since(ended).Microseconds()
	if first := drain.FirstByte(); !first.IsZero() {
		end.Timing.FirstByteUs = first.Sub(cmd.Began()).Microseconds()
	}
	return end
}

func resources(err error) *sandbusv1.Outcome {
	return (&proc.StartError{Stage: "resources", Err: err}).Outcome()
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // a pipe's end: nothing is buffered in it
		}
	}
}

// openStdin makes the command's input, and returns the end that the worker writes; nil when there is none.
func (e *execution) openStdin() (*os.File, error) {
	if !e.msg.GetStdin() {
		return nil, nil //nolint:nilnil // no input is no error
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	e.spec.Stdin = r
	return w, nil
}

func (e *execution) sendStarted(cmd *proc.Cmd) {
	m := &sandbusv1.ExecStarted{Pid: int64(cmd.PID())}
	if e.msg.GetStdin() {
		m.StdinWindow = bus.DefaultWindow
	}
	body, err := proto.Marshal(m)
	if err == nil {
		_ = e.out.Write(context.Background(), bus.FrameStarted, body) // a stream that is over is found by the next chunk
	}
}

// feed copies the op's input to the command. A command that closes its input early is no error: the rest is taken and
// thrown away.
func (e *execution) feed(ctx context.Context, stdin *os.File) {
	defer closeAll(stdin)
	broken := false
	for {
		f, err := e.req.Incoming().Next(ctx)
		if err != nil || f.Kind != bus.FrameData {
			return // the end, or a caller that is gone
		}
		if !broken {
			_, err := stdin.Write(f.Body)
			broken = err != nil
		}
	}
}

// await waits for the leader's end, or brings it about.
func (e *execution) await(ctx context.Context, cmd *proc.Cmd, drain *proc.Drain) *sandbusv1.Outcome {
	leader := make(chan *sandbusv1.Outcome, 1)
	go func() { leader <- cmd.Wait() }()
	defer drain.LeaderEnded()
	var timeout <-chan time.Time
	if e.timeout > 0 {
		t := time.NewTimer(e.timeout)
		defer t.Stop()
		timeout = t.C
	}
	var kind sandbusv1.OutcomeKind
	clock := sandbusv1.Clock_CLOCK_UNSPECIFIED
	select {
	case o := <-leader:
		return o
	case <-timeout:
		kind, clock = sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, sandbusv1.Clock_CLOCK_TOTAL
	case <-ctx.Done():
		kind = sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED
		if errors.Is(context.Cause(ctx), bus.ErrAborted) {
			break
		}
		var be *bus.Error
		if errors.As(context.Cause(ctx), &be) && be.Code == sandbusv1.Code_CODE_TIMED_OUT {
			kind, clock = sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, sandbusv1.Clock_CLOCK_TOTAL
		}
	}
	cmd.Kill(context.WithoutCancel(ctx))
	<-leader
	return &sandbusv1.Outcome{Kind: kind, Clock: clock}
}
