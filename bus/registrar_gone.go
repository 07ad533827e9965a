package bus

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// How a worker is found to be gone, the fastest first: it says goodbye; its connection is closed (with a system
// account); a probe of it has no responders, twice; its key in the bucket expires after PresenceTTL.

const (
	// suspectAfter is how long a worker may be silent before presence says so.
	suspectAfter = 12 * time.Second
	// probeWait is how long a second worker waits for what the probes of the first one tell: the hub answers in
	// milliseconds when nobody is there.
	probeWait = 500 * time.Millisecond
	// probeAgain is the pause before the second try.
	probeAgain = 20 * time.Millisecond
	// stayLimit is how long a refused worker may stay before it is disconnected.
	stayLimit = 5 * time.Second
	// maxRefused bounds the refused workers that are remembered.
	maxRefused = 1024
	// featureProbe says that a worker listens on its probe subject, and beats when something comes there.
	featureProbe = "presence.probe"
)

// probeSubject is where a worker instance is asked for a beat. The hub lets only that sandbox subscribe to it.
func probeSubject(z Zone, id SandboxID, i InstanceID) string {
	return join("_I", string(z), string(id), "probe", string(i))
}

// probe asks the hub whether an instance listens; it does not wait. The second try follows the first one's answer.
func (r *Registrar) probe(e *record, try string) error {
	reply := join(r.inbox, string(e.Zone), string(e.Sandbox), string(e.Instance), try)
	return r.conn.publishRequest(probeSubject(e.Zone, e.Sandbox, e.Instance), reply, nil)
}

// probed takes the hub's word that nobody listens for a probe. Workers have no right to answer here.
func (r *Registrar) probed(m *nats.Msg) {
	t := strings.Split(strings.TrimPrefix(m.Subject, r.inbox+"."), ".")
	if len(t) != 4 || !isNoResponders(m) {
		return
	}
	at := Subject{Zone: Zone(t[0]), Sandbox: SandboxID(t[1]), Instance: InstanceID(t[2])}
	key := presenceKey(at.Zone, at.Sandbox)
	if t[3] == "first" {
		r.enqueue(at, func(ctx context.Context, at Subject) error {
			e, err := r.current(ctx, key)
			if err != nil || e == nil || e.Instance != at.Instance {
				return err
			}
			r.wg.Go(func() { // not in the lane: many may be probed at once
				if pause(r.life, probeAgain) && r.probe(e, "second") != nil {
					r.log.Debug("probe not sent", "sandbox", string(e.Sandbox)) // its key expires
				}
			})
			return nil
		})
		return
	}
	r.enqueue(at, func(ctx context.Context, at Subject) error {
		err := r.remove(ctx, key, "nobody listens for it", func(e *record) bool { return e.Instance == at.Instance })
		if err != nil {
			return err
		}
		if m := r.takeWaiting(key, nil); m != nil {
			return r.hello(ctx, at, m)
		}
		return nil
	})
}

// probeHolder has a hello wait until it is known whether the holder of the id still is there. It is false when that
// cannot be found out, or another hello waits already.
func (r *Registrar) probeHolder(s Subject, holder *record, m *nats.Msg) bool {
	key := presenceKey(s.Zone, s.Sandbox)
	r.mu.Lock()
	busy := r.waiting[key] != nil
	if !busy && canBeProbed(holder) {
		r.waiting[key] = m
	}
	r.mu.Unlock()
	if busy || !canBeProbed(holder) {
		return false
	}
	if r.probe(holder, "first") != nil {
		r.takeWaiting(key, m)
		return false
	}
	r.wg.Go(func() {
		pause(r.life, probeWait)
		r.enqueue(s, func(ctx context.Context, s Subject) error { return r.settle(ctx, s, m) })
	})
	return true
}

// settle answers a hello whose holder has not turned out to be gone.
func (r *Registrar) settle(ctx context.Context, s Subject, m *nats.Msg) error {
	if r.takeWaiting(presenceKey(s.Zone, s.Sandbox), m) == nil {
		return nil // answered
	}
	var h sandbusv1.Hello
	if err := proto.Unmarshal(m.Data, &h); err != nil {
		return err
	}
	holder, err := r.adopt(ctx, s, &h)
	if err != nil {
		return err
	}
	if holder == nil {
		return r.answer(m, nil, "")
	}
	return r.refuse(s, &h, holder, m)
}

