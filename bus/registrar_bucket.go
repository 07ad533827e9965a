package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// record is a worker's presence as it is in the bucket. It is never changed, only replaced.
type record struct {
	Presence
	revision uint64
	heard    time.Time // when the worker was heard last, as far as we know; the monotonic clock counts
}

func newRecord(p Presence, revision uint64) *record {
	heard := time.Now()
	if p.Suspect {
		heard = heard.Add(-suspectAfter)
	}
	return &record{Presence: p, revision: revision, heard: heard}
}

func (p Presence) connection() connection { return connection{p.ServerID, p.ClientID} }

// openBucket finds the bucket, or makes it, and reads what is in it.
func (r *Registrar) openBucket(ctx context.Context) error {
	replicas := r.cfg.Replicas
	if replicas == 0 {
		replicas = 1
		s, err := r.js.Stream(ctx, "KV_"+PresenceBucket)
		switch {
		case err == nil:
			replicas = s.CachedInfo().Config.Replicas
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("registrar: presence bucket: %w", err)
		}
	}
	kv, err := r.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: PresenceBucket, Description: "live sandbus workers", History: 1, Storage: jetstream.MemoryStorage,
		LimitMarkerTTL: time.Minute, MaxValueSize: maxSaid, Replicas: replicas,
	})
	if err != nil {
		return fmt.Errorf("registrar: presence bucket with %d replicas: %w", replicas, err)
	}
	view := map[string]*record{}
	w, err := watchBucket(ctx, kv, func(e jetstream.KeyValueEntry) {
		if p, err := parsePresence(e.Key(), e.Value()); err == nil {
			view[e.Key()] = newRecord(p, e.Revision())
		}
	})
	if err != nil {
		return fmt.Errorf("registrar: presence bucket: %w", err)
	}
	stopWatcher(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kv, r.view, r.holders = kv, view, map[connection]string{}
	for key, e := range view {
		r.holders[e.connection()] = key
	}
	return nil
}

// isPermanent says that waiting does not help.
func isPermanent(err error) bool {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrPermissionViolation) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	// 10074: more replicas than a server alone can have; 10023 and 10047: out of resources
	return ok && (api.ErrorCode == 10074 || api.ErrorCode == 10023 || api.ErrorCode == 10047)
}

// bucketLost says that the hub does not have the bucket any more.
func bucketLost(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders)
}

// isConflict says that another registrar, or the end of a TTL, was faster.
func isConflict(err error) bool {
	if errors.Is(err, jetstream.ErrKeyExists) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// current is a worker's presence: from our view, else from the bucket. Nil means that there is none.
func (r *Registrar) current(ctx context.Context, key string) (*record, error) {
	r.mu.Lock()
	e, kv := r.view[key], r.kv
	r.mu.Unlock()
	if e != nil {
		return e, nil
	}
	got, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("presence of %s: %w", key, err)
	}
	p, err := parsePresence(key, got.Value())
	if err != nil {
		return nil, err
	}
	return r.keep(key, p, got.Revision()), nil
}

// keep notes what is in the bucket now.
func (r *Registrar) keep(key string, p Presence, revision uint64) *record {
	e := newRecord(p, revision)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(key)
	r.view[key] = e
	if c := e.connection(); c != (connection{}) {
		r.holders[c] = key
	}
	return e
}

func (r *Registrar) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(key)
}

func (r *Registrar) forgetLocked(key string) {
	if e := r.view[key]; e != nil {
		if c := e.connection(); r.holders[c] == key {
			delete(r.holders, c)
		}
		delete(r.view, key)
	}
}

// casTries is how often a write is tried that others are faster with. Each conflict means that somebody has written.
const casTries = 8

// update changes a worker's presence: change gets what is there (nil for none) and returns what shall be there, for how
// long, or a TTL of zero when nothing shall change. It is called again when somebody else was faster.
func (r *Registrar) update(ctx context.Context, key string, change func(*record) (Presence, time.Duration, error)) error {
	for range casTries {
		old, err := r.current(ctx, key)
		if err != nil {
			return err
		}
		p, ttl, err := change(old)
		if err != nil || ttl == 0 {
			return err
		}
		revision, err := r.put(ctx, key, p, ttl, old)
		if err == nil {
			r.keep(key, p, revision)
			return nil
		}
		r.forget(key)
		if !isConflict(err) {
			return fmt.Errorf("presence of %s: %w", key, err)
		}
	}
	return fmt.Errorf("presence of %s: others were faster %d times", key, casTries)
}

// put writes a record in place of an old one. kv.Update would drop the TTL (nats.go issue 1994).
func (r *Registrar) put(ctx context.Context, key string, p Presence, ttl time.Duration, old *record) (uint64, error) {
	value, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	if old == nil {
		r.mu.Lock()
		kv := r.kv
		r.mu.Unlock()
		return kv.Create(ctx, key, value, jetstream.KeyTTL(ttl))
	}
	m := nats.NewMsg("$KV." + PresenceBucket + "." + key)
	m.Data = value
	ack, err := r.js.PublishMsg(ctx, m, jetstream.WithMsgTTL(ttl), jetstream.WithExpectLastSequencePerSubject(old.revision))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// remove takes a worker out of presence if it is still the one that is meant.
func (r *Registrar) remove(ctx context.Context, key, why string, meant func(*record) bool) error {
	for range casTries {
		e, err := r.current(ctx, key)
		if err != nil || e == nil || !meant(e) {
			return err
		}
		r.mu.Lock()
		kv := r.kv
		r.mu.Unlock()
		err = kv.Purge(ctx, key, jetstream.LastRevision(e.revision), jetstream.PurgeTTL(time.Minute))
		r.forget(key)
		if err == nil {
			r.log.Info("sandbox is gone", "zone", string(e.Zone), "sandbox", string(e.Sandbox), "instance", string(e.Instance), "why", why)
			return nil
		}
		if !isConflict(err) {
			return fmt.Errorf("presence of %s: %w", key, err)
		}
	}
	return fmt.Errorf("presence of %s: others were faster %d times", key, casTries)
}
