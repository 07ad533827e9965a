package files

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// watchEvent is an event that was not yet sent.
type watchEvent struct {
	kind   sandbusv1.WatchKind
	path   string
	lost   int64
	reason string
}

// watchQueue holds events between the system and a caller who may be slow.
type watchQueue struct {
	wake chan struct{} // has one element when there is something to do

	mu     sync.Mutex // guards the fields below
	events []watchEvent
	lost   int64 // events that did not fit
	closed bool
}

func (q *watchQueue) add(kind sandbusv1.WatchKind, path string) {
	q.put(watchEvent{kind: kind, path: path})
}

// put notes an event. One that equals the latest is that one: a write to a file is many events of the system.
func (q *watchQueue) put(e watchEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch n := len(q.events); {
	case n >= maxWatchQueue:
		q.lost++
	case n > 0 && q.events[n-1] == e:
	default:
		q.events = append(q.events, e)
	}
	q.wakeLocked()
}

func (q *watchQueue) wakeLocked() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close lets send end when all is sent.
func (q *watchQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wakeLocked()
}

// take empties the queue. The events that did not fit came behind those that did.
func (q *watchQueue) take() (events []watchEvent, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events = q.events
	q.events = nil
	if q.lost > 0 {
		events = append(events, watchEvent{
			kind: sandbusv1.WatchKind_WATCH_KIND_LOST, path: ".", lost: q.lost, reason: "the receiver was too slow",
		})
		q.lost = 0
	}
	return events, q.closed
}

// send sends events as they come, until ctx ends or the queue is closed and empty.
func (q *watchQueue) send(ctx context.Context, out *bus.Sender) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-q.wake:
		}
		events, closed := q.take()
		batch, size := &sandbusv1.WatchBatch{}, 0
		for i, e := range events {
			w := &sandbusv1.WatchEvent{Kind: e.kind, Lost: e.lost, Reason: toValid(e.reason)}
			w.Path, w.PathRaw = bus.ToText(e.path)
			batch.Events = append(batch.Events, w)
			if size += proto.Size(w) + 8; size < maxWatchBatch && i < len(events)-1 {
				continue
			}
			body, err := proto.Marshal(batch)
			if err == nil {
				err = out.Write(ctx, bus.FrameData, body)
			}
			if err != nil {
				return err
			}
			batch, size = &sandbusv1.WatchBatch{}, 0
		}
		if closed {
			return nil
		}
	}
}
