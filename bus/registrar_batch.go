package bus

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Beats of many workers are written together: at 2,000 in a second, what each alone costs is the waking of goroutines
// and processes, here and at the hub. Where workers are few, or something is unusual about a beat, it goes through its
// lane at once.

const (
	// fewWorkers is up to how many workers beats are written one by one.
	fewWorkers = 500
	// gatherFor is how long beats of many workers are gathered. Presence is that much older.
	gatherFor = 200 * time.Millisecond
	// maxGathered bounds what is gathered; beats beyond go through their lanes.
	maxGathered = 4000
)

// said is a beat that waits to be written.
type said struct {
	at Subject
	m  *nats.Msg
}

// written is a beat that is on its way to the bucket.
type written struct {
	said
	key string
	p   Presence
	ack jetstream.PubAckFuture
}

// gather takes a beat to be written with others; it is false when it shall be written at once. One goroutine calls it,
// that of listen.
func (r *Registrar) gather(at Subject, m *nats.Msg) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.view) <= fewWorkers || len(r.gathered) >= maxGathered {
		return false
	}
	r.gathered = append(r.gathered, said{at, m})
	return true
}

// writeGathered writes what was gathered, again and again.
func (r *Registrar) writeGathered() {
	for pause(r.life, gatherFor) {
		r.mu.Lock()
		batch := r.gathered
		r.gathered = nil
		r.mu.Unlock()
		var under []written
		for _, s := range batch {
			if w, ok := r.write(s); ok {
				under = append(under, w)
			} else {
				r.inLane(s)
			}
		}
		limit := time.NewTimer(PresenceTTL / 4)
		for _, w := range under {
			select {
			case ack := <-w.ack.Ok():
				r.keep(w.key, w.p, ack.Sequence)
			case err := <-w.ack.Err():
				r.forget(w.key)
				if bucketLost(err) {
					r.reopen()
				}
				r.inLane(w.said) // another registrar was faster, mostly
			case <-limit.C:
				limit.Reset(0) // for the others, too
				r.forget(w.key)
			case <-r.life.Done():
				return
			}
		}
		limit.Stop()
	}
}

// write sends a beat that is as it should be to the bucket; it does not wait.
func (r *Registrar) write(s said) (written, bool) {
	w := written{said: s, key: presenceKey(s.at.Zone, s.at.Sandbox)}
	r.mu.Lock()
	old := r.view[w.key]
	r.mu.Unlock()
	var b sandbusv1.Beat
	if old == nil || proto.Unmarshal(s.m.Data, &b) != nil {
		return w, false
	}
	var isNext bool
	if w.p, isNext = next(old.Presence, &b); !isNext {
		return w, false
	}
	value, err := json.Marshal(w.p)
	if err != nil {
		return w, false
	}
	m := nats.NewMsg("$KV." + PresenceBucket + "." + w.key)
	m.Data = value
	w.ack, err = r.js.PublishMsgAsync(m, jetstream.WithMsgTTL(PresenceTTL), jetstream.WithExpectLastSequencePerSubject(old.revision))
	return w, err == nil
}

func (r *Registrar) inLane(s said) {
	r.enqueue(s.at, func(ctx context.Context, at Subject) error { return r.beat(ctx, at, s.m.Data) })
}

// next is a worker's presence after its next beat; ok is false when the beat is not its next.
func next(p Presence, b *sandbusv1.Beat) (_ Presence, ok bool) {
	if string(p.Instance) != b.GetInstance() || b.GetSeq() <= p.Seq || b.GetSeq()-p.Seq > maxAhead {
		return p, false
	}
	p.Seq, p.Load, p.Used, p.Draining, p.Suspect = b.GetSeq(), clamp(b.GetLoad()), clamp(b.GetUsed()), b.GetDraining(), false
	p.LastBeat = time.Now().UTC()
	return p, true
}
