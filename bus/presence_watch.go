package bus

import (
	"context"
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// PresenceKind says what has happened to a worker.
type PresenceKind string

// The kinds of presence events.
const (
	PresenceLive    PresenceKind = "live"    // it is there: it was when the watch began, or it came, or came back
	PresenceChanged PresenceKind = "changed" // something that it says of itself is different, such as its load, or it is suspect
	PresenceGone    PresenceKind = "gone"    // nobody serves it now; the same instance may come back
	PresenceListed  PresenceKind = "listed"  // all that were there when the watch began have been told; comes once
)

// PresenceEvent is one thing that happened to a worker.
type PresenceEvent struct {
	Kind     PresenceKind
	Presence Presence // as it is now; of PresenceGone as it was last; zero for PresenceListed
}

// watchBucket watches the bucket and hands out what is in it now; later changes come from the watcher.
func watchBucket(ctx context.Context, kv jetstream.KeyValue, initial func(jetstream.KeyValueEntry)) (jetstream.KeyWatcher, error) {
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return nil, errWatchEnded
			}
			if e == nil { // all present values have come
				return w, nil
			}
			if e.Operation() == jetstream.KeyValuePut {
				initial(e)
			}
		case <-ctx.Done():
			stopWatcher(w)
			return nil, context.Cause(ctx)
		}
	}
}

// errWatchEnded says that the client has ended a watch.
var errWatchEnded = errors.New("watch ended")

// stopWatcher ends a watcher. Its callback may be waiting for somebody who takes an entry.
func stopWatcher(w jetstream.KeyWatcher) {
	_ = w.Stop() // fails only when it has ended already
	for range w.Updates() {
	}
}

// follower is a watch of the bucket that has told what is there.
type follower struct {
	w       jetstream.KeyWatcher
	ctx     context.Context //nolint:containedctx // the follower's own life: it ends with stop, or when the connection comes back
	present map[string]Presence
	stop    func()
}

// follow begins to watch. Errors: as List.
func (d *Directory) follow(ctx context.Context) (*follower, error) {
	var f *follower
	err := d.ask(ctx, func(try context.Context, alive func()) error {
		life, end := context.WithCancelCause(ctx)
		keep := context.AfterFunc(try, func() { end(context.Cause(try)) })
		present := map[string]Presence{}
		w, err := watchBucket(life, d.kv, func(e jetstream.KeyValueEntry) {
			alive()
			if p, err := parsePresence(e.Key(), e.Value()); err == nil { // else it is no worker's record
				present[e.Key()] = p
			}
		})
		if err != nil {
			end(err)
			return err
		}
		if !keep() {
			stopWatcher(w)
			return context.Cause(try)
		}
		d.conn.onReconnected(life, func() { end(errAskAgain) })
		f = &follower{w: w, ctx: life, present: present, stop: func() {
			d.conn.onReconnected(life, nil)
			end(nil)
			stopWatcher(w)
		}}
		return nil
	})
	return f, err
}

const (
	// watchQuiet is how long a watch may be silent about workers that beat every 5 s before it begins anew.
	watchQuiet = suspectAfter
	// watchIdle is watchQuiet when there are no workers: a bucket that was made anew says nothing of it.
	watchIdle = 30 * time.Second
)

// Watch tells what is there, then what happens, until ctx ends: that is its last pair, as is an error. It outlives the
// connection: what has changed meanwhile is told when it is back. A reader that is slow misses states in between, never
// the last one. Changes of the time and the number of the last beat alone are not told.
// Errors: as List.
func (d *Directory) Watch(ctx context.Context) iter.Seq2[PresenceEvent, error] {
	return func(yield func(PresenceEvent, error) bool) {
		w := &presenceWatch{view: map[string]Presence{}, yield: yield}
		for {
			f, err := d.follow(ctx)
			if err != nil {
				yield(PresenceEvent{}, err)
				return
			}
			goesOn := w.begin(f.present) && w.follow(f)
			f.stop()
			if !goesOn {
				return
			}
			if ctx.Err() != nil {
				yield(PresenceEvent{}, d.conn.cause(ctx))
				return
			}
		}
	}
}

type presenceWatch struct {
	view   map[string]Presence // what was told
	listed bool
	yield  func(PresenceEvent, error) bool
}

// begin tells the difference to what was told before. It is false when nobody wants more, as are the others.
func (w *presenceWatch) begin(present map[string]Presence) bool {
	for _, key := range slices.Sorted(maps.Keys(w.view)) {
		if _, ok := present[key]; !ok && !w.gone(key) {
			return false
		}
	}
	for _, key := range slices.Sorted(maps.Keys(present)) {
		if !w.is(key, present[key]) {
			return false
		}
	}
	if !w.listed {
		w.listed = true
		return w.yield(PresenceEvent{Kind: PresenceListed}, nil)
	}
	return true
}

// follow tells what happens until the follower ends, or is silent for too long.
func (w *presenceWatch) follow(f *follower) bool {
	quiet := time.NewTimer(watchIdle)
	defer quiet.Stop()
	for {
		limit := watchIdle
		if len(w.view) > 0 {
			limit = watchQuiet
		}
		quiet.Reset(limit)
		select {
		case e, ok := <-f.w.Updates():
			if !ok {
				return true
			}
			if e != nil && !w.take(e) {
				return false
			}
		case <-f.ctx.Done():
			return true
		case <-quiet.C:
			return true
		}
	}
}

func (w *presenceWatch) take(e jetstream.KeyValueEntry) bool {
	if e.Operation() != jetstream.KeyValuePut {
		return w.gone(e.Key())
	}
	p, err := parsePresence(e.Key(), e.Value())
	if err != nil {
		return true // no worker's record
	}
	return w.is(e.Key(), p)
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
	old, ok := w.view[key]
	if ok && old.Instance != p.Instance {
		if !w.gone(key) {
			return false
		}
		ok = false
	}
	w.view[key] = p
	if !ok {
		return w.yield(PresenceEvent{Kind: PresenceLive, Presence: p}, nil)
	}
	old.Seq, old.LastBeat = p.Seq, p.LastBeat
	if reflect.DeepEqual(old, p) {
		return true
	}
	return w.yield(PresenceEvent{Kind: PresenceChanged, Presence: p}, nil)
}
