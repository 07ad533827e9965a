package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/busx"
)

// WorkerConfig says how to reach a sandbox through a worker that is started in it.
type WorkerConfig struct {
	Config

	// Worker is the program workerd in the sandbox: a path, or a name that is looked up in PATH there; empty means workerd.
	Worker string
	// InstallWorker is a workerd on this machine that is copied into the sandbox where Worker is not there: into a private
	// directory below ${TMPDIR:-/tmp}, which Close removes. It must be static and made for the sandbox. Empty means that
	// nothing is copied.
	InstallWorker string
}

// Worker starts workerd through the prefix and speaks the protocol of the bus over its standard input and output: files
// are native, and commands run as they do on the bus. The worker is started when it is first needed, and anew when it
// has ended; what it had under way then is lost.
//
// Where no worker can be started operations take the shell way, Transport; each is counted as a fallback. One that is
// not there, and one that does not run there, is not looked for again; a prefix that leads nowhere is tried again after
// a while.
type Worker struct {
	cfg   WorkerConfig
	log   *slog.Logger
	shell *Transport
	*base

	turn chan struct{} // has one element while somebody has the fields below
	live *workerLine   // nil while there is none
	// path is the program that was found or copied; empty means that nobody has looked yet.
	path      string
	installed string    // the directory that was made for it; empty means none
	never     error     // why no worker is started any more; nil means that it may be
	rests     time.Time // until then none is started
}

var _ transport.Transport = (*Worker)(nil)

// NewWorker makes a transport that runs a worker at the far end of the prefix. It starts nothing.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	b, err := newBase(cfg.Config)
	if err != nil {
		return nil, err
	}
	if cfg.Worker == "" {
		cfg.Worker = "workerd"
	}
	if strings.IndexByte(cfg.Worker, 0) >= 0 {
		return nil, errors.New("command transport: Worker has a NUL byte")
	}
	if cfg.InstallWorker != "" {
		if info, err := os.Stat(cfg.InstallWorker); err != nil || !info.Mode().IsRegular() {
			return nil, fmt.Errorf("command transport: InstallWorker %q: want a workerd on this machine: %w", cfg.InstallWorker, errors.Join(err, os.ErrInvalid))
		}
	}
	shell, err := New(cfg.Config)
	if err != nil {
		return nil, err
	}
	return &Worker{cfg: cfg, log: b.log, base: b, shell: shell, turn: make(chan struct{}, 1)}, nil
}

// FastTier says that files are native, until it has shown that no worker can be started.
func (t *Worker) FastTier() transport.FastTier {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.never != nil {
		return t.shell.FastTier()
	}
	return transport.FastNative
}

// Stats counts what was done so far, the shell way included.
func (t *Worker) Stats() Stats {
	own, shell := t.base.Stats(), t.shell.Stats()
	return Stats{own.Processes + shell.Processes, own.Fallbacks + shell.Fallbacks, own.Waiting + shell.Waiting}
}

// Exec runs a command: see busx.
func (t *Worker) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	ctx, leave, err := t.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	tr, err := t.ready(ctx)
	if err != nil {
		return nil, notRun(ctx, err)
	}
	res, err := tr.Exec(ctx, c)
	if c.Repeatable && !c.Streaming() && c.Stdin == nil && ctx.Err() == nil && errors.Is(err, transport.ErrLost) {
		n := t.fallbacks.Add(1)
		t.log.WarnContext(ctx, "ran a lost command again", "error", err, "fallbacks", n)
		if tr, err = t.ready(ctx); err != nil {
			return nil, notRun(ctx, err)
		}
		res, err = tr.Exec(ctx, c)
	}
	return res, closedErr(ctx, err)
}

// closedErr gives what our Close has aborted its name.
func closedErr(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), transport.ErrClosed) && !errors.Is(err, transport.ErrClosed) {
		if _, aborted := errors.AsType[*transport.AbortError](err); aborted {
			return transport.ErrClosed
		}
		return errors.Join(transport.ErrClosed, err)
	}
	return err
}

// Files are the sandbox's files.
func (t *Worker) Files() transport.Files { return workerFiles{t} }

// Close ends what runs, the worker and the lines, and removes what was copied in.
func (t *Worker) Close() error {
	t.shut()
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.live != nil {
		t.live.close()
		t.live = nil
	}
	var err error
	if t.installed != "" {
		err = t.uninstall()
	}
	return errors.Join(err, t.shell.Close())
}

