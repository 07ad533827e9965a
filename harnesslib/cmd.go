package harnesslib

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// abortWindow is how long an abort may take to be confirmed; after it the exec is lost.
const abortWindow = 8 * time.Second

// Cmd is a command that is prepared or running in a sandbox, shaped like os/exec's. It is used once.
type Cmd struct {
	// Args are the program and its arguments; a program without "/" is looked up in the sandbox's PATH.
	Args []string
	// Script is shell text that runs instead of Args.
	Script string
	// Dir is the working directory; empty means the sandbox's.
	Dir string
	// Env is added to the sandbox's environment, NAME=value each; unlike os/exec's it does not replace it.
	Env []string
	// Stdin is the standard input; nil means /dev/null. It is read until its end or the command's; a read that is
	// blocked then is not waited for, and what it gets is lost.
	Stdin io.Reader
	// Stdout and Stderr take the output as it comes; nil discards it. A writer that blocks holds the command back. When
	// both are the same, comparable value, the command writes into one pipe and the order is kept.
	Stdout io.Writer
	Stderr io.Writer
	// ID names the run for good: 1 to 63 of a-z, 0-9, '_' and '-'. Empty means a new one, which is set by Start. The
	// same command under the same ID finds the run that there is; another command is refused.
	ID string
	// FastID is ID for a script on the fast tier, which keeps no output: the same FastID again is refused with ErrUsed, so
	// that nothing runs twice. Empty means a name that nobody knows. The stream tier does not look at it.
	FastID string
	// Timeout ends the command after that time; zero means none. At most 7 days.
	Timeout time.Duration
	// IdleTimeout ends the command after that time without output; zero means none. At most 7 days.
	IdleTimeout time.Duration
	// OutputLimit is how many bytes of output are kept: one more ends the command with ErrOutputLimit, unless HeadTail is
	// set. Zero means 8 MiB where Output or CombinedOutput collects it or HeadTail is set, and none otherwise. At most
	// 1 GiB, with HeadTail 64 MiB; on the fast tier 32 MiB.
	OutputLimit int64
	// HeadTail lets the command run on at its OutputLimit: the first and the last half of it arrive, when the command
	// has ended, and Omitted is what was left out between them.
	HeadTail bool
	// Spool also writes the full output to a file in the sandbox, SpoolPath, of at most SpoolLimit bytes; zero means
	// 256 MiB, at most 16 GiB.
	Spool      bool
	SpoolLimit int64
	// Detach lets the command run on by itself: Run returns when it has started. AttachCommand finds it by its ID.
	Detach bool
	// MemoryLimit ends the command with ErrOOM when it uses more, in bytes; zero means none. A sandbox that cannot hold
	// it refuses to start the command.
	MemoryLimit int64
	// Terminal gives the command a terminal of this size instead of pipes; its output comes on Stdout. Nil means none.
	Terminal *Size
	// Offset is where AttachCommand's output begins, in bytes of both outputs together. Zero means the start.
	Offset int64
	// NoFollow ends an AttachCommand at the end of the output that is there now.
	NoFollow bool
	// Grace is the time from TERM to KILL; zero means 2 s. At most 1 hour.
	Grace time.Duration

	// Outcome is set when the command has ended.
	Outcome Outcome
	// PipeHeld says that a process which the command left behind still held its output when it had ended.
	PipeHeld bool
	// Running says that the command had not ended when Wait returned: it is detached, or NoFollow was set.
	Running bool
	// Omitted is how many bytes of output did not come: left out by HeadTail, or no longer kept.
	Omitted int64
	// Usage is what the command and the descendants that it waited for used.
	Usage Usage
	// SpoolPath is the file with the full output, SpoolOmitted how many bytes are not in it, SpoolError why.
	SpoolPath    string
	SpoolOmitted int64
	SpoolError   string
	// Timing says where the time went.
	Timing Timing

	sb     *Sandbox
	attach bool
	over   bool // ended already in Start
	ended  chan error
	// received is the offset behind the output that has come.
	received int64
	giveUp   time.Time // when an abort's window is over; zero while there was none
	stream   *bus.Stream
	ctx      context.Context //nolint:containedctx // from Start to Wait, as in os/exec
	feeder   sync.WaitGroup
	fed      context.CancelCauseFunc
	// overdue is when our own clock ends the command, zero for never. It stands still while our writers hold output up.
	overdue time.Time
	late    error // that it did
}

