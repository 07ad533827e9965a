package workerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/files"
	"github.com/sandbus/sandbus/workerd/shell"
)

// Worker serves one sandbox.
type Worker struct {
	cfg      Config
	target   bus.Target
	env      []string // of every command
	shells   *shell.Pool
	sessions *shell.Sessions
	files    *files.Root
}

// New checks a configuration. Errors name the setting, its value and what would be right.
func New(cfg Config) (*Worker, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	id := cfg.Credential.Identity()
	return &Worker{
		cfg:    cfg,
		target: bus.Target{Zone: id.Zone, Sandbox: bus.SandboxID(id.Name), Instance: bus.NewInstanceID()},
		env:    childEnv(os.Environ()),
		files:  files.New(cfg.Dir),
	}, nil
}

// Target is the instance that requests name.
func (w *Worker) Target() bus.Target { return w.target }

// errStopped is the cause with which the parts of a worker end that has ended.
var errStopped = errors.New("worker stopped")

// Run serves until ctx ends, then lets running commands go on for the stop grace, ends them, and says goodbye. Errors:
// the hub was not reached in time or refuses the credential (*bus.ConnectError), another worker has the id
// (bus.ErrDuplicate), the shell does not start.
func (w *Worker) Run(ctx context.Context) (err error) {
	lost := make(chan error, 1)
	conn, err := bus.Connect(ctx, bus.Config{
		URL: w.cfg.URL, Dial: w.cfg.Dial, Credential: w.cfg.Credential, ConnectTimeout: w.cfg.ConnectTimeout, Logger: w.cfg.Logger,
		OnClosed: tell(lost),
		OnDenied: tell(lost),
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if w.cfg.Shell != "" {
		w.shells, err = shell.NewPool(shell.Config{
			Path: w.cfg.Shell, Dir: w.cfg.Dir, Env: w.env, Max: w.cfg.Shells, Logger: w.cfg.Logger,
		})
		if err != nil {
			return err
		}
		defer w.shells.Close()
		w.sessions, err = shell.NewSessions(shell.SessionsConfig{
			Config: shell.Config{Path: w.cfg.Shell, Dir: w.cfg.Dir, Env: w.env, Logger: w.cfg.Logger},
			Bound:  w.cfg.Sessions, Idle: w.cfg.SessionIdle,
		})
		if err != nil {
			return err
		}
		defer w.sessions.CloseAll()
	}
	srv := bus.NewServer(conn, w.target, w.cfg.Logger)
	w.register(srv)
	if err := srv.Start(); err != nil {
		return err
	}
	announcer := &bus.Announcer{
		Conn: conn, Target: w.target, Hello: w.hello(), Ready: w.cfg.OnReady, Logger: w.cfg.Logger,
		Beat: func(b *sandbusv1.Beat) { b.Load = int32(srv.Load()) },
	}
	life, end := context.WithCancelCause(ctx)
	defer end(errStopped)
	announced := make(chan error, 1)
	go func() { announced <- announcer.Run(life) }()
	select {
	case <-ctx.Done():
		end(errStopped)
		err = <-announced
		announcer.Goodbye(context.Cause(ctx).Error())
	case err = <-announced: // refused: no goodbye, the id is another's
	case err = <-lost:
		err = fmt.Errorf("connection to the hub: %w", err)
		end(errStopped)
		err = errors.Join(err, <-announced)
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.StopGrace)
	defer cancel()
	srv.Stop(grace)
	return err
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

func (w *Worker) register(srv *bus.Server) {
	srv.HandleQuick("fs.stat", bus.Quick(w.files.Stat))
	bus.Handle(srv, "fs.list", noContext(w.files.List))
	bus.Handle(srv, "fs.mkdir", noContext(w.files.Mkdir))
	bus.Handle(srv, "fs.remove", noContext(w.files.Remove))
	srv.HandleQuick("fs.read", w.files.Read)
	srv.HandleStream("fs.write", w.files.Write)
	w.registerShell(srv)
	srv.HandleStream("exec.start", w.startExec)
}

// noContext adapts operations that are over before anybody could abort them.
func noContext[Req, Resp any](f func(Req) (Resp, error)) func(context.Context, Req) (Resp, error) {
	return func(_ context.Context, req Req) (Resp, error) { return f(req) }
}

func (w *Worker) hello() *sandbusv1.Hello {
	h := &sandbusv1.Hello{
		Labels: w.cfg.Labels, Capabilities: []string{"files", "exec"}, Image: w.cfg.Image,
		Arch: runtime.GOARCH, Os: runtime.GOOS, Trust: "untrusted", Slots: int32(w.cfg.Slots), Version: w.cfg.Version,
		Features: []string{"streams.1", "shell.run", "session.open", "exec.start"},
	}
	if w.cfg.Trusted {
		h.Trust = "trusted"
	}
	if w.cfg.Shell != "" {
		h.Capabilities = append(h.Capabilities, "shell")
		h.Shells = []string{w.cfg.Shell}
	}
	return h
}

// checkTimeout is a request's time limit. The bound is the one that all clocks of an exec have.
func checkTimeout(name string, ms int64, bound time.Duration) (time.Duration, error) {
	if ms < 0 || ms > bound.Milliseconds() {
		return 0, invalid("%s %d ms: want 0 (none) to %d ms (%s)", name, ms, bound.Milliseconds(), bound)
	}
	return time.Duration(ms) * time.Millisecond, nil
}
