package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// The bounds of a watch.
const (
	defaultWatched = 8192
	maxWatched     = 65_536
	maxWatchQueue  = 8192     // events that the caller has not taken
	maxWatchBatch  = 24 << 10 // bytes of events in one frame, below bus.ChunkBytes with room for the longest path
)

// Watch serves fs.watch.
func (r *Root) Watch(req *bus.Request) {
	var m sandbusv1.WatchRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	given, abs, err := r.resolve(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	w, err := r.newWatcher(abs, &m)
	if err != nil {
		req.Fail(wrap("watch", given, err))
		return
	}
	defer w.close()
	out, err := req.Outgoing(0)
	if err != nil {
		req.Fail(err)
		return
	}
	started, err := proto.Marshal(&sandbusv1.WatchStarted{Directories: int32(len(w.dirs))})
	if err == nil {
		err = out.Write(ctx, bus.FrameStarted, started)
	}
	if err == nil {
		err = w.run(ctx, out)
	}
	if ctx.Err() != nil { // the usual end; nobody may be there to acknowledge it
		req.Fail(wrap("watch", given, context.Cause(ctx)))
		return
	}
	req.EndStream(out, &sandbusv1.StreamEnd{Error: bus.ToWire(wrap("watch", given, err))})
}

// watcher watches the directories of a tree.
type watcher struct {
	notify *fsnotify.Watcher
	root   *os.Root // of the tree
	abs    string   // the tree's real path
	flat   bool
	max    int
	dirs   map[string]string   // what is watched: the path that fsnotify has, by the name in the tree
	names  map[string]string   // the other way round
	held   map[string]*os.File // in a confined tree: what those paths lead to, by the name in the tree
	full   bool                // a directory was left out
	queue  watchQueue
}

func (r *Root) newWatcher(abs string, m *sandbusv1.WatchRequest) (w *watcher, err error) {
	w = &watcher{
		flat: m.GetFlat(), max: int(m.GetMaxDirectories()),
		dirs: map[string]string{}, names: map[string]string{}, queue: watchQueue{wake: make(chan struct{}, 1)},
	}
	if w.max < 0 || w.max > maxWatched {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "%d directories: want 1 to %d, or 0 for %d", w.max, maxWatched, defaultWatched)
	}
	if w.max == 0 {
		w.max = defaultWatched
	}
	if r.cage != nil {
		w.held = map[string]*os.File{}
	}
	if w.abs, err = filepath.EvalSymlinks(abs); err != nil { // fsnotify cleans paths, and reports the clean ones
		return nil, err
	}
	p, err := r.placeOf(m)
	if err != nil {
		return nil, err
	}
	if w.root, err = r.openTree(p); err != nil {
		return nil, err
	}
	if w.notify, err = fsnotify.NewWatcher(); err == nil {
		if err = w.add("."); err == nil {
			// The directory's own removal shows in its parent only: root holds it open, and until that is closed the system
			// says nothing of a directory that has lost its name. Where the parent may not be read the watch stays on.
			_ = w.notify.Add(filepath.Dir(w.abs))
			w.addBelow(".", false)
			return w, nil
		}
		_ = w.notify.Close() // the error that counts is err
	}
	_ = w.root.Close() // likewise
	return nil, err
}

func (w *watcher) close() {
	_ = w.notify.Close() // nothing is lost any more
	for _, f := range w.held {
		_ = f.Close() // read only
	}
	_ = w.root.Close() // read only
}

// add watches one directory. In a confined tree fsnotify gets it as a descriptor that os.Root has opened: a path could
// be made to lead elsewhere in between.
func (w *watcher) add(name string) error {
	at := filepath.Join(w.abs, name)
	var f *os.File
	if w.held != nil {
		var err error
		if f, err = w.root.OpenFile(name, os.O_RDONLY, 0); err != nil {
			return err
		}
		at = "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	}
	if err := w.notify.Add(at); err != nil {
		if f != nil {
			_ = f.Close() // read only
		}
		return err
	}
	w.dirs[name], w.names[at] = at, name
	if f != nil {
		w.held[name] = f
	}
	return nil
}

// addBelow watches the directories below one. With tell it reports what is there as created: it came before the watch.
func (w *watcher) addBelow(name string, tell bool) {
	if w.flat {
		return
	}
	entries, err := fs.ReadDir(w.root.FS(), name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.lost(name, err.Error())
	}
	for _, e := range entries {
		below := path.Join(name, e.Name())
		if tell {
			w.queue.add(sandbusv1.WatchKind_WATCH_KIND_CREATE, below)
		}
		if e.IsDir() {
			w.addTree(below, tell)
		}
	}
}

// addTree watches a directory and those below it.
func (w *watcher) addTree(name string, tell bool) {
	if w.dirs[name] == "" {
		if len(w.dirs) >= w.max {
			if !w.full {
				w.full = true
				w.lost(name, fmt.Sprintf("more than %d directories are not watched: raise max_directories, or watch a part of the tree", w.max))
			}
			return
		}
		if err := w.add(name); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				w.lost(name, "this directory is not watched: "+err.Error())
			}
			return
		}
	}
	w.addBelow(name, tell)
}