// takeWaiting returns the hello that waits, if it is the one that is meant; nil means any.
func (r *Registrar) takeWaiting(key string, meant *nats.Msg) *nats.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.waiting[key]
	if m == nil || (meant != nil && m != meant) {
		return nil
	}
	delete(r.waiting, key)
	return m
}

// disconnected takes the system account's word that a connection was closed.
func (r *Registrar) disconnected(c connection) {
	r.mu.Lock()
	e := r.view[r.holders[c]]
	r.mu.Unlock()
	if e == nil {
		return
	}
	r.enqueue(Subject{Zone: e.Zone, Sandbox: e.Sandbox}, func(ctx context.Context, s Subject) error {
		return r.remove(ctx, presenceKey(s.Zone, s.Sandbox), "its connection was closed", func(e *record) bool { return e.connection() == c })
	})
}

// sweep looks for workers that are silent, and for refused ones that stay.
func (r *Registrar) sweep() {
	for pause(r.life, sweepEvery) {
		for _, e := range r.silent() {
			r.enqueue(Subject{Zone: e.Zone, Sandbox: e.Sandbox}, r.suspect)
		}
		r.kickRefused()
	}
}

// silent are the workers that become suspect now; those that have expired are forgotten.
func (r *Registrar) silent() (out []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, e := range r.view {
		switch age := time.Since(e.heard); {
		case age > PresenceTTL+sweepEvery:
			r.forgetLocked(key)
		case age >= suspectAfter && !e.Suspect:
			out = append(out, e)
		}
	}
	return out
}

// suspect notes that a worker is silent, and probes it: one that is there beats at once.
func (r *Registrar) suspect(ctx context.Context, s Subject) error {
	var probed *record
	err := r.update(ctx, presenceKey(s.Zone, s.Sandbox), func(old *record) (Presence, time.Duration, error) {
		if old == nil || old.Suspect || time.Since(old.heard) < suspectAfter {
			return Presence{}, 0, nil
		}
		probed = old
		p := old.Presence
		p.Suspect = true
		return p, PresenceTTL - suspectAfter, nil
	})
	if err != nil || probed == nil || !canBeProbed(probed) {
		return err
	}
	return r.probe(probed, "first")
}

// duplicateSeen is a worker that was told that its id is another's.
type duplicateSeen struct {
	at       Subject // with its instance
	conn     connection
	since    time.Time
	instance InstanceID
}

func (r *Registrar) noteRefused(s Subject, h *sandbusv1.Hello) {
	if r.cfg.System == nil || h.GetServerId() == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := join(presenceKey(s.Zone, s.Sandbox), h.GetInstance())
	if _, ok := r.refused[key]; !ok && len(r.refused) < maxRefused {
		r.refused[key] = duplicateSeen{s, connection{h.GetServerId(), h.GetClientId()}, time.Now(), InstanceID(h.GetInstance())}
	}
}

// kickRefused disconnects the refused workers that are still there.
func (r *Registrar) kickRefused() {
	var due []duplicateSeen
	r.mu.Lock()
	for key, f := range r.refused {
		if time.Since(f.since) >= stayLimit {
			delete(r.refused, key)
			if e := r.view[presenceKey(f.at.Zone, f.at.Sandbox)]; e != nil && e.Instance != f.instance {
				due = append(due, f)
			}
		}
	}
	r.mu.Unlock()
	slices.SortFunc(due, func(a, b duplicateSeen) int { return a.since.Compare(b.since) })
	for _, f := range due {
		ctx, cancel := context.WithTimeout(r.life, 2*time.Second)
		// Only a connection of that very sandbox: what a hello says of its connection may be a lie.
		theirs, err := r.cfg.System.subscribes(ctx, f.conn, probeSubject(f.at.Zone, f.at.Sandbox, f.instance))
		if err == nil && theirs {
			err = r.cfg.System.kick(ctx, f.conn)
			r.log.Warn("duplicate worker disconnected", "zone", string(f.at.Zone), "sandbox", string(f.at.Sandbox), "instance", string(f.instance))
		}
		cancel()
		if err != nil && r.life.Err() == nil {
			r.log.Warn("duplicate worker not disconnected", "sandbox", string(f.at.Sandbox), "error", err)
		}
	}
}
