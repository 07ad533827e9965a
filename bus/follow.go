package bus

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// PresenceKind says what has happened to a worker.
type PresenceKind string

// The kinds of presence events.
const (
	PresenceLive    PresenceKind = "live"    // it is there: it was when the watch began, or it came, or came back
	PresenceChanged PresenceKind = "changed" // something that it says of itself is different, such as its load
	PresenceGone    PresenceKind = "gone"    // nobody serves it now; the same instance may come back
	PresenceListed  PresenceKind = "listed"  // all that were there when the watch began have been told; comes once
)

// PresenceEvent is one thing that happened to a worker.
type PresenceEvent struct {
	Kind     PresenceKind
	Presence Presence // as it is now; of PresenceGone as it was last; zero for PresenceListed
}

// watchAgain is how long to wait before presence is asked for again that could not be followed.
const watchAgain = time.Second

// errWatchAnew is the cause with which a watch ends that has to begin anew.
var errWatchAnew = errors.New("the connection was lost meanwhile")

// Watch tells what is there, then what happens, until ctx ends: that is its last pair. It outlives the connection: what has
// changed meanwhile is told when it is back. Records that are malformed are left out.
func (d *Directory) Watch(ctx context.Context) iter.Seq2[PresenceEvent, error] {
	return func(yield func(PresenceEvent, error) bool) {
		w := &presenceWatch{view: map[string]Presence{}, yield: yield}
		defer d.conn.onReconnected(w, nil)
		for ctx.Err() == nil {
			try, stop := context.WithCancelCause(ctx)
			d.conn.onReconnected(w, func() { stop(errWatchAnew) })
			goesOn := w.follow(try, d.kv)
			again := errors.Is(context.Cause(try), errWatchAnew)
			stop(nil)
			if !goesOn {
				return
			}
			if again {
				continue
			}
			t := time.NewTimer(watchAgain)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		yield(PresenceEvent{}, context.Cause(ctx))
	}
}

type presenceWatch struct {
	view   map[string]Presence // what was told
	listed bool
	yield  func(PresenceEvent, error) bool
}

// follow reads one watch to its end. It is false when nobody wants more.
func (w *presenceWatch) follow(ctx context.Context, kv jetstream.KeyValue) bool {
	watch, err := kv.WatchAll(ctx)
	if err != nil {
		return true // the hub is away, or has no bucket yet
	}
	defer func() {
		_ = watch.Stop() // it may have ended by itself
		for range watch.Updates() {
		}
	}()
	first := map[string]bool{} // what the watch has told before it told all; nil afterwards
	for {
		select {
		case e, ok := <-watch.Updates():
			switch {
			case !ok:
				return true
			case e == nil:
				if !w.synced(first) {
					return false
				}
				first = nil
			case e.Operation() != jetstream.KeyValuePut:
				if !w.gone(e.Key()) {
					return false
				}
			default:
				p, err := parsePresence(e.Key(), e.Value())
				if err != nil {
					continue // no worker's record
				}
				if first != nil {
					first[e.Key()] = true
				}
				if !w.is(e.Key(), p) {
					return false
				}
			}
		case <-ctx.Done():
			return true
		}
	}
}

// synced tells of those that are gone since the watch before this one.
func (w *presenceWatch) synced(live map[string]bool) bool {
	for key := range w.view {
		if !live[key] && !w.gone(key) {
			return false
		}
	}
	if w.listed {
		return true
	}
	w.listed = true
	return w.yield(PresenceEvent{Kind: PresenceListed}, nil)
}

func (w *presenceWatch) gone(key string) bool {
	old, ok := w.view[key]
	if !ok {
		return true
	}
	delete(w.view, key)
	return w.yield(PresenceEvent{Kind: PresenceGone, Presence: old}, nil)
}

func (w *presenceWatch) is(key string, p Presence) bool {
	old, known := w.view[key]
	if known && old.Instance != p.Instance {
		if !w.gone(key) {
			return false
		}
		known = false
	}
	w.view[key] = p
	kind := PresenceLive
	if known {
		kind = PresenceChanged
	}
	return w.yield(PresenceEvent{Kind: kind, Presence: p}, nil)
}
