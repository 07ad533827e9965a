package faults

import (
	"context"
	"errors"
	"fmt"
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
		shape: shape{harness: func(_ int, s *spec) { s.Hogs = 3 }},
		faults: func(ctx context.Context, w *world) error {
			return errors.Join(pause(ctx, 3*time.Second), w.mended(ctx))
		},
	}
	scenarios["descriptors-exhausted"] = scenario{faults: descriptorsExhausted}
	scenarios["rolling-upgrade"] = scenario{
		need:   needPrevious,
		shape:  shape{worker: func(*world) string { return previous.path() }},
		faults: upgraded,
	}
}

func needRoot(tb testing.TB) {
	tb.Helper()
	testenv.Need(tb, "root", os.Geteuid() == 0)
}

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

// built is a static worker that is built once for all runs.
type built struct {
	once sync.Once
	dir  string
	err  error
}

// previous is the worker of the commit before this one.
var previous built

func (b *built) path() string { return filepath.Join(b.dir, "workerd") }

// remove deletes what was built.
func (b *built) remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// build runs a shell script that makes the worker in $1; its sources may be below.
func (b *built) build(script string) error {
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "faults-worker-"); b.err != nil {
			return
		}
		out, err := exec.Command("sh", "-c", "set -e\n"+script+"\nCGO_ENABLED=0 go build -buildvcs=false -trimpath -o \"$1/workerd\" ./cmd/workerd", "sh", b.dir).CombinedOutput()
		if err != nil {
			b.err = fmt.Errorf("build a worker: %w: %s", err, strings.TrimSpace(string(out)))
		}
	})
	return b.err
}

// needPrevious builds the worker of the commit before this one, or skips.
func needPrevious(tb testing.TB) {
	tb.Helper()
	testenv.Tool(tb, "git")
	err := previous.build(`cd "$(git rev-parse --show-toplevel)"; mkdir "$1/src"; git archive HEAD^ | tar -x -C "$1/src"; cd "$1/src"`)
	if err != nil {
		tb.Log(err)
	}
	testenv.Need(tb, "a previous commit", err == nil)
}

// upgraded replaces the workers of the previous commit, one after the other, in good order.
func upgraded(ctx context.Context, w *world) error {
	w.worker = nil
	for i := range w.workers {
		if err := w.lead(ctx); err != nil {
			return err
		}
		w.note("%s is replaced by a newer worker", box(i))
		if err := errors.Join(w.workers[i].stop(), w.startWorker(i)); err != nil {
			return err
		}
	}
	return w.mended(ctx)
}