// forget ends the watches of a directory that is no longer under its name, and of those below it.
func (w *watcher) forget(name string) {
	for dir, at := range w.dirs {
		if dir != name && !strings.HasPrefix(dir, name+"/") {
			continue
		}
		_ = w.notify.Remove(at) // gone already, when the directory was removed
		delete(w.dirs, dir)
		delete(w.names, at)
		if f := w.held[dir]; f != nil {
			_ = f.Close() // read only
			delete(w.held, dir)
		}
	}
}

func (w *watcher) lost(name, reason string) {
	w.queue.put(watchEvent{kind: sandbusv1.WatchKind_WATCH_KIND_LOST, path: name, reason: reason})
}

// errWatchedGone ends a watch whose directory is no more.
var errWatchedGone = &bus.Error{Code: sandbusv1.Code_CODE_NOT_FOUND, Message: "the directory that was watched is no longer there"}

// run sends events until ctx ends. What happens is taken from the system at once, whatever the caller's pace: the queue
// is bounded and counts what does not fit.
func (w *watcher) run(ctx context.Context, out *bus.Sender) error {
	life, stop := context.WithCancelCause(ctx)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer stop(nil)
	sent := make(chan error, 1)
	sending.Go(func() { sent <- w.queue.send(life, out) })
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-sent:
			return err
		case ev, ok := <-w.notify.Events:
			if !ok {
				return errWatchedGone
			}
			if !w.event(ev) {
				w.queue.close()
				if err := <-sent; err != nil {
					return err
				}
				return errWatchedGone
			}
		case err, ok := <-w.notify.Errors:
			if !ok {
				return errWatchedGone
			}
			w.lost(".", err.Error())
			w.addBelow(".", false) // directories may have come unseen
		}
	}
}

var watchKinds = []struct {
	op   fsnotify.Op
	kind sandbusv1.WatchKind
}{
	{fsnotify.Create, sandbusv1.WatchKind_WATCH_KIND_CREATE},
	{fsnotify.Write, sandbusv1.WatchKind_WATCH_KIND_WRITE},
	{fsnotify.Chmod, sandbusv1.WatchKind_WATCH_KIND_CHMOD},
	{fsnotify.Rename, sandbusv1.WatchKind_WATCH_KIND_RENAME},
	{fsnotify.Remove, sandbusv1.WatchKind_WATCH_KIND_REMOVE},
}

// event notes what fsnotify reports; false says that the directory that is watched is gone.
func (w *watcher) event(ev fsnotify.Event) bool {
	name, itself := w.names[ev.Name]
	if ev.Name == w.abs {
		name, itself = ".", true
	}
	if !itself {
		i := strings.LastIndexByte(ev.Name, '/')
		dir, ok := w.names[ev.Name[:max(i, 0)]]
		if !ok && i == 0 {
			dir, ok = w.names["/"]
		}
		if !ok {
			return true // of a directory that was forgotten meanwhile
		}
		name = path.Join(dir, ev.Name[i+1:])
	}
	gone := ev.Op.Has(fsnotify.Remove) || ev.Op.Has(fsnotify.Rename)
	for _, k := range watchKinds {
		if ev.Op.Has(k.op) {
			w.queue.add(k.kind, name)
		}
	}
	switch {
	case gone && name == ".":
		return false
	case gone:
		w.forget(name)
	case ev.Op.Has(fsnotify.Create) && !w.flat:
		if info, err := w.root.Lstat(name); err == nil && info.IsDir() {
			w.addTree(name, true)
		}
	}
	return true
}
