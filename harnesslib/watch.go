package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// WatchKind is what happened to a path.
type WatchKind string

// The kinds of events.
const (
	WatchCreate WatchKind = "create" // it appeared, also by a rename
	WatchWrite  WatchKind = "write"  // its content changed
	WatchRename WatchKind = "rename" // it went away by a rename; a new name that is watched is a WatchCreate of its own
	WatchRemove WatchKind = "remove"
	WatchChmod  WatchKind = "chmod" // mode, owner or times
	WatchLost   WatchKind = "lost"  // events are missing here: look at the tree again
)

var watchKinds = map[sandbusv1.WatchKind]WatchKind{
	sandbusv1.WatchKind_WATCH_KIND_CREATE: WatchCreate,
	sandbusv1.WatchKind_WATCH_KIND_WRITE:  WatchWrite,
	sandbusv1.WatchKind_WATCH_KIND_RENAME: WatchRename,
	sandbusv1.WatchKind_WATCH_KIND_REMOVE: WatchRemove,
	sandbusv1.WatchKind_WATCH_KIND_CHMOD:  WatchChmod,
	sandbusv1.WatchKind_WATCH_KIND_LOST:   WatchLost,
}

// WatchEvent is one event below a directory that is watched.
type WatchEvent struct {
	Kind   WatchKind
	Path   string // relative to the directory, "." for itself; of WatchLost where events may be missing. It is the sandbox's word
	Lost   int64  // of WatchLost: how many events, zero when unknown
	Reason string // of WatchLost
}

// WatchOptions says how to watch.
type WatchOptions struct {
	// Flat watches the directory alone, not those below.
	Flat bool
	// MaxDirectories is how many directories are watched at most, up to 65,536; zero means 8,192. More are a WatchLost.
	MaxDirectories int
	// Ready is called when the watch is in place, with how many directories are watched; nil means nobody.
	Ready func(directories int)
}

// Watch yields what happens below a directory of the sandbox, recursively, until the loop is left or ctx ends. Events
// that come faster than the loop takes them are dropped beyond 8,192 and reported as WatchLost. An error is the last
// pair. Errors: as ReadFile; fs.ErrNotExist also when the directory goes away; ErrLost when the sandbox does.
func (s *Sandbox) Watch(ctx context.Context, dir string) iter.Seq2[WatchEvent, error] {
	return s.WatchWith(ctx, dir, WatchOptions{})
}

// WatchWith is Watch as the options say.
func (s *Sandbox) WatchWith(ctx context.Context, dir string, o WatchOptions) iter.Seq2[WatchEvent, error] {
	return func(yield func(WatchEvent, error) bool) {
		req := &sandbusv1.WatchRequest{Flat: o.Flat, MaxDirectories: int32(max(-1, min(o.MaxDirectories, 1<<30)))}
		req.Path, req.PathRaw = bus.ToText(dir)
		err := s.do(ctx, func(t bus.Target) error {
			op := bus.NewOpID()
			req.Meta = &sandbusv1.RequestMeta{Op: string(op)}
			st, err := s.hub.caller.Open(ctx, t, "fs.watch", op, req, 0, false)
			if err != nil {
				return err
			}
			defer st.Close()
			err = follow(ctx, st, o, yield)
			s.abandon(ctx, t, op, err)
			return err
		})
		if err != nil && !errors.Is(err, errLoopLeft) {
			yield(WatchEvent{}, pathError("watch", dir, err))
		}
	}
}

// errLoopLeft says that the caller has had enough.
var errLoopLeft = errors.New("the loop was left")

// follow yields the events of a stream.
func follow(ctx context.Context, st *bus.Stream, o WatchOptions, yield func(WatchEvent, error) bool) error {
	for {
		f, err := st.Next(ctx)
		if err != nil {
			return err
		}
		switch f.Kind {
		case bus.FrameStarted:
			var started sandbusv1.WatchStarted
			if err := proto.Unmarshal(f.Body, &started); err != nil {
				return &bus.StreamError{Rule: "the started frame's body is no WatchStarted"}
			}
			if o.Ready != nil {
				o.Ready(int(started.GetDirectories()))
			}
		case bus.FrameData:
			var batch sandbusv1.WatchBatch
			if err := proto.Unmarshal(f.Body, &batch); err != nil {
				return &bus.StreamError{Rule: "a data frame's body is no WatchBatch"}
			}
			for _, e := range batch.GetEvents() {
				kind, ok := watchKinds[e.GetKind()]
				if !ok {
					continue // a newer worker's
				}
				if !yield(WatchEvent{kind, bus.FromText(e.GetPath(), e.GetPathRaw()), e.GetLost(), bus.Printable(e.GetReason())}, nil) {
					return errLoopLeft
				}
			}
		case bus.FrameEnd:
			var end sandbusv1.StreamEnd
			if err := proto.Unmarshal(f.Body, &end); err != nil {
				return &bus.StreamError{Rule: "the end frame's body is no StreamEnd"}
			}
			if err := bus.FromWire(end.GetError()); err != nil {
				return err
			}
			return fs.ErrNotExist
		default:
			return &bus.StreamError{Rule: fmt.Sprintf("a watch has no frames of kind %d", f.Kind)}
		}
	}
}
