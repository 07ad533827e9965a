package bothsides

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// watching collects events until a stop condition or the test's patience ends.
type watching struct {
	events chan harnesslib.WatchEvent
	ended  chan error
	seen   []harnesslib.WatchEvent
}

// startWatch watches the directory w, and returns when that is in place.
func startWatch(t *testing.T, b *filesBox, o harnesslib.WatchOptions) *watching {
	t.Helper()
	w := &watching{events: make(chan harnesslib.WatchEvent), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancelCause(t.Context())
	ready := make(chan int, 1)
	o.Ready = func(n int) { ready <- n }
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range b.WatchWith(ctx, "w", o) {
			if err != nil {
				w.ended <- err
				return
			}
			select {
			case w.events <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel(errSource)
		<-done
	})
	select {
	case <-ready:
	case err := <-w.ended:
		require.NoError(t, err)
	}
	return w
}

// await returns when an event has come.
func (w *watching) await(t *testing.T, kind harnesslib.WatchKind, path string) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		for i, ev := range w.seen {
			if ev.Kind == kind && ev.Path == path {
				w.seen = slices.Delete(w.seen, i, i+1)
				return
			}
		}
		select {
		case ev := <-w.events:
			w.seen = append(w.seen, ev)
		case err := <-w.ended:
			require.NoError(t, err)
		case <-limit:
			require.Fail(t, "no event", "%s %s; came: %v", kind, path, w.seen)
		}
	}
}

func TestFilesWatch(t *testing.T) {
	for _, confined := range []bool{false, true} {
		t.Run(fmt.Sprintf("confined=%t", confined), func(t *testing.T) {
			b := newFilesBox(t, func(c *workerd.Config) {
				if confined {
					c.Root = c.Dir
				}
			})
			ctx := t.Context()
			b.put(t, "w/old/deep/f", "1", 0o644)
			require.NoError(t, os.Symlink("/", b.path("w/rootlink"))) // not followed
			w := startWatch(t, b, harnesslib.WatchOptions{})
			put := func(name, content string) {
				require.NoError(t, os.WriteFile(b.path("w/"+name), []byte(content), 0o644))
			}

			put("old/deep/f", "2")
			w.await(t, harnesslib.WatchWrite, "old/deep/f")
			require.NoError(t, b.WriteFile(ctx, "w/new\nname\xff", []byte("x"), 0o644))
			w.await(t, harnesslib.WatchCreate, "new\nname\xff")
			// New directories are picked up with what is in them already.
			require.NoError(t, os.MkdirAll(b.path("w/n1/n2/n3"), 0o755))
			put("n1/n2/n3/f", "x")
			w.await(t, harnesslib.WatchCreate, "n1")
			w.await(t, harnesslib.WatchCreate, "n1/n2/n3/f")
			put("n1/n2/n3/f", "yy")
			w.await(t, harnesslib.WatchWrite, "n1/n2/n3/f")
			// A directory that is renamed is watched under its new name.
			require.NoError(t, os.Rename(b.path("w/n1/n2"), b.path("w/moved")))
			w.await(t, harnesslib.WatchRename, "n1/n2")
			w.await(t, harnesslib.WatchCreate, "moved")
			w.await(t, harnesslib.WatchCreate, "moved/n3/f")
			put("moved/n3/g", "x")
			w.await(t, harnesslib.WatchCreate, "moved/n3/g")
			require.NoError(t, os.Remove(b.path("w/moved/n3/g")))
			w.await(t, harnesslib.WatchRemove, "moved/n3/g")
			require.NoError(t, os.Chmod(b.path("w/old"), 0o700))
			w.await(t, harnesslib.WatchChmod, "old")
			require.NoError(t, os.RemoveAll(b.path("w/old")))
			w.await(t, harnesslib.WatchRemove, "old/deep/f")
			w.await(t, harnesslib.WatchRemove, "old")
			require.NoError(t, os.RemoveAll(b.path("w")))
			for {
				select {
				case <-w.events:
					continue
				case err := <-w.ended:
					require.ErrorIs(t, err, fs.ErrNotExist)
				case <-time.After(10 * time.Second):
					require.Fail(t, "the watch outlives its directory")
				}
				break
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		b := newFilesBox(t, nil)
		b.put(t, "f", "", 0o644)
		for dir, want := range map[string]string{"absent": "not found", "f": "not a directory", "": "path is empty"} {
			for _, err := range b.Watch(t.Context(), dir) {
				require.ErrorContains(t, err, want)
			}
		}
	})
	t.Run("bounded, and says so", func(t *testing.T) {
		b := newFilesBox(t, nil)
		for i := range 20 {
			require.NoError(t, os.MkdirAll(b.path(fmt.Sprintf("w/%02d", i)), 0o755))
		}
		w := startWatch(t, b, harnesslib.WatchOptions{MaxDirectories: 5})
		w.await(t, harnesslib.WatchLost, "04")
		flat := startWatch(t, b, harnesslib.WatchOptions{Flat: true})
		require.NoError(t, os.WriteFile(b.path("w/00/f"), nil, 0o644))
		require.NoError(t, os.WriteFile(b.path("w/f"), nil, 0o644))
		flat.await(t, harnesslib.WatchCreate, "f")
		require.Empty(t, flat.seen)
	})
	t.Run("a slow reader is told what it missed", func(t *testing.T) {
		b := newFilesBox(t, nil)
		require.NoError(t, os.Mkdir(b.path("w"), 0o755))
		w := startWatch(t, b, harnesslib.WatchOptions{})
		n := 40_000
		for i := range n { // nobody takes them
			require.NoError(t, os.Symlink("x", b.path(fmt.Sprintf("w/%060d", i))))
		}
		created, lost := 0, false
		for !lost {
			select {
			case ev := <-w.events:
				if ev.Kind == harnesslib.WatchCreate {
					created++
				}
				lost = ev.Kind == harnesslib.WatchLost
			case <-time.After(20 * time.Second):
				require.Fail(t, "nothing was reported lost", "%d of %d events came", created, n)
			}
		}
		require.Less(t, created, n)
	})
	t.Run("break and the context's end leave nothing", func(t *testing.T) {
		b := newFilesBox(t, nil)
		for range 3 {
			for _, err := range b.WatchWith(t.Context(), ".", harnesslib.WatchOptions{Ready: func(int) { b.put(t, "f", "x", 0o644) }}) {
				require.NoError(t, err)
				break
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		for _, err := range b.WatchWith(ctx, ".", harnesslib.WatchOptions{Ready: func(int) { cancel(errSource) }}) {
			require.ErrorIs(t, err, errSource)
		}
		b.stopWorker() // waits for what is under way
	})
}