// Size is the size of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

// Usage is what a command used.
type Usage struct {
	User, System time.Duration // processor time
	MaxRSS       int64         // largest resident memory of one process, in bytes
}

// Timing says where an exec's time went, by the sandbox's clock.
type Timing struct {
	Queue     time.Duration // from the arrival of the request to the start of starting
	Start     time.Duration // what starting took
	FirstByte time.Duration // from the start to the first output; zero when there was none
	Run       time.Duration // from the start to the end of the command
	Drain     time.Duration // from there to the end of its output
}

// Command prepares a program with arguments. No shell looks at them.
func (s *Sandbox) Command(name string, arg ...string) *Cmd {
	return &Cmd{sb: s, Args: append([]string{name}, arg...)}
}

// ScriptCommand prepares shell text, which means what "bash -c" would make of it (or sh, where there is no bash). When
// its output is collected and it has no Stdin, or one of at most 256 KiB that is in memory already (*bytes.Reader,
// *bytes.Buffer, *strings.Reader), it takes the fast tier: a shell that is already there.
func (s *Sandbox) ScriptCommand(script string) *Cmd {
	return &Cmd{sb: s, Script: script}
}

// AttachCommand prepares to read the output of an exec, from the start of what is kept or from Offset on, until its end.
// Stdin, when set, goes to the exec's input. The end of the context ends the reading, not the exec.
func (s *Sandbox) AttachCommand(id string) *Cmd {
	return &Cmd{sb: s, ID: id, attach: true}
}

// Run starts the command and waits for its end. The end of ctx aborts it. Errors: as Wait.
func (c *Cmd) Run(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its standard output. An *ExitError has what came on the standard error, when
// Stderr is nil.
func (c *Cmd) Output(ctx context.Context) ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("harnesslib: Stdout is set already")
	}
	c.limitOutput()
	var stdout, stderr bytes.Buffer
	c.Stdout = &stdout
	capture := c.Stderr == nil
	if capture {
		c.Stderr = &stderr
	}
	err := c.collect(ctx)
	var ee *ExitError
	if errors.As(err, &ee) && capture {
		ee.Stderr = stderr.Bytes()[max(0, stderr.Len()-32<<10):]
	}
	return stdout.Bytes(), err
}

// CombinedOutput runs the command and returns its standard output and standard error, in the order in which they were
// written.
func (c *Cmd) CombinedOutput(ctx context.Context) ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("harnesslib: Stdout or Stderr is set already")
	}
	c.limitOutput()
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run(ctx)
	return out.Bytes(), err
}

const (
	// collectedBytes is the limit of output that is held in memory.
	collectedBytes = 8 << 20
	// fastBytes is the largest such limit that a worker takes on the fast tier.
	fastBytes = 32 << 20
	// fastInput is how much input goes with a request on the fast tier, beside a script of fastScript bytes: one message
	// has a bound.
	fastInput  = 256 << 10
	fastScript = 512 << 10
)

func (c *Cmd) limitOutput() {
	if c.OutputLimit == 0 {
		c.OutputLimit = collectedBytes
	}
}

// collect runs a command whose output is wanted at the end: a script with little input on the fast tier.
func (c *Cmd) collect(ctx context.Context) error {
	fast := c.Script != "" && c.smallInput() && c.ID == "" && c.IdleTimeout == 0 && c.Grace == 0 && !c.HeadTail && !c.Spool && !c.Detach &&
		c.MemoryLimit == 0 && c.Terminal == nil && c.OutputLimit <= fastBytes
	if !fast {
		return c.Run(ctx)
	}
	return c.runFast(ctx)
}

// smallInput says whether the input can go with a request.
func (c *Cmd) smallInput() bool {
	if c.Stdin == nil {
		return true
	}
	in, ok := c.Stdin.(interface{ Len() int })
	switch c.Stdin.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
	default:
		ok = false // its Len need not be all of it
	}
	return ok && in.Len() <= fastInput && len(c.Script) <= fastScript
}

