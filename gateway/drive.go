package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// outputCap is how much stdout a command has whose output comes at the exit, in bytes: the contract's. One byte more
	// is cut off, and the command with it. Its stderr has a bound of its own, as high.
	outputCap = 8 << 20
	// fastPlaces is how many commands of one sandbox are on the fast tier at once: as many as a worker has shells.
	fastPlaces = 4
	// fastInput and fastScript bound what goes there, in bytes (see harnesslib.Sandbox.ScriptCommand).
	fastInput  = 256 << 10
	fastScript = 512 << 10
	// noCode is the exit code of what has none.
	noCode = -1
)

// drive runs a command in its sandbox. It returns the run's last event, or an error when nobody knows how it ended, and
// whether the fast tier served it.
func (g *Gateway) drive(ctx context.Context, r *run, exec *sandboxv1.Exec) (last *sandboxv1.ExecEvent, fast bool, err error) {
	sb, err := g.hub.Sandbox(r.key.sandbox)
	if err != nil {
		return notRun(r.key.req, err), false, nil
	}
	begin := time.Now()
	if !g.cfg.NoNative && !exec.GetStreaming() {
		if stdout, code, ok := native(ctx, sb, exec.GetCommand()); ok {
			r.add(stdout, sandboxv1.Stream_STREAM_STDOUT)
			g.cfg.Logger.Info("exec", "harness", r.key.harness, "sandbox", r.key.sandbox, "req_id", r.key.req, "native", true,
				"run_ms", time.Since(begin).Milliseconds())
			return execEnd(r.key.req, int32(code), false), true, nil
		}
	}
	var cmd *harnesslib.Cmd
	var truncated bool
	if exec.GetStreaming() {
		cmd, err = g.stream(ctx, r, sb, exec)
	} else {
		var free func()
		if free, fast = g.fastPlace(ctx, r, exec); fast {
			defer free()
		}
		cmd, truncated, err = g.collect(ctx, r, sb, exec, fast)
	}
	last, err = g.last(r, exec, truncated, err)
	g.cfg.Logger.Info("exec", "harness", r.key.harness, "sandbox", r.key.sandbox, "req_id", r.key.req, "fast", fast,
		"outcome", string(cmd.Outcome.Kind), "known", err == nil, "run_ms", time.Since(begin).Milliseconds())
	return last, fast, err
}

// command prepares a command with what both ways have in common.
func command(sb *harnesslib.Sandbox, exec *sandboxv1.Exec) *harnesslib.Cmd {
	cmd := sb.ScriptCommand(exec.GetCommand())
	cmd.Timeout = time.Duration(exec.GetTimeoutS()) * time.Second
	if len(exec.GetStdin()) > 0 {
		cmd.Stdin = bytes.NewReader(exec.GetStdin())
	}
	return cmd
}

// stream runs a command whose output goes out while it runs.
func (g *Gateway) stream(ctx context.Context, r *run, sb *harnesslib.Sandbox, exec *sandboxv1.Exec) (*harnesslib.Cmd, error) {
	cmd := named(ctx, command(sb, exec), r, sb)
	cmd.Stdout = output{ctx, r, sandboxv1.Stream_STREAM_STDOUT}
	cmd.Stderr = output{ctx, r, sandboxv1.Stream_STREAM_STDERR}
	return cmd, cmd.Run(ctx)
}

// output is where a streaming command writes to.
type output struct {
	ctx    context.Context //nolint:containedctx // the run's, for the length of one command
	run    *run
	stream sandboxv1.Stream
}

func (o output) Write(p []byte) (int, error) {
	o.run.put(o.ctx, p, o.stream)
	return len(p), nil
}

// named gives a command of the stream tier its name at the hub. Another replica may have started it: then it is not
// given its input once more.
func named(ctx context.Context, cmd *harnesslib.Cmd, r *run, sb *harnesslib.Sandbox) *harnesslib.Cmd {
	cmd.ID = r.key.execID(r.content)
	if cmd.Stdin == nil {
		return cmd
	}
	execs, err := sb.Execs(ctx)
	if err != nil {
		return cmd // the command itself will say what is wrong
	}
	for _, e := range execs {
		if e.ID == cmd.ID {
			return sb.AttachCommand(cmd.ID)
		}
	}
	return cmd
}

