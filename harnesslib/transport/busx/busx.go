// Package busx is the transport over the bus: a *harnesslib.Sandbox behind the seam.
package busx

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
)

// Transport reaches a sandbox over the bus. Use New.
type Transport struct {
	sb     *harnesslib.Sandbox
	life   context.Context //nolint:containedctx // the transport's own life, ended by Close
	cancel context.CancelCauseFunc

	mu     sync.Mutex // guards the fields below
	closed bool
	calls  sync.WaitGroup
}

var _ transport.Transport = (*Transport)(nil)

// New makes a transport of a sandbox, which stays the caller's: Close ends only what runs through the transport.
func New(sb *harnesslib.Sandbox) *Transport {
	t := &Transport{sb: sb}
	t.life, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// FastTier says that files are native, and short commands run on shells that are there.
func (t *Transport) FastTier() transport.FastTier { return transport.FastNative }

// StopMechanism says that the worker is told, and confirms.
func (t *Transport) StopMechanism() transport.StopMechanism { return transport.StopRemoteAbort }

// Streams says that output comes while a command runs.
func (t *Transport) Streams() bool { return true }

// enter lets a call begin; the context ends with the transport. leave must be called.
func (t *Transport) enter(ctx context.Context) (inner context.Context, leave func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, transport.ErrClosed
	}
	t.calls.Add(1)
	inner, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.life, func() { cancel(transport.ErrClosed) })
	return inner, func() { stop(); cancel(nil); t.calls.Done() }, nil
}

// Exec runs a command: on the fast tier when its output is collected and it has no input.
func (t *Transport) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	ctx, leave, err := t.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if ctx.Err() != nil {
		return nil, aborted(ctx)
	}
	cmd := t.sb.ScriptCommand(c.Script)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Timeout = c.Dir, c.Env, c.Stdin, c.Timeout
	cmd.OutputLimit = max(0, c.Limit())
	res := &transport.Result{Tier: transport.TierStream}
	var out, errOut bytes.Buffer
	if c.Streaming() {
		cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
		err = cmd.Run(ctx)
	} else {
		if c.Stdin == nil && cmd.OutputLimit <= transport.DefaultOutputLimit {
			res.Tier = transport.TierFast
		}
		cmd.Stderr = &errOut
		var b []byte
		b, err = cmd.Output(ctx)
		_, _ = out.Write(b) // never fails
	}
	res.PipeHeld = cmd.PipeHeld
	err = ended(ctx, &c, res, err)
	if !c.Streaming() {
		res.Stdout, res.Stderr = out.Bytes(), errOut.Bytes()
		switch { // the sandbox counts both together
		case !res.Truncated:
		case len(res.Stderr) > len(res.Stdout):
			res.Stderr = append(res.Stderr, transport.TruncatedMarker...)
		default:
			res.Stdout = append(res.Stdout, transport.TruncatedMarker...)
		}
	}
	return res, err
}

// ended gives the end of a command the words of the seam.
func ended(ctx context.Context, c *transport.Command, res *transport.Result, err error) error {
	code := 0
	if err == nil {
		res.ExitCode = &code
		return nil
	}
	ee, ok := errors.AsType[*harnesslib.ExitError](err)
	if !ok {
		if ctx.Err() != nil && !errors.Is(err, transport.ErrLost) {
			return aborted(ctx)
		}
		return err
	}
	switch o := ee.Outcome; o.Kind {
	case harnesslib.Exited:
		code = o.Code
		res.ExitCode = &code
		return nil
	case harnesslib.Signalled:
		res.Signal = o.Signal
		return nil
	case harnesslib.OutputLimit:
		res.Truncated = true
		return nil
	case harnesslib.TimedOut:
		return &transport.TimeoutError{After: c.Timeout}
	case harnesslib.Aborted:
		if ctx.Err() == nil { // by somebody else
			return &transport.AbortError{Cause: err}
		}
		return aborted(ctx)
	case harnesslib.OOM, harnesslib.StartFailed, harnesslib.Lost:
	}
	return err
}

func aborted(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), transport.ErrClosed) {
		return transport.ErrClosed
	}
	return &transport.AbortError{Cause: context.Cause(ctx)}
}

// Files are the sandbox's files.
func (t *Transport) Files() transport.Files { return files{t} }

// Close ends what runs through the transport and waits for that.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel(transport.ErrClosed)
	t.calls.Wait()
	return nil
}