// env is the environment in its wire form.
func (c *Cmd) env() ([]*sandbusv1.EnvVar, error) {
	var vars []*sandbusv1.EnvVar
	for _, v := range c.Env {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("environment %.80q: want NAME=value", v)
		}
		e := &sandbusv1.EnvVar{Name: name}
		e.Value, e.ValueRaw = bus.ToText(value)
		vars = append(vars, e)
	}
	return vars, nil
}

// check refuses what no sandbox would take, before anything is sent.
func (c *Cmd) check() error {
	switch {
	case c.sb == nil:
		return errors.New("harnesslib: a Cmd is made by a Sandbox's Command or ScriptCommand")
	case c.stream != nil || c.Outcome.Kind != "":
		return errors.New("harnesslib: a Cmd is used once")
	case c.attach && c.ID == "":
		return errors.New("attach: want the exec's id")
	case !c.attach && (len(c.Args) == 0 || c.Args[0] == "") == (c.Script == ""):
		return errors.New("command: want a program or a script")
	case strings.IndexByte(c.Script, 0) >= 0:
		return fmt.Errorf("command: the script has a NUL byte at offset %d", strings.IndexByte(c.Script, 0))
	case c.Timeout < 0 || c.Timeout > 7*24*time.Hour:
		return fmt.Errorf("command: timeout %s: want 0 (none) to 168h", c.Timeout)
	case c.IdleTimeout < 0 || c.IdleTimeout > 7*24*time.Hour:
		return fmt.Errorf("command: idle timeout %s: want 0 (none) to 168h", c.IdleTimeout)
	case c.OutputLimit < 0:
		return fmt.Errorf("command: output limit %d: want 0 or more bytes", c.OutputLimit)
	case c.Offset < 0:
		return fmt.Errorf("attach: offset %d: want 0 or more", c.Offset)
	case c.Grace < 0 || c.Grace > time.Hour:
		return fmt.Errorf("command: grace %s: want 0 (2s) to 1h", c.Grace)
	}
	for i, a := range c.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("command: argument %d has a NUL byte", i)
		}
	}
	for _, id := range []string{c.ID, c.FastID} {
		if id == "" {
			continue
		}
		if _, err := bus.ParseOpID(id); err != nil {
			return fmt.Errorf("exec id: %w", err)
		}
	}
	return nil
}

// atLeastOneMs keeps a short limit from becoming none.
func atLeastOneMs(d time.Duration) int64 {
	if d > 0 && d < time.Millisecond {
		return 1
	}
	return d.Milliseconds()
}

func (c *Cmd) runFast(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	env, err := c.env()
	if err != nil {
		return err
	}
	if c.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, patience(c.Timeout, c.Grace), c.errLate())
		defer stop()
	}
	op := bus.NewOpID()
	if c.FastID != "" {
		op = bus.OpID(c.FastID)
	}
	req := &sandbusv1.ShellRunRequest{
		Meta: &sandbusv1.RequestMeta{Op: string(op)}, Env: env, TimeoutMs: atLeastOneMs(c.Timeout), OutputLimit: c.OutputLimit,
	}
	if c.Stdin != nil {
		req.HasStdin = true
		if req.Stdin, err = io.ReadAll(c.Stdin); err != nil {
			return err
		}
	}
	req.Script, req.ScriptRaw = bus.ToText(c.Script)
	req.Cwd, req.CwdRaw = bus.ToText(c.Dir)
	resp := &sandbusv1.ShellRunResponse{}
	var cause error
	err = c.sb.do(ctx, func(t bus.Target) error {
		call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		stop := context.AfterFunc(ctx, func() {
			cause = context.Cause(ctx)
			c.sb.abort(call, t, op, cause, cancel)
		})
		defer stop()
		return c.sb.hub.caller.Request(call, t, "shell.run", op, req, resp)
	})
	if be, ok := errors.AsType[*bus.Error](err); ok && c.FastID != "" && be.Code == sandbusv1.Code_CODE_CONFLICT {
		return fmt.Errorf("%w: %w", ErrUsed, err)
	}
	if err != nil {
		return execError(err)
	}
	c.Outcome, c.PipeHeld, c.Timing = outcome(resp.GetOutcome()), resp.GetPipeHeld(), timing(resp.GetTiming())
	if err := writeAll(c.Stdout, resp.GetStdout()); err != nil {
		return err
	}
	if err := writeAll(c.Stderr, resp.GetStderr()); err != nil {
		return err
	}
	if c.Outcome.Kind != Aborted {
		cause = nil
	}
	return c.Outcome.asError(cause)
}

