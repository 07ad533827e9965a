package workerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/dial"
	"github.com/sandbus/sandbus/workerd/execs"
	"github.com/sandbus/sandbus/workerd/files"
	"github.com/sandbus/sandbus/workerd/leases"
	"github.com/sandbus/sandbus/workerd/proc"
	"github.com/sandbus/sandbus/workerd/search"
	"github.com/sandbus/sandbus/workerd/shell"
)

// Worker serves one sandbox.
type Worker struct {
	cfg      Config
	target   bus.Target
	env      []string // of every command
	rules    *proc.Rules
	shells   *shell.Pool
	sessions *shell.Sessions
	execs    *execs.Manager
	leases   *leases.Table
	files    *files.Root
	dial     *dial.Dialer
	search   *search.Root

	claiming sync.Mutex     // orders the claims on execs (see view.claim)
	feeders  sync.WaitGroup // of streams that were replaced; they end with their exec
}

// New checks a configuration. Errors name the setting, its value and what would be right.
func New(cfg Config) (*Worker, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	tree, err := files.Open(files.Config{Dir: cfg.Dir, Root: cfg.Root, ReadOnly: cfg.ReadOnly})
	if err != nil {
		return nil, err
	}
	found, err := search.Open(search.Config{Dir: cfg.Dir, Root: cfg.Root})
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	id := cfg.Credential.Identity()
	return &Worker{
		cfg:    cfg,
		target: bus.Target{Zone: id.Zone, Sandbox: bus.SandboxID(id.Name), Instance: bus.NewInstanceID()},
		env:    childEnv(cfg.RunAs, os.Environ()),
		rules:  cfg.rules(),
		files:  tree,
		dial:   dial.New(cfg.DialAnywhere),
		search: found,
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
		Renew: w.cfg.Renew, CA: w.cfg.CA, ServerName: w.cfg.ServerName,
		OnClosed: tell(lost),
		OnDenied: tell(lost),
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	bulk, err := bus.Connect(ctx, bus.Config{
		URL: w.cfg.URL, Dial: w.cfg.Dial, Credential: w.cfg.Credential, ConnectTimeout: w.cfg.ConnectTimeout, Logger: w.cfg.Logger,
		Name: w.cfg.Credential.Identity().String() + " (bulk)", OnClosed: tell(lost), OnDenied: tell(lost),
	})
	if err != nil {
		return err
	}
	defer bulk.Close()
	defer w.own()()
	if w.cfg.RunAs != nil {
		if err := proc.ActOnFilesAs(*w.cfg.RunAs); err != nil {
			return fmt.Errorf("run as %d:%d: %w", w.cfg.RunAs.UID, w.cfg.RunAs.GID, err)
		}
	}
	line, err := takeLineage(ctx, w.cfg.StateDir, w.target)
	if err != nil {
		w.cfg.Logger.Warn("what a crash leaves will not be found", "error", err)
	}
	defer line.release()
	w.env = setenv(w.env, "SANDBUS_LINEAGE", line.name)
	w.execs = execs.NewManager(execs.Config{
		Shell: w.cfg.Shell, SpoolDir: w.cfg.SpoolDir, SpoolTotal: w.cfg.SpoolTotal, Max: w.cfg.MaxExecs, Rules: w.rules, Logger: w.cfg.Logger,
	})
	defer w.execs.Close()
	defer func() { _ = errors.Join(w.files.Close(), w.search.Close()) }() // nothing is written to them
	if w.cfg.Shell != "" {
		w.shells, err = shell.NewPool(shell.Config{
			Path: w.cfg.Shell, Dir: w.cfg.Dir, Env: w.env, Max: w.cfg.Shells, Rules: w.rules, Logger: w.cfg.Logger,
		})
		if err != nil {
			return err
		}
		defer w.shells.Close()
		w.sessions, err = shell.NewSessions(shell.SessionsConfig{
			Config: shell.Config{Path: w.cfg.Shell, Dir: w.cfg.Dir, Env: w.env, Rules: w.rules, Logger: w.cfg.Logger},
			Bound:  w.cfg.Sessions, Idle: w.cfg.SessionIdle,
		})
		if err != nil {
			return err
		}
		defer w.sessions.CloseAll()
	}
	w.leases, err = leases.NewTable(leases.Config{Slots: w.cfg.Slots, Keep: w.cfg.LeaseKeep, Ended: w.leaseEnded, Left: w.holderLeft})
	if err != nil {
		return err
	}
	defer w.leases.Close()
	srv := bus.NewServer(conn, w.target, w.cfg.Logger)
	srv.UseBulk(bulk)
	w.register(srv)
	if err := srv.Start(); err != nil {
		return err
	}
	var draining atomic.Bool
	announcer := &bus.Announcer{
		Conn: conn, Target: w.target, Hello: w.hello(), Ready: w.cfg.OnReady, Logger: w.cfg.Logger,
		Beat: func(b *sandbusv1.Beat) {
			b.Load, b.Used, b.Draining = int32(srv.Load()), int32(w.leases.Used()), draining.Load()
		},
	}
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(errStopped)
	announced := make(chan error, 1)
	go func() { announced <- announcer.Run(life) }()
	select {
	case <-ctx.Done():
	case err = <-announced: // refused: the id is another's
		announced <- nil
	case err = <-lost:
		err = fmt.Errorf("connection to the hub: %w", err)
	}
	draining.Store(true)
	srv.Drain()
	announcer.BeatNow()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.StopGrace)
	defer cancel()
	defer context.AfterFunc(grace, w.dial.Stop)()
	if err == nil {
		w.execs.Wait(grace)
	}
	end(errStopped)
	if aerr := <-announced; err == nil {
		err = aerr
	}
	w.execs.Close()
	w.feeders.Wait()
	srv.Stop(grace)
	if err == nil {
		announcer.Goodbye(context.Cause(ctx).Error())
	}
	return err
}