// ready is what serves an operation: the worker, started if need be, or the shell way. Errors: the context's cause.
func (t *Worker) ready(ctx context.Context) (transport.Transport, error) {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-t.turn }()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if t.live != nil {
		select {
		case <-t.live.direct.Done():
			t.log.WarnContext(ctx, "the worker has ended", "state", t.live.state())
			t.bury(t.live.close)
			t.live = nil
		default:
			return t.live.over, nil
		}
	}
	err := t.never
	if err == nil && time.Now().Before(t.rests) {
		err = fmt.Errorf("%w: the last try to start a worker is less than %s ago", transport.ErrUnreachable, restAfter)
	}
	if err == nil {
		if t.live, err = t.start(ctx); err == nil {
			return t.live.over, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, errNoWorker) {
			t.never = err
		} else {
			t.rests = time.Now().Add(restAfter)
		}
		t.log.WarnContext(ctx, "no worker, the shell serves", "error", err)
	}
	t.fallbacks.Add(1)
	return t.shell, nil
}

// errNoWorker says that there is a shell at the far end, and no worker that would run there.
var errNoWorker = errors.New("no worker in the sandbox")

// start starts a worker, which is copied in before if need be.
func (t *Worker) start(ctx context.Context) (*workerLine, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.cfg.startTimeout(),
		fmt.Errorf("%w: %s: no answer of a worker within %s", transport.ErrUnreachable, t.cfg.Prefix[0], t.cfg.startTimeout()))
	defer cancel()
	if t.path == "" {
		t.path = t.cfg.Worker
	}
	l, err := t.open(ctx, t.path)
	if errors.Is(err, errNotThere) && t.cfg.InstallWorker != "" && t.installed == "" {
		if err := t.install(ctx); err != nil {
			return nil, err
		}
		t.path = t.installed + "/workerd"
		l, err = t.open(ctx, t.path)
	}
	return l, err
}

// open starts the program that is a worker.
func (t *Worker) open(ctx context.Context, path string) (*workerLine, error) {
	t.processes.Add(1)
	return openWorker(ctx, &t.cfg.Config, path, t.log)
}

// removal is how long the removal of what was copied in may take.
const removal = 10 * time.Second

// install copies the worker in.
func (t *Worker) install(ctx context.Context) error {
	f, err := os.Open(t.cfg.InstallWorker)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoWorker, err)
	}
	defer func() { _ = f.Close() }() // it is only read
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoWorker, err)
	}
	// The name is nobody else's, so a directory that is there already is an error. The last word is where it is.
	script := fmt.Sprintf(`umask 077; d="${TMPDIR:-/tmp}"/sandbus-worker-%s && mkdir "$d" || exit 1
{ cat >"$d/new" && [ "$(wc -c <"$d/new")" -eq %d ] && chmod 700 "$d/new" && mv "$d/new" "$d/workerd" && cd "$d" && pwd -P; } || { rm -rf "$d"; exit 1; }`,
		strings.ToLower(rand.Text()), info.Size())
	res, err := t.shell.Exec(ctx, transport.Command{Script: script, Stdin: f})
	if err != nil {
		return fmt.Errorf("copy the worker in: %w", err)
	}
	dir := strings.TrimSuffix(string(res.Stdout), "\n")
	if res.ExitCode == nil || *res.ExitCode != 0 || !strings.HasPrefix(dir, "/") {
		return fmt.Errorf("%w: it could not be copied in: %.500s", errNoWorker, strings.TrimSpace(string(res.Stderr)))
	}
	t.installed = dir
	return nil
}

// uninstall removes what was copied in.
func (t *Worker) uninstall() error {
	ctx, cancel := context.WithTimeout(context.Background(), removal)
	defer cancel()
	res, err := t.shell.Exec(ctx, transport.Command{Script: "rm -rf -- " + transport.Quote(t.installed)})
	if errors.Is(err, transport.ErrUnreachable) { // the sandbox is gone, and the copy with it
		return nil
	}
	if err == nil && (res.ExitCode == nil || *res.ExitCode != 0) {
		err = errors.New(strings.TrimSpace(string(res.Stderr)))
	}
	if err != nil {
		return fmt.Errorf("remove the worker from %s: %w", t.installed, err)
	}
	t.installed = ""
	return nil
}

// over makes the transport of a worker.
func over(l *workerLine) transport.Transport { return busx.New(l.direct.Sandbox) }