func writeAll(w io.Writer, b []byte) error {
	if w == nil || len(b) == 0 {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// errUnconfirmed is the cause with which a call ends whose abort nobody confirmed.
var errUnconfirmed = fmt.Errorf("%w: the abort was not confirmed within %s", ErrLost, abortWindow)

// abort asks for an op's end, because of why, and ends the call when that is not confirmed in time.
func (s *Sandbox) abort(call context.Context, t bus.Target, op bus.OpID, why error, giveUp context.CancelCauseFunc) {
	if gone := s.hub.caller.Gone(why); gone != nil { // there is no way to ask
		giveUp(gone)
		return
	}
	limit := time.AfterFunc(abortWindow, func() {
		s.unheard(t)
		giveUp(errUnconfirmed)
	})
	context.AfterFunc(call, func() { limit.Stop() })
	askAbort(call, func(ctx context.Context) (*sandbusv1.StreamEnd, error) {
		return nil, s.hub.caller.Control(ctx, t, op, "abort", &sandbusv1.AbortRequest{Reason: "the caller's context ended"},
			&sandbusv1.AbortResponse{}) // what counts is the op's own end
	})
}

// execError gives the errors of the fabric the names of this package.
func execError(err error) error {
	var be *bus.Error
	if errors.As(err, &be) && be.Code == sandbusv1.Code_CODE_NOT_FOUND {
		return fmt.Errorf("%w: %w", ErrUnknownExec, err)
	}
	if errors.As(err, &be) && be.Code == sandbusv1.Code_CODE_FORGOTTEN {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	if errors.As(err, &be) && (be.Code == sandbusv1.Code_CODE_BUSY || be.Code == sandbusv1.Code_CODE_DRAINING) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	var se *bus.StreamError
	if errors.As(err, &se) || errors.Is(err, bus.ErrPeerSilent) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// Start starts the command and returns when the sandbox has started it; output is taken from then on. Wait must be
// called. The end of ctx, also after Start, aborts the command. Errors: nothing ran, or ErrLost; an *ExitError of kind StartFailed.
func (c *Cmd) Start(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	env, err := c.env()
	if err != nil {
		return err
	}
	c.ctx = ctx
	if c.attach {
		return c.startAttached()
	}
	if c.Timeout > 0 {
		c.overdue = time.Now().Add(patience(c.Timeout, c.Grace))
	}
	if c.ID == "" {
		c.ID = string(bus.NewOpID())
	}
	op := bus.OpID(c.ID)
	req := &sandbusv1.ExecStartRequest{
		Meta: &sandbusv1.RequestMeta{Op: string(op), Call: string(bus.NewConnID())}, Env: env, Stdin: c.Stdin != nil,
		TimeoutMs: atLeastOneMs(c.Timeout), IdleTimeoutMs: atLeastOneMs(c.IdleTimeout), GraceMs: atLeastOneMs(c.Grace),
		MergeStderr: sameWriter(c.Stdout, c.Stderr), OutputLimit: c.OutputLimit, OutputMode: sandbusv1.OutputMode_OUTPUT_MODE_STOP,
		Spool: c.Spool, SpoolLimit: c.SpoolLimit, Detach: c.Detach, MemoryLimit: c.MemoryLimit,
	}
	switch {
	case c.HeadTail:
		req.OutputMode = sandbusv1.OutputMode_OUTPUT_MODE_HEADTAIL
	case c.OutputLimit == 0:
		req.OutputLimit = -1
	}
	if c.Terminal != nil {
		req.Terminal = &sandbusv1.Terminal{Cols: uint32(c.Terminal.Cols), Rows: uint32(c.Terminal.Rows)}
	}
	req.Argv, req.ArgvRaw = bus.ToTexts(c.Args)
	req.Script, req.ScriptRaw = bus.ToText(c.Script)
	req.Cwd, req.CwdRaw = bus.ToText(c.Dir)
	return c.startBy(func(t bus.Target) (*bus.Stream, error) {
		return c.sb.hub.caller.OpenRepeatable(ctx, t, "exec.start", op, req, 0, req.GetStdin())
	})
}

func (c *Cmd) startAttached() error {
	op := bus.NewOpID()
	req := &sandbusv1.ExecAttachRequest{
		Meta: &sandbusv1.RequestMeta{Op: string(op)}, ExecId: c.ID, Offset: c.Offset, NoFollow: c.NoFollow, Stdin: c.Stdin != nil,
	}
	return c.startBy(func(t bus.Target) (*bus.Stream, error) {
		return c.sb.hub.caller.Open(c.ctx, t, "exec.attach", op, req, 0, req.GetStdin())
	})
}

func (c *Cmd) startBy(open func(bus.Target) (*bus.Stream, error)) error {
	err := c.sb.do(c.ctx, func(t bus.Target) error {
		st, err := open(t)
		if err != nil {
			return err
		}
		if err = c.begin(st); replaced(err) {
			c.stream = st
			if err = c.reattach(); err == nil {
				err = c.begin(nil)
			}
		}
		return err
	})
	var ee *ExitError
	if err == nil || errors.As(err, &ee) {
		return err
	}
	return execError(err)
}

func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }() // of types that cannot be compared, as in os/exec: then they are not the same
	return a != nil && a == b
}

// overdueAfter is what a worker needs at most, behind a command's time limit and grace, to take the rest of its output
// and to say how it ended.
const overdueAfter = 10 * time.Second

// patience is when our own clock strikes, for a worker that does not keep a command's time limit.
func patience(timeout, grace time.Duration) time.Duration {
	if grace == 0 {
		grace = defaultGrace
	}
	return timeout + grace + overdueAfter
}

func (c *Cmd) errLate() error {
	return fmt.Errorf("%w: the sandbox did not end the command within %s", ErrTimedOut, patience(c.Timeout, c.Grace))
}

// defaultGrace is a worker's time from TERM to KILL.
const defaultGrace = 2 * time.Second

// begin waits for the stream's first frame.
func (c *Cmd) begin(st *bus.Stream) error {
	if st == nil { // it has begun already
		c.run(c.stream)
		return nil
	}
	f, err := c.next(st)
	if err != nil {
		st.Close()
		return err
	}
	switch f.Kind {
	case bus.FrameStarted:
		c.run(st)
		return nil
	case bus.FrameEnd: // it never ran; or an attached exec has ended without output
		defer st.Close()
		c.over = true
		return c.finish(f)
	default:
		st.Close()
		return &bus.StreamError{Rule: fmt.Sprintf("an exec begins with a started frame, not with one of kind %d", f.Kind)}
	}
}

// next returns the next frame; when the caller's context ends it aborts the exec and goes on until the end is
// confirmed.
func (c *Cmd) next(st *bus.Stream) (bus.Frame, error) {
	ctx := c.ctx
	if !c.overdue.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, c.overdue, c.errLate())
		defer cancel()
	}
	f, err := st.Next(ctx)
	if err == nil || ctx.Err() == nil {
		return f, err
	}
	if c.ctx.Err() == nil {
		c.late = context.Cause(ctx)
	}
	if gone := c.sb.hub.caller.Gone(context.Cause(ctx)); gone != nil { // there is no way to ask for its end
		return f, fmt.Errorf("%w: %w", ErrLost, gone)
	}
	return c.nextAborted(st)
}