// own takes on the duties of a process that is this worker's alone. It returns what ends them.
func (w *Worker) own() (stop func()) {
	if !w.cfg.OwnProcess {
		return func() {}
	}
	if err := proc.ProtectSelf(); err != nil {
		w.cfg.Logger.Debug("OOM score not lowered", "error", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := proc.Reap(ctx); err != nil {
			w.cfg.Logger.Warn("orphans are not reaped", "error", err)
		}
	}()
	return func() {
		cancel(errStopped)
		<-done
	}
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
	bus.HandleOnce(srv, "fs.mkdir", noContext(w.files.Mkdir))
	bus.HandleOnce(srv, "fs.remove", noContext(w.files.Remove))
	bus.HandleOnce(srv, "fs.rename", noContext(w.files.Rename))
	bus.HandleOnce(srv, "fs.chmod", noContext(w.files.Chmod))
	bus.HandleOnce(srv, "fs.symlink", noContext(w.files.Symlink))
	bus.Handle(srv, "fs.readlink", noContext(w.files.Readlink))
	bus.Handle(srv, "fs.mime", noContext(w.files.Mime))
	bus.HandleOnce(srv, "fs.edit", noContext(w.files.Edit))
	bus.HandleOnce(srv, "fs.copy", w.files.Copy)
	bus.HandleOp(srv, "fs.hash", w.files.Hash)
	bus.HandleOp(srv, "fs.batch", w.files.Batch)
	srv.HandleStream("fs.upload", w.files.Upload)
	srv.HandleStream("fs.pack", w.files.Pack)
	srv.HandleStream("fs.unpack", w.files.Unpack)
	srv.HandleStream("fs.watch", w.files.Watch)
	srv.HandleQuick("fs.read", w.files.Read)
	srv.HandleStream("fs.write", w.files.Write)
	bus.HandleOp(srv, "fs.walk", w.search.Walk)
	bus.HandleOp(srv, "fs.glob", w.search.Glob)
	bus.HandleOp(srv, "fs.grep", w.search.Grep)
	bus.Handle(srv, "fs.resolve", noContext(w.search.Resolve))
	w.registerLeases(srv)
	w.registerShell(srv)
	srv.HandleRepeatable("exec.start", w.startExec)
	srv.HandleStream("exec.attach", w.attachExec)
	bus.Handle(srv, "exec.list", noContext(w.listExecs))
	bus.HandleControl(srv, "signal", w.signalExec)
	bus.HandleControl(srv, "resize", w.resizeExec)
	srv.OnAbort(w.abortExec)
	srv.HandleStream("net.dial", w.dial.Serve)
}

// noContext adapts operations that are over before anybody could abort them.
func noContext[Req, Resp any](f func(Req) (Resp, error)) func(context.Context, Req) (Resp, error) {
	return func(_ context.Context, req Req) (Resp, error) { return f(req) }
}

func (w *Worker) hello() *sandbusv1.Hello {
	h := &sandbusv1.Hello{
		Labels: w.cfg.Labels, Capabilities: []string{"files", "exec"}, Image: w.cfg.Image,
		Arch: runtime.GOARCH, Os: runtime.GOOS, Trust: "untrusted", Slots: int32(w.cfg.Slots), Version: w.cfg.Version,
		Features: []string{"streams.1", "shell.run", "session.open", "exec.start", "exec.attach", "terminals", "net.dial", "leases"},
	}
	h.Worker, h.Commands, h.Files = w.privileges()
	h.Capabilities = append(h.Capabilities, "dial")
	h.Features = append(h.Features, "net.dial")
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
