package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// ErrNoSession says that the sandbox has no such session of this harness, or no longer; nothing ran.
var ErrNoSession = errors.New("no such session")

// Session is a named shell of a sandbox whose state (directory, variables, functions, options) stays from one command
// to the next. Its commands run one after the other, in the order in which they arrive. It belongs to the identity of
// the harness, not to this connection. Its methods may be called at once.
type Session struct {
	sb   *Sandbox
	name bus.SessionID
}

// Session opens a session in a directory (empty means the sandbox's), or joins the one that this harness has open under
// that name, wherever that is. It ends by Close, or when it is not used for a while (10 minutes, unless the worker was
// told otherwise). Errors: the name is illegal; ErrBusy when the sandbox has as many sessions as it may.
func (s *Sandbox) Session(ctx context.Context, name, dir string) (*Session, error) {
	id, err := bus.ParseSessionID(name)
	if err != nil {
		return nil, err
	}
	req := &sandbusv1.SessionOpenRequest{Name: name}
	req.Cwd, req.CwdRaw = bus.ToText(dir)
	err = s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "session.open", "", req, &sandbusv1.SessionOpenResponse{})
	})
	if err != nil {
		return nil, fmt.Errorf("open session %s: %w", name, sessionError(err, false))
	}
	return &Session{s, id}, nil
}

// Name is the session's name.
func (s *Session) Name() string { return string(s.name) }

// Close ends the session: a command that runs is aborted, and nothing below its shell is alive afterwards. Errors:
// ErrNoSession.
func (s *Session) Close(ctx context.Context) error {
	err := s.sb.do(ctx, func(t bus.Target) error {
		return s.sb.hub.caller.Request(ctx, t, "session.close", "", &sandbusv1.SessionCloseRequest{Name: string(s.name)},
			&sandbusv1.SessionCloseResponse{})
	})
	if err != nil {
		return fmt.Errorf("close session %s: %w", s.name, sessionError(err, true))
	}
	return nil
}

// SessionInfo is what a sandbox knows of a session.
type SessionInfo struct {
	Name   string
	Dir    string        // where its shell was when its last command ended
	Busy   bool          // a command runs
	Queued int           // commands that wait
	Unused time.Duration // since its last command ended; zero when busy
	Age    time.Duration // since it was opened
}

// Sessions lists the sessions of this harness, by name.
func (s *Sandbox) Sessions(ctx context.Context) ([]SessionInfo, error) {
	resp := &sandbusv1.SessionListResponse{}
	op := bus.NewOpID()
	req := &sandbusv1.SessionListRequest{Meta: &sandbusv1.RequestMeta{Op: string(op)}}
	err := s.do(ctx, func(t bus.Target) error { return s.hub.caller.Request(ctx, t, "session.list", op, req, resp) })
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", sessionError(err, false))
	}
	var list []SessionInfo
	for _, m := range resp.GetSessions() {
		list = append(list, SessionInfo{
			Name: m.GetName(), Dir: bus.FromText(m.GetCwd(), m.GetCwdRaw()), Busy: m.GetBusy(), Queued: int(m.GetQueued()),
			Unused: time.Duration(m.GetUnusedMs()) * time.Millisecond, Age: time.Duration(m.GetAgeMs()) * time.Millisecond,
		})
	}
	return list, nil
}

// SessionCmd is a command of a session. It may be run several times.
type SessionCmd struct {
	// Script is shell text, which means what "bash -c" would make of it, but that it runs in the session's shell itself.
	Script string
	// Dir is where it runs; empty means where the session is. The session goes back from there, unless the command has
	// changed the directory itself.
	Dir string
	// Env is set for this command only, NAME=value each.
	Env []string
	// Stdin is the whole standard input; nil means /dev/null.
	Stdin []byte
	// Timeout ends the command after that time, and spares the session; zero means none. At most 7 days.
	Timeout time.Duration
	// OutputLimit is how many bytes of output are kept; one more ends the command. Zero means 8 MiB; at most 32 MiB.
	OutputLimit int64

	session *Session
}

