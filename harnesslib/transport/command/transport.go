package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/shellfiles"
)

// Stats counts what a transport has done.
type Stats struct {
	Processes int64 // of the prefix that were started, in all
	Fallbacks int64 // operations that a line of the fast tier did not serve, and a process of their own did
	Waiting   int64 // operations that wait now for a line
}

// base is what both ways have in common.
type base struct {
	cfg    Config
	log    *slog.Logger
	life   context.Context //nolint:containedctx // the transport's own life, ended by Close
	cancel context.CancelCauseFunc

	processes atomic.Int64
	fallbacks atomic.Int64
	waiting   atomic.Int64

	mu     sync.Mutex // guards the fields below
	closed bool
	calls  sync.WaitGroup // calls that run, and lines on their way out
}

func newBase(cfg Config) (*base, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &base{cfg: cfg, log: cfg.Logger}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.life, t.cancel = context.WithCancelCause(context.Background())
	return t, nil
}

// FastTier says none: see Transport.
func (t *base) FastTier() transport.FastTier { return transport.FastNone }

// StopMechanism says that the far side is told, and confirms.
func (t *base) StopMechanism() transport.StopMechanism { return transport.StopRemoteAbort }

// Streams says that output comes while a command runs.
func (t *base) Streams() bool { return true }

// Stats counts what was done so far.
func (t *base) Stats() Stats { return Stats{t.processes.Load(), t.fallbacks.Load(), t.waiting.Load()} }

// enter lets a call begin. leave must be called at its end; the context ends with the transport.
func (t *base) enter(ctx context.Context) (inner context.Context, leave func(), err error) {
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

// shut refuses new calls, ends those that run and waits for them.
func (t *base) shut() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel(transport.ErrClosed)
	t.calls.Wait()
}

func (t *base) open(ctx context.Context, upgrade bool) (*line, error) {
	t.processes.Add(1)
	return openLine(ctx, &t.cfg, upgrade)
}

// bury lets a line go while its caller goes on. It is called within a call.
func (t *base) bury(how func()) { t.calls.Go(how) }

// once runs a job on a line of its own.
func (t *base) once(ctx context.Context, j *job) (*transport.Result, error) {
	l, err := t.open(ctx, !j.own)
	if err != nil {
		return nil, notRun(ctx, err)
	}
	mine := *j
	mine.last = true
	res, err, _ := t.on(ctx, l, &mine)
	res.Tier = transport.TierStream
	return res, err
}

// on runs a job on a line, and lets go of the line unless it can serve another one.
func (t *base) on(ctx context.Context, l *line, j *job) (res *transport.Result, err error, reusable bool) { //nolint:revive // the error is not the last thing said
	j.mark = rand.Text()
	e := l.call(ctx, j, newStopper(func() error { return t.stopFar(l, j.mark) }))
	switch {
	case e.reusable:
	case e.held:
		t.bury(l.hangUp)
	default:
		t.bury(l.close)
	}
	res, err = result(j, e)
	return res, err, e.reusable
}

// result reads how a call went.
func result(j *job, e *ending) (*transport.Result, error) {
	res := &transport.Result{PipeHeld: e.held}
	if j.Stdout == nil {
		res.Stdout, res.Stderr = e.out.collected(), e.errOut.collected()
	}
	res.Truncated = e.out.over || e.errOut.over
	if e.err != nil {
		if e.reason != nil && !errors.Is(e.reason, errOver) {
			return res, fmt.Errorf("%w (%w)", e.err, e.reason)
		}
		return res, e.err
	}
	if e.reason != nil {
		return res, stopped(e.reason)
	}
	if e.status == "cwd" {
		return res, startFailed("cwd", j.Dir)
	}
	code, err := strconv.Atoi(e.status)
	if err != nil || code < 0 || code > 255 {
		return res, lost(fmt.Sprintf("its shell said the status %.40q", e.status), nil)
	}
	res.ExitCode = &code
	return res, nil
}

// stopped is the error of a command that was stopped, for a reason; none for one that printed too much.
func stopped(reason error) error {
	if errors.Is(reason, errOver) {
		return nil
	}
	if we, ok := errors.AsType[*writerError](reason); ok {
		return we.err
	}
	if ae, ok := errors.AsType[*transport.AbortError](reason); ok && errors.Is(ae.Cause, transport.ErrClosed) {
		return transport.ErrClosed
	}
	return reason
}

// notRun is the error of a command that was not sent.
func notRun(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return stopped(&transport.AbortError{Cause: context.Cause(ctx)})
}

func (s *sink) collected() []byte {
	if s.over {
		return append(s.buf, transport.TruncatedMarker...)
	}
	return s.buf
}

// startFailed is the error of a command that did not start.
func startFailed(stage, what string) error {
	return &harnesslib.ExitError{Outcome: harnesslib.Outcome{
		Kind: harnesslib.StartFailed, Code: 126, Stage: stage, Message: fmt.Sprintf("directory %q is not there, or may not be entered", what),
	}}
}

func sameWriter(c *transport.Command) (same bool) {
	defer func() { _ = recover() }() // of types that cannot be compared, as in os/exec: then they are not the same
	return c.Stdout != nil && c.Stdout == c.Stderr
}

// PerCall starts a process of the prefix for each operation. It is the stream tier of Transport, and its fallback.
type PerCall struct{ *base }

var _ transport.Transport = (*PerCall)(nil)