// collect runs a command whose output is wanted at its end.
func (g *Gateway) collect(ctx context.Context, r *run, sb *harnesslib.Sandbox, exec *sandboxv1.Exec, fast bool) (cmd *harnesslib.Cmd, truncated bool, err error) {
	cmd = command(sb, exec)
	if fast {
		cmd.FastID = r.key.execID(r.content)
	} else {
		cmd = named(ctx, cmd, r, sb)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.OutputLimit = 2 * outputCap // of both together: the caps of each are held here
	stdout, err := cmd.Output(ctx)
	truncated = len(stdout) > outputCap || stderr.Len() > outputCap || cmd.Omitted > 0
	r.add(stdout[:min(len(stdout), outputCap)], sandboxv1.Stream_STREAM_STDOUT)
	r.add(stderr.Bytes()[:min(stderr.Len(), outputCap)], sandboxv1.Stream_STREAM_STDERR)
	return cmd, truncated, err
}

// last says how a command ended.
func (g *Gateway) last(r *run, exec *sandboxv1.Exec, truncated bool, err error) (*sandboxv1.ExecEvent, error) {
	req := r.key.req
	ee, ran := errors.AsType[*harnesslib.ExitError](err)
	switch {
	case err == nil && truncated, ran && truncated && ee.Outcome.Kind == harnesslib.Exited:
		return execEnd(req, noCode, true), nil
	case err == nil:
		return execEnd(req, 0, false), nil
	case ran:
		return lastOf(req, exec.GetTimeoutS(), ee.Outcome), nil
	case refused(err):
		return notRun(req, err), nil
	}
	return nil, status.Errorf(codes.Unavailable, "nobody knows how it ended: %v", err)
}

// refused says whether an error means that nothing ran.
func refused(err error) bool {
	if errors.Is(err, harnesslib.ErrUnknownSandbox) || errors.Is(err, harnesslib.ErrUnreachable) || errors.Is(err, harnesslib.ErrBusy) {
		return true
	}
	be, ok := errors.AsType[*bus.Error](err)
	if !ok || errors.Is(err, harnesslib.ErrUsed) || errors.Is(err, harnesslib.ErrLost) {
		return false
	}
	switch be.Code {
	case sandbusv1.Code_CODE_INVALID, sandbusv1.Code_CODE_UNKNOWN_VERB, sandbusv1.Code_CODE_TOO_LARGE, sandbusv1.Code_CODE_CONFLICT,
		sandbusv1.Code_CODE_PERMISSION:
		return true
	default:
		return false
	}
}

// lastOf is the last event for an outcome other than exit code 0.
func lastOf(req uint64, timeout uint32, o harnesslib.Outcome) *sandboxv1.ExecEvent {
	switch o.Kind {
	case harnesslib.Exited:
		return execEnd(req, int32(o.Code), false)
	case harnesslib.Signalled:
		if n := unix.SignalNum("SIG" + o.Signal); n > 0 {
			return execEnd(req, -int32(n), false)
		}
		return execEnd(req, noCode, false)
	case harnesslib.TimedOut:
		return execError(req, fmt.Sprintf("timeout:%d", timeout))
	case harnesslib.Aborted:
		return execEnd(req, noCode, false)
	case harnesslib.OutputLimit:
		return execEnd(req, noCode, true)
	case harnesslib.StartFailed:
		return notRun(req, errors.New(o.String()))
	case harnesslib.OOM, harnesslib.Lost:
	}
	return execError(req, o.String())
}

// lanes are the fast tier's places, for each sandbox that has commands there.
type lanes struct {
	mu   sync.Mutex // guards the field below
	open map[bus.SandboxID]*lane
}

type lane struct {
	places chan struct{} // one element for each place that is taken
	users  int           // who holds a place or waits for one
}

// fastPlace takes a place on the fast tier. ok is false for a command that does not fit there, or when no place becomes
// free in time: long commands must not keep the others waiting.
func (g *Gateway) fastPlace(ctx context.Context, r *run, exec *sandboxv1.Exec) (free func(), ok bool) {
	if len(exec.GetStdin()) > fastInput || len(exec.GetCommand()) > fastScript {
		return nil, false
	}
	id := bus.SandboxID(r.key.sandbox)
	l := g.lanes.enter(id)
	wait := time.NewTimer(g.cfg.FastWait)
	defer wait.Stop()
	select {
	case l.places <- struct{}{}:
		return func() {
			<-l.places
			g.lanes.leave(id, l)
		}, true
	case <-wait.C:
	case <-ctx.Done(): // aborted: the stream tier will say so
	}
	g.lanes.leave(id, l)
	return nil, false
}

func (t *lanes) enter(id bus.SandboxID) *lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.open[id]
	if l == nil {
		l = &lane{places: make(chan struct{}, fastPlaces)}
		t.open[id] = l
	}
	l.users++
	return l
}

func (t *lanes) leave(id bus.SandboxID, l *lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(t.open, id)
	}
}