// nextAborted is next once the caller has given up. What has not come when the abort's window is over is counted as
// omitted, if the sandbox has said beside the stream how the exec ended; else the exec is lost.
func (c *Cmd) nextAborted(st *bus.Stream) (bus.Frame, error) {
	if c.giveUp.IsZero() {
		c.giveUp = time.Now().Add(abortWindow)
	}
	limit, cancel := context.WithDeadlineCause(context.WithoutCancel(c.ctx), c.giveUp, errUnconfirmed)
	asked := make(chan *sandbusv1.StreamEnd, 1)
	go func() {
		asked <- askAbort(limit, func(ctx context.Context) (*sandbusv1.StreamEnd, error) {
			return st.Abort(ctx, "the caller gave up") // what counts is the op's own end
		})
	}()
	f, err := c.untilEnd(limit, st)
	expired := errors.Is(context.Cause(limit), errUnconfirmed)
	cancel()
	end := <-asked
	switch {
	case err == nil || !expired:
		return f, err
	case c.attach: // whose reading it was; the exec goes on
		return f, context.Cause(c.ctx)
	case end == nil:
		c.sb.unheard(st.Target())
		return f, err
	}
	missing := max(0, end.GetStdoutBytes()+end.GetStderrBytes()-c.received)
	c.received += missing
	c.Omitted += missing
	body, err := proto.Marshal(end)
	return bus.Frame{Kind: bus.FrameEnd, Body: body}, err
}