// Command prepares a command.
func (s *Session) Command(script string) *SessionCmd { return &SessionCmd{Script: script, session: s} }

// Run runs a script: Command(script).Run.
func (s *Session) Run(ctx context.Context, script string) (*SessionResult, error) {
	return s.Command(script).Run(ctx)
}

// SessionResult is how a session's command ended.
type SessionResult struct {
	Stdout   []byte
	Stderr   []byte
	Outcome  Outcome
	PipeHeld bool // a process that the command left behind still held its output
	// Lost says that the session's shell ended with this command (exit, exec, a signal, an interrupt that it did not obey):
	// its state is gone, and the next command begins on a new shell in the same directory.
	Lost bool
	// Fresh says that the command began on a new shell: it is the session's first, or the state was lost before.
	Fresh bool
	// Dir is the session's directory after the command; empty when it cannot be seen.
	Dir string
	// Gone is where the session was, when that directory was deleted: the command ran in "/". Else empty.
	Gone string
}

// Run runs the command when those before it have ended. The end of ctx aborts it, also while it waits. Errors: as those
// of Cmd.Wait, the result being there with an *ExitError; ErrNoSession; ErrBusy when too many commands wait for the
// session.
func (c *SessionCmd) Run(ctx context.Context) (*SessionResult, error) {
	prepared := Cmd{sb: c.session.sb, Script: c.Script, Env: c.Env, Timeout: c.Timeout}
	if c.Script == "" {
		prepared.Script = ":" // an empty script does nothing, well
	}
	if err := prepared.check(); err != nil {
		return nil, err
	}
	env, err := prepared.env()
	if err != nil {
		return nil, err
	}
	op := bus.NewOpID()
	req := &sandbusv1.ShellRunRequest{
		Meta: &sandbusv1.RequestMeta{Op: string(op)}, Session: string(c.session.name), Env: env, TimeoutMs: atLeastOneMs(c.Timeout),
		Stdin: c.Stdin, HasStdin: c.Stdin != nil, OutputLimit: c.OutputLimit,
	}
	req.Script, req.ScriptRaw = bus.ToText(c.Script)
	req.Cwd, req.CwdRaw = bus.ToText(c.Dir)
	resp := &sandbusv1.ShellRunResponse{}
	sb := c.session.sb
	err = sb.do(ctx, func(t bus.Target) error {
		call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { sb.abort(call, t, op, context.Cause(ctx), cancel) })()
		return sb.hub.caller.Request(call, t, "shell.run", op, req, resp)
	})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", c.session.name, sessionError(err, true))
	}
	res := &SessionResult{
		Stdout: resp.GetStdout(), Stderr: resp.GetStderr(), Outcome: outcome(resp.GetOutcome()), PipeHeld: resp.GetPipeHeld(),
		Lost: resp.GetSessionLost(), Fresh: resp.GetSessionFresh(),
		Dir: bus.FromText(resp.GetCwd(), resp.GetCwdRaw()), Gone: bus.FromText(resp.GetCwdGone(), resp.GetCwdGoneRaw()),
	}
	var cause error
	if res.Outcome.Kind == Aborted && ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	err = res.Outcome.asError(cause)
	if ee, ok := errors.AsType[*ExitError](err); ok {
		ee.Stderr = res.Stderr[max(0, len(res.Stderr)-32<<10):]
	}
	return res, err
}

// sessionError gives the errors of the fabric the names of this package. What is not found is the session, where a
// session is asked for.
func sessionError(err error, named bool) error {
	if be, ok := errors.AsType[*bus.Error](err); ok && named && be.Code == sandbusv1.Code_CODE_NOT_FOUND {
		return fmt.Errorf("%w: %w", ErrNoSession, err)
	}
	return execError(err)
}