// NewPerCall makes a transport without a fast tier. It starts nothing.
func NewPerCall(cfg Config) (*PerCall, error) {
	b, err := newBase(cfg)
	if err != nil {
		return nil, err
	}
	return &PerCall{b}, nil
}

// Exec runs a command in a process of the prefix.
func (t *PerCall) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	ctx, leave, err := t.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return t.once(ctx, &job{Command: c, merge: sameWriter(&c)})
}

// Files are the sandbox's files, through a process of the prefix for each operation.
func (t *PerCall) Files() transport.Files { return shellfiles.New(t) }

// Close ends what runs.
func (t *PerCall) Close() error {
	t.shut()
	return nil
}

// Transport keeps shells open through the prefix. Its lines are started when they are first needed.
type Transport struct {
	*base

	commands lane
	files    lane
}

var _ transport.Transport = (*Transport)(nil)

// New makes a transport with a fast tier. It starts nothing.
func New(cfg Config) (*Transport, error) {
	b, err := newBase(cfg)
	if err != nil {
		return nil, err
	}
	t := &Transport{base: b}
	t.commands, t.files = newLane(b, "commands", true), newLane(b, "files", false)
	return t, nil
}

// FastTier says that there is a long-lived shell.
func (t *Transport) FastTier() transport.FastTier { return transport.FastShell }

// Exec runs a command: on the line of commands when it has no input and its output is collected, else in a process of
// its own.
func (t *Transport) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	ctx, leave, err := t.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	j := &job{Command: c, merge: sameWriter(&c)}
	if c.Streaming() || c.Stdin != nil {
		return t.once(ctx, j)
	}
	return t.commands.exec(ctx, j)
}

// Files are the sandbox's files, through a line of their own.
func (t *Transport) Files() transport.Files { return shellfiles.New(fileLine{t}) }

// Close ends what runs and the lines.
func (t *Transport) Close() error {
	t.shut()
	t.commands.close()
	t.files.close()
	return nil
}

// fileLine runs file operations.
type fileLine struct{ t *Transport }

func (f fileLine) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	return f.t.Exec(ctx, c)
}

// ExecFunction runs a function of shellfiles on the line of files, which gets its text once.
func (f fileLine) ExecFunction(ctx context.Context, fn shellfiles.Function, c transport.Command) (*transport.Result, error) {
	ctx, leave, err := f.t.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	j := &job{Command: c, own: true, define: []function{{fn.Name, fn.Text}}}
	if c.Streaming() || c.Stdin != nil {
		return f.t.once(ctx, j)
	}
	return f.t.files.exec(ctx, j)
}

// restAfter is how long a lane whose line could not be started lets operations take a process of their own.
const restAfter = 10 * time.Second

// lane is a line that is kept, and the queue before it.
type lane struct {
	t       *base
	name    string
	upgrade bool
	turn    chan struct{} // has one element while somebody has the line; those who wait are served in their order

	line  *line     // of who has the turn
	rests time.Time // until then no line is started
}

func newLane(t *base, name string, upgrade bool) lane {
	return lane{t: t, name: name, upgrade: upgrade, turn: make(chan struct{}, 1)}
}

// exec runs a job when its turn comes.
func (a *lane) exec(ctx context.Context, j *job) (*transport.Result, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	held := true
	release := func() {
		if held {
			held = false
			<-a.turn
		}
	}
	defer release()
	if err := a.ready(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, notRun(ctx, err)
		}
		release()
		return a.fallBack(ctx, j, err)
	}
	res, err, reusable := a.t.on(ctx, a.line, j)
	if !reusable {
		a.line = nil
	}
	release()
	if errors.Is(err, transport.ErrLost) && !errors.Is(err, harnesslib.ErrTimedOut) && j.Repeatable && ctx.Err() == nil {
		return a.fallBack(ctx, j, err)
	}
	res.Tier = transport.TierFast
	return res, err
}

// wait takes the turn, behind those who came before.
func (a *lane) wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return notRun(ctx, nil)
	}
	select {
	case a.turn <- struct{}{}:
		return nil
	default:
	}
	a.t.waiting.Add(1)
	defer a.t.waiting.Add(-1)
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return notRun(ctx, nil)
	}
}

// ready sees to it that there is a line.
func (a *lane) ready(ctx context.Context) error {
	if a.line != nil {
		select {
		case <-a.line.exited: // nothing was running on it
			a.t.log.InfoContext(ctx, "line ended while idle", "line", a.name, "state", a.line.state)
			a.t.bury(a.line.close)
			a.line = nil
		default:
			return nil
		}
	}
	if time.Now().Before(a.rests) {
		return fmt.Errorf("%w: the last try to start a line is less than %s ago", transport.ErrUnreachable, restAfter)
	}
	l, err := a.t.open(ctx, a.upgrade)
	if err != nil {
		if ctx.Err() == nil {
			a.rests = time.Now().Add(restAfter)
		}
		return err
	}
	a.line = l
	return nil
}

// fallBack runs a job that may be run, or run again, in a process of its own.
func (a *lane) fallBack(ctx context.Context, j *job, err error) (*transport.Result, error) {
	n := a.t.fallbacks.Add(1)
	a.t.log.WarnContext(ctx, "fell back to a process per call", "line", a.name, "error", err, "fallbacks", n)
	return a.t.once(ctx, j)
}

// close ends the line. Nothing runs any more.
func (a *lane) close() {
	a.turn <- struct{}{}
	if a.line != nil {
		a.line.close()
		a.line = nil
	}
	<-a.turn
}
