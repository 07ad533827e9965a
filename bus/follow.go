package bus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Follower is told of presence by Directory.Follow, by one goroutine. Its functions must not block.
type Follower struct {
	// Sync is told all live workers: at the start, and again after a lost connection.
	Sync func([]Presence)
	// Live is told of a worker that beats, or has begun to.
	Live func(Presence)
	// Gone is told of a sandbox that has no live worker any more.
	Gone func(Zone, SandboxID)
}

// followAgain is how long to wait before presence is asked for again that could not be followed.
const followAgain = time.Second

// errFollowAnew is the cause with which a watch ends that has to begin anew.
var errFollowAnew = errors.New("the connection was lost meanwhile")

// Follow tells f of presence until ctx ends, whatever happens to the connection. Records that are malformed are left out.
func (d *Directory) Follow(ctx context.Context, f Follower) {
	key := new(Follower) // of this call
	defer d.conn.onReconnected(key, nil)
	for ctx.Err() == nil {
		watch, stop := context.WithCancelCause(ctx)
		d.conn.onReconnected(key, func() { stop(errFollowAnew) })
		d.follow(watch, f)
		again := errors.Is(context.Cause(watch), errFollowAnew)
		stop(nil)
		if again {
			continue
		}
		t := time.NewTimer(followAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// follow reads one watch to its end.
func (d *Directory) follow(ctx context.Context, f Follower) {
	w, err := d.kv.WatchAll(ctx)
	if err != nil {
		return // the hub is away, or has no bucket yet
	}
	defer func() { _ = w.Stop() }() // it may have ended by itself
	var first []Presence
	synced := false
	for {
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return
			case e == nil:
				f.Sync(first)
				first, synced = nil, true
			case e.Operation() != jetstream.KeyValuePut:
				if zone, id, ok := strings.Cut(e.Key(), "."); ok && synced {
					f.Gone(Zone(zone), SandboxID(id))
				}
			default:
				p, err := parsePresence(e.Key(), e.Value())
				switch {
				case err != nil:
				case synced:
					f.Live(p)
				default:
					first = append(first, p)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}