// untilEnd takes output until the exec's end, or its start.
func (c *Cmd) untilEnd(ctx context.Context, st *bus.Stream) (bus.Frame, error) {
	for {
		f, err := st.Next(ctx)
		if err != nil || f.Kind == bus.FrameEnd || f.Kind == bus.FrameStarted {
			return f, err
		}
		if err := c.output(f); err != nil {
			return f, err
		}
	}
}

// askAbortEvery is how often an abort is repeated: it may have been lost, and its answer may come to know the end.
const askAbortEvery = 500 * time.Millisecond

// askAbort asks for an abort until ctx ends or an answer says how the op ended.
func askAbort(ctx context.Context, ask func(context.Context) (*sandbusv1.StreamEnd, error)) *sandbusv1.StreamEnd {
	ctx, stop := context.WithCancelCause(ctx)
	ends := make(chan *sandbusv1.StreamEnd, 1)
	var asking sync.WaitGroup
	again := time.NewTicker(askAbortEvery)
	defer again.Stop()
	for ctx.Err() == nil {
		asking.Go(func() { // an answer may take longer than the next question
			if end, err := ask(ctx); err == nil && end != nil {
				select {
				case ends <- end:
				default:
				}
				stop(errAbortAnswered)
			}
		})
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
	asking.Wait()
	stop(nil)
	select {
	case end := <-ends:
		return end
	default:
		return nil
	}
}

// errAbortAnswered is the cause with which the other questions end.
var errAbortAnswered = errors.New("an answer has come")

// run copies input and output from now on.
func (c *Cmd) run(st *bus.Stream) {
	c.stream, c.received = st, c.Offset
	c.startFeeder()
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.take() }()
}

// startFeeder copies Stdin to the command.
func (c *Cmd) startFeeder() {
	if c.Stdin == nil {
		return
	}
	var ctx context.Context
	ctx, c.fed = context.WithCancelCause(c.ctx)
	feed := func() {
		buf := make([]byte, bus.ChunkBytes)
		for {
			n, err := c.Stdin.Read(buf)
			if n > 0 && c.stream.Send(ctx, buf[:n]) != nil {
				return // the command has ended, or does not read any more
			}
			if err != nil {
				_ = c.stream.CloseSend(ctx) // likewise
				return
			}
		}
	}
	switch c.Stdin.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader: // do not block: they can be waited for
		c.feeder.Go(feed)
	default:
		go feed() // may sit in Read for ever, as with a terminal
	}
}

// Wait waits until the command has ended and all its output was taken. Errors: nil for exit code 0; *ExitError when it
// ran and failed; ErrLost; that of a writer, after which the command was aborted.
func (c *Cmd) Wait() error {
	if c.over {
		return nil
	}
	if c.ended == nil {
		return errors.New("harnesslib: Wait without a Start that succeeded")
	}
	return <-c.ended
}

