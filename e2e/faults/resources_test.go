package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/e2e/faults/history"
	"github.com/sandbus/sandbus/internal/testenv"
)

func init() {
	scenarios["disk-full"] = scenario{
		need: needRoot,
		shape: shape{prepare: smallDisk, harness: func(_ int, s *spec) {
			s.Verbs = []history.Verb{history.Fast, history.Write, history.Write, history.Read}
		}},
		faults: fillDisk,
	}
	scenarios["memory-pressure"] = scenario{
		shape:  shape{harness: func(_ int, s *spec) { s.Hogs = 3 }},
		faults: func(ctx context.Context, w *world) error { return errors.Join(pause(ctx, 3*time.Second), w.mended(ctx)) },
	}
	scenarios["descriptors-exhausted"] = scenario{faults: descriptorsExhausted}
	scenarios["processes-exhausted"] = scenario{
		need: needRoot,
		shape: shape{
			open: true, harness: func(_ int, s *spec) { s.NoNaps = true },
			// A user of its own: the bound counts all processes that a user has on the machine.
			prepare: func(w *world) error {
				uid := 60_000 + rand.IntN(5000)
				w.workerEnv = append(w.workerEnv, fmt.Sprintf("SANDBUS_RUN_AS=%d:%d", uid, uid), fmt.Sprintf("SANDBUS_MAX_PROCS=%d", maxProcs))
				return nil
			},
		},
		faults: processesExhausted,
	}
	scenarios["rolling-upgrade"] = scenario{
		need:   previousWorker,
		shape:  shape{worker: func(*world) string { return previous.path }},
		faults: upgraded,
	}
}

func needRoot(tb testing.TB) { testenv.Need(tb, "root", os.Geteuid() == 0) }

// diskBytes is the size of the small disk: its sandbox's file to read fits, and little else.
const diskBytes = 2 << 20

// smallDisk puts the first sandbox on a file system of its own.
func smallDisk(w *world) error {
	dir := w.sandbox(0)
	if err := unix.Mount("faults", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", diskBytes)); err != nil {
		return fmt.Errorf("mount a small disk: %w", err)
	}
	w.undo = append(w.undo, func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return os.WriteFile(filepath.Join(dir, readFile), contentOf(box(0), readLines), 0o600)
}

// fillDisk fills the disk of a sandbox and frees it again. What was written before stays whole, what does not fit is refused.
func fillDisk(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		w.note("disk of %s filled", box(0))
		name := filepath.Join(w.sandbox(0), "w-fill")
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			return errors.Join(err, f.Close())
		}
		return errors.Join(pause(ctx, 2*time.Second), f.Close(), os.Remove(name))
	})
}

// descriptorsExhausted leaves a worker no descriptor more than it has.
func descriptorsExhausted(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		pid := w.workers[0].cmd.Process.Pid
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return err
		}
		var old unix.Rlimit
		tight := unix.Rlimit{Cur: uint64(len(open) + w.rng.IntN(4)), Max: 1 << 16}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
			return err
		}
		tight.Max = old.Max
		w.note("%s has %d descriptors and may have %d", box(0), len(open), tight.Cur)
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &tight, nil); err != nil {
			return err
		}
		err = pause(ctx, 2*time.Second+w.within(2*time.Second))
		return errors.Join(err, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil))
	})
}

// maxProcs is how many processes the commands of all sandboxes of a world may be.
const maxProcs = 60

// processesExhausted has a command take all processes that its user may have.
func processesExhausted(ctx context.Context, w *world) error {
	h, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	sb, err := h.Sandbox(box(0))
	if err != nil {
		return err
	}
	return w.repeat(ctx, func() error {
		w.note("processes exhausted")
		c := sb.Command("sh", "-c", fmt.Sprintf("for i in $(seq %d); do sleep 300 & done; sleep 300", 2*maxProcs))
		c.Timeout = 3 * time.Second
		err := c.Run(ctx) // ended by its clock, or by its failing to fork: both are meant
		if r, _, known := resultOf(err); !known || r == history.Lost {
			return err
		}
		return nil
	})
}

// previous is the worker of the commit before this one.
var previous struct {
	once sync.Once
	path string
	err  error
}

// previousWorker builds it, once for all runs.
func previousWorker(tb testing.TB) {
	tb.Helper()
	git := testenv.Tool(tb, "git")
	previous.once.Do(func() {
		dir, err := os.MkdirTemp("", "faults-previous-")
		if err != nil {
			previous.err = err
			return
		}
		previous.path = filepath.Join(dir, "workerd")
		script := `set -e
cd "$(` + git + ` rev-parse --show-toplevel)"
` + git + ` archive HEAD^ | tar -x -C "$1"
cd "$1"
CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$2" ./cmd/workerd`
		src := filepath.Join(dir, "src")
		err = os.Mkdir(src, 0o700)
		if err == nil {
			var out []byte
			out, err = exec.Command("sh", "-c", script, "sh", src, previous.path).CombinedOutput() //nolint:noctx,gosec // built of constants
			if err != nil {
				err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
			}
		}
		previous.err = errors.Join(err, os.RemoveAll(src))
	})
	if previous.err != nil {
		tb.Logf("the commit before this one: %v", previous.err)
	}
	testenv.Need(tb, "a previous commit", previous.err == nil)
}

// upgraded replaces the workers of the previous commit, one after the other, in good order.
func upgraded(ctx context.Context, w *world) error {
	w.worker = nil
	for i := range w.workers {
		if err := w.lead(ctx); err != nil {
			return err
		}
		w.note("%s is replaced by a newer worker", box(i))
		if err := errors.Join(w.workers[i].stop(true), w.startWorker(i)); err != nil {
			return err
		}
	}
	return w.mended(ctx)
}
