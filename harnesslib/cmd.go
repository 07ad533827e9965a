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
	// Timeout ends the command after that time; zero means none. At most 7 days.
	Timeout time.Duration
	// IdleTimeout ends the command after that time without output; zero means none. At most 7 days.
	IdleTimeout time.Duration
	// OutputLimit is how many bytes of output are kept: one more ends the command with ErrOutputLimit, unless HeadTail is
	// set. Zero means 8 MiB where Output or CombinedOutput collects it or HeadTail is set, and none otherwise. At most
	// 1 GiB, with HeadTail 64 MiB.
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
	stream   *bus.Stream
	ctx      context.Context //nolint:containedctx // from Start to Wait, as in os/exec
	feeder   sync.WaitGroup
	fed      context.CancelCauseFunc
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
// its output is collected and it has no Stdin, it takes the fast tier: a shell that is already there.
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

// collectedBytes is the limit of output that is held in memory.
const collectedBytes = 8 << 20

func (c *Cmd) limitOutput() {
	if c.OutputLimit == 0 {
		c.OutputLimit = collectedBytes
	}
}

// collect runs a command whose output is wanted at the end: a script without input on the fast tier.
func (c *Cmd) collect(ctx context.Context) error {
	fast := c.Script != "" && c.Stdin == nil && c.ID == "" && c.IdleTimeout == 0 && c.Grace == 0 && !c.HeadTail && !c.Spool && !c.Detach &&
		c.MemoryLimit == 0 && c.Terminal == nil && c.OutputLimit <= collectedBytes
	if !fast {
		return c.Run(ctx)
	}
	return c.runFast(ctx)
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
	if c.ID != "" {
		if _, err := bus.ParseOpID(c.ID); err != nil {
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
	op := bus.NewOpID()
	req := &sandbusv1.ShellRunRequest{
		Meta: &sandbusv1.RequestMeta{Op: string(op)}, Env: env, TimeoutMs: atLeastOneMs(c.Timeout), OutputLimit: c.OutputLimit,
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
			c.sb.abort(call, t, op, cancel)
		})
		defer stop()
		return c.sb.hub.caller.Request(call, t, "shell.run", op, req, resp)
	})
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

// abort asks for an op's end, and ends the call when that is not confirmed in time.
func (s *Sandbox) abort(call context.Context, t bus.Target, op bus.OpID, giveUp context.CancelCauseFunc) {
	limit := time.AfterFunc(abortWindow, func() {
		s.unheard(t)
		giveUp(errUnconfirmed)
	})
	context.AfterFunc(call, func() { limit.Stop() })
	ask, cancel := context.WithTimeout(call, abortWindow)
	defer cancel()
	_ = s.hub.caller.Control(ask, t, op, "abort", &sandbusv1.AbortRequest{Reason: "the caller's context ended"},
		&sandbusv1.AbortResponse{}) // what counts is the op's own end
}

// execError gives the errors of the fabric the names of this package.
func execError(err error) error {
	var be *bus.Error
	if errors.As(err, &be) && be.Code == sandbusv1.Code_CODE_NOT_FOUND {
		return fmt.Errorf("%w: %w", ErrUnknownExec, err)
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
	f, err := st.Next(c.ctx)
	if err == nil || c.ctx.Err() == nil {
		return f, err
	}
	limit, cancel := context.WithTimeoutCause(context.WithoutCancel(c.ctx), abortWindow, errUnconfirmed)
	defer cancel()
	_ = st.Abort(limit, "the caller's context ended") // what counts is the op's own end
	for {
		f, err := st.Next(limit)
		if errors.Is(err, errUnconfirmed) {
			c.sb.unheard(st.Target())
		}
		if err != nil || f.Kind == bus.FrameEnd || f.Kind == bus.FrameStarted {
			return f, err
		}
		if err := c.output(f); err != nil {
			return f, err
		}
	}
}

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
			return errors.Join(err, c.stream.Abort(limit, "the caller's writer failed"))
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
	c.SpoolPath, c.SpoolOmitted, c.SpoolError = end.GetSpoolPath(), end.GetSpoolOmitted(), end.GetSpoolError()
	c.Usage = Usage{micros(end.GetUsage().GetUserUs()), micros(end.GetUsage().GetSystemUs()), end.GetUsage().GetMaxRssBytes()}
	c.Timing = timing(end.GetTiming())
	if c.Running {
		if c.attach && c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		return nil
	}
	c.Outcome, c.PipeHeld = outcome(end.GetOutcome()), end.GetPipeHeld()
	var cause error
	if c.Outcome.Kind == Aborted && c.ctx.Err() != nil {
		cause = context.Cause(c.ctx)
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