// take takes output until the command has ended.
func (c *Cmd) take() error {
	defer c.feeder.Wait()
	if c.fed != nil {
		defer c.fed(errors.New("the command has ended"))
	}
	defer func() { c.stream.Close() }()
	for {
		f, err := c.next(c.stream)
		if replaced(err) {
			if err := c.reattach(); err != nil {
				return execError(err)
			}
			continue
		}
		if err != nil {
			return execError(c.sb.hub.caller.lease.noted(err))
		}
		if f.Kind == bus.FrameEnd {
			return c.finish(f)
		}
		if err := c.output(f); err != nil {
			limit, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), abortWindow)
			defer cancel()
			_, aerr := c.stream.Abort(limit, "the caller's writer failed")
			return errors.Join(err, aerr)
		}
	}
}

// replaced says whether somebody else has asked for the same exec, under its id.
func replaced(err error) bool {
	var be *bus.Error
	return errors.As(err, &be) && be.Code == sandbusv1.Code_CODE_REPLACED
}

// reattach goes on reading where a replaced stream has ended. Its input is the other's now.
func (c *Cmd) reattach() error {
	c.stream.Close()
	return c.sb.do(c.ctx, func(t bus.Target) error {
		op := bus.NewOpID()
		st, err := c.sb.hub.caller.Open(c.ctx, t, "exec.attach", op,
			&sandbusv1.ExecAttachRequest{Meta: &sandbusv1.RequestMeta{Op: string(op)}, ExecId: c.ID, Offset: c.received}, 0, false)
		if err != nil {
			return err
		}
		f, err := c.next(st)
		if err == nil && f.Kind == bus.FrameStarted {
			c.stream = st
			return nil
		}
		st.Close()
		if err == nil {
			err = &bus.StreamError{Rule: fmt.Sprintf("an exec begins with a started frame, not with one of kind %d", f.Kind)}
		}
		return err
	})
}

func (c *Cmd) output(f bus.Frame) error {
	if !c.overdue.IsZero() {
		began := time.Now()
		defer func() { c.overdue = c.overdue.Add(time.Since(began)) }()
	}
	switch f.Kind {
	case bus.FrameStdout:
		c.received += int64(len(f.Body))
		return writeAll(c.Stdout, f.Body)
	case bus.FrameStderr:
		c.received += int64(len(f.Body))
		return writeAll(c.Stderr, f.Body)
	case bus.FrameGap:
		c.received += int64(f.GapBytes())
		c.Omitted += int64(f.GapBytes())
		return nil
	default:
		return &bus.StreamError{Rule: fmt.Sprintf("an exec's output has no frames of kind %d", f.Kind)}
	}
}

// finish reads the end frame.
func (c *Cmd) finish(f bus.Frame) error {
	var end sandbusv1.StreamEnd
	if err := proto.Unmarshal(f.Body, &end); err != nil {
		return fmt.Errorf("%w: the end frame's body is no StreamEnd", ErrLost)
	}
	if err := bus.FromWire(end.GetError()); err != nil {
		return err
	}
	c.Running = end.GetRunning()
	c.SpoolPath, c.SpoolOmitted, c.SpoolError = end.GetSpoolPath(), end.GetSpoolOmitted(), bus.Printable(end.GetSpoolError())
	c.Usage = Usage{micros(end.GetUsage().GetUserUs()), micros(end.GetUsage().GetSystemUs()), end.GetUsage().GetMaxRssBytes()}
	c.Timing = timing(end.GetTiming())
	if c.Running {
		if c.attach && c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		return nil
	}
	if total := max(end.GetStdoutBytes()+end.GetStderrBytes(), c.Offset); total != c.received && c.stream != nil {
		return execError(&bus.StreamError{Rule: fmt.Sprintf("the end says %d bytes of output, %d came or were left out", total, c.received)})
	}
	c.Outcome, c.PipeHeld = outcome(end.GetOutcome()), end.GetPipeHeld()
	var cause error
	if c.Outcome.Kind == Aborted && c.ctx.Err() != nil {
		cause = context.Cause(c.ctx)
	} else if c.Outcome.Kind == Aborted {
		cause = c.late
	}
	return c.Outcome.asError(cause)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func timing(t *sandbusv1.Timing) Timing {
	return Timing{
		Queue: micros(t.GetQueueUs()), Start: micros(t.GetStartUs()), FirstByte: micros(t.GetFirstByteUs()),
		Run: micros(t.GetRunUs()), Drain: micros(t.GetDrainUs()),
	}
}
