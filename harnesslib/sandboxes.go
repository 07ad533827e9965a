package harnesslib

import (
	"context"
	"iter"

	"github.com/sandbus/sandbus/bus"
)

// SandboxEventKind says what has happened to a sandbox.
type SandboxEventKind string

// The kinds of sandbox events.
const (
	SandboxLive    = SandboxEventKind(bus.PresenceLive)    // it is there: it was at the start, or it came, or came back
	SandboxChanged = SandboxEventKind(bus.PresenceChanged) // something of it is different, such as its load, or it is suspect
	SandboxGone    = SandboxEventKind(bus.PresenceGone)    // nobody serves it now; the same instance may come back
	SandboxListed  = SandboxEventKind(bus.PresenceListed)  // all that were there at the start have been told; comes once
)

// SandboxEvent is one thing that happened to a sandbox.
type SandboxEvent struct {
	Kind    SandboxEventKind
	Sandbox SandboxInfo // as it is now; of SandboxGone as it was last; zero for SandboxListed
}

// Sandboxes tells which of the meant sandboxes are live, then what happens to them, until ctx ends: that is its last
// pair, as is an error. It outlives the connection to the hub: what has changed meanwhile is told when it is back, and a
// ctx that ends while the hub is gone ends it with a *HubGoneError. A new instance in the place of an old one is told as
// SandboxGone, then SandboxLive. A loop that is slow misses states in between, never the last one.
// Errors: a selector that can match nothing; the hub has no registrar.
func (h *Hub) Sandboxes(ctx context.Context, s Selector) iter.Seq2[SandboxEvent, error] {
	return func(yield func(SandboxEvent, error) bool) {
		if err := s.Check(); err != nil {
			yield(SandboxEvent{}, err)
			return
		}
		d, err := h.directory(ctx)
		if err != nil {
			yield(SandboxEvent{}, err)
			return
		}
		told := map[string]bool{}
		for e, err := range d.Watch(ctx) {
			if err != nil {
				yield(SandboxEvent{}, err)
				return
			}
			if out, ok := selectEvent(s, told, e); ok && !yield(out, nil) {
				return
			}
		}
	}
}

// selectEvent is what an event is for somebody who sees only the sandboxes that are meant.
func selectEvent(s Selector, told map[string]bool, e bus.PresenceEvent) (SandboxEvent, bool) {
	if e.Kind == bus.PresenceListed {
		return SandboxEvent{Kind: SandboxListed}, true
	}
	p := e.Presence
	key := string(p.Zone) + "." + string(p.Sandbox)
	out := SandboxEvent{Kind: SandboxEventKind(e.Kind), Sandbox: p}
	known, is := told[key], e.Kind != bus.PresenceGone && s.Matches(p)
	switch {
	case !known && !is:
		return out, false
	case !is:
		delete(told, key)
		out.Kind = SandboxGone // also of one that is there and is not meant any more
	case !known:
		told[key] = true
		out.Kind = SandboxLive
	}
	return out, true
}
