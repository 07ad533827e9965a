package workerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/workerd/execs"
	"github.com/sandbus/sandbus/workerd/proc"
)

// lineage names all that the workers of one sandbox on this machine have started, one after the other: after a crash the
// next one finds and ends what was left. It is a random name in a file that the living worker holds locked, so that
// no worker ever ends what belongs to one that lives.
type lineage struct {
	name string
	file *os.File // nil: nothing is remembered
}

// takeLineage takes up the lineage of a sandbox, and ends what a predecessor has left. Without a directory, or when
// another worker holds the file, it is a new one that nobody takes up.
func takeLineage(ctx context.Context, dir string, target bus.Target) (*lineage, error) {
	l := &lineage{name: rand.Text()}
	if dir == "" {
		return l, nil
	}
	path := filepath.Join(dir, fmt.Sprintf("worker-%s.%s", target.Zone, target.Sandbox))
	var f *os.File
	err := proc.AsSelf(func() (err error) { // it is not for commands
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return fmt.Errorf("state file: %w", err)
		}
		return nil
	})
	if err != nil {
		return l, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return l, errors.Join(fmt.Errorf("state file %s: %w", path, err), f.Close())
	}
	old := make([]byte, 128)
	n, _ := f.ReadAt(old, 0) // a short read is what is there
	if name := strings.TrimSpace(string(old[:n])); len(name) == len(l.name) {
		execs.EndLeftovers(ctx, name)
		l.name = name
	} else if _, err := f.WriteAt([]byte(l.name+"\n"), 0); err != nil {
		return l, errors.Join(fmt.Errorf("state file: %w", err), f.Close())
	}
	l.file = f
	return l, nil
}

func (l *lineage) release() {
	if l.file != nil {
		_ = l.file.Close() // releases the lock
	}
}
