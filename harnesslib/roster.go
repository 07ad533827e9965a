package harnesslib

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandbus/sandbus/bus"
)

// candidate is a worker instance that leases may be had of, as we know it. It is guarded by its pool's lock.
type candidate struct {
	SandboxInfo

	place place
	// known is how many slots are taken by the worker's own word, which counts instead of the beats until it is older
	// than those: they lag behind, and others take slots too.
	known      int
	knownUntil time.Time
	// held are the leases of ours, asking the requests for one that are on their way.
	held, asking int
	// silentUntil is until when it is not asked first, because nobody answered there.
	silentUntil time.Time
}

// wordFor is for how long what a worker said counts: two beats.
const wordFor = 10 * time.Second

func (c *candidate) said(used int) { c.known, c.knownUntil = used, time.Now().Add(wordFor) }

func (c *candidate) silent() { c.silentUntil = time.Now().Add(wordFor) }

// used is how many slots are taken, by others' word.
func (c *candidate) used() int {
	if time.Now().Before(c.knownUntil) {
		return c.known
	}
	return int(c.Used)
}

func (c *candidate) full(o *AcquireOptions) bool {
	if o.Exclusive {
		return c.taken() > 0
	}
	return c.taken() >= c.bound(o)
}

// taken is how many slots are taken, as far as we know: at least ours.
func (c *candidate) taken() int { return max(c.used(), c.held) + c.asking }

// bound is how many slots may be taken by the word of the worker and of the one who asks.
func (c *candidate) bound(o *AcquireOptions) int {
	if o.Max > 0 {
		return min(o.Max, int(c.Slots))
	}
	return int(c.Slots)
}

// less orders candidates by their load, and the same load by their names.
func (c *candidate) less(d *candidate, o *AcquireOptions) bool {
	a, b := c.taken()*d.bound(o), d.taken()*c.bound(o)
	return a < b || a == b && key(c.SandboxInfo) < key(d.SandboxInfo)
}

func key(p SandboxInfo) string { return string(p.Zone) + "." + string(p.Sandbox) }

// The pool follows presence.

// follow takes events until ctx ends.
func (p *pool) follow(ctx context.Context, d *bus.Directory) {
	for ctx.Err() == nil {
		for e, err := range d.Watch(ctx) {
			if err != nil {
				break
			}
			p.heard(e)
		}
		t := time.NewTimer(followAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// followAgain is how long to wait before presence is asked for again that could not be had.
const followAgain = time.Second

// heard takes an event.
func (p *pool) heard(e bus.PresenceEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case bus.PresenceListed:
		if !p.listed {
			p.listed = true
			close(p.ready)
		}
	case bus.PresenceGone:
		p.goneLocked(key(e.Presence))
	case bus.PresenceLive, bus.PresenceChanged:
		if !p.liveLocked(e.Presence) {
			return
		}
	}
	p.wakeLocked()
}

// liveLocked takes a beat. It says whether somebody who waits should look again.
func (p *pool) liveLocked(info SandboxInfo) bool {
	k := key(info)
	c := p.candidates[k]
	if c != nil && c.Instance != info.Instance {
		p.goneLocked(k)
		c = nil
	}
	if c == nil {
		p.candidates[k] = &candidate{SandboxInfo: info, place: place{info.Zone, info.Sandbox, info.Instance}}
		return true
	}
	better := int(info.Used) < c.used() || c.Draining && !info.Draining
	if info.Used != c.Used {
		c.knownUntil = time.Time{}
	}
	c.SandboxInfo = info
	return better
}

// goneLocked takes a worker off the list, and has the leases of it look whether it is gone indeed.
func (p *pool) goneLocked(k string) {
	c := p.candidates[k]
	if c == nil {
		return
	}
	delete(p.candidates, k)
	for l := range p.leases {
		if l.place == c.place {
			select {
			case l.gone <- struct{}{}:
			default: // it looks already
			}
		}
	}
}

// matchingLocked lists the live workers that are meant, sorted by name, and why others that are meant are not among them.
func (p *pool) matchingLocked(o *AcquireOptions) (list []*candidate, left leftOut) {
	for _, c := range p.candidates {
		switch {
		case !o.Matches(c.SandboxInfo):
		case !slices.Contains(c.Features, "leases"):
			left.old++
		case o.Requirements.Check(c.SandboxInfo) != nil:
			left.unfit++
		case c.Draining:
			left.draining++
		case p.quarantined[c.place]:
			left.quarantined++
		default:
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *candidate) int { return cmp.Compare(key(a.SandboxInfo), key(b.SandboxInfo)) })
	return list, left
}

// leftOut counts the live workers that are meant and not leased.
type leftOut struct{ old, unfit, draining, quarantined int }

func (l leftOut) String() string {
	var why []string
	for _, c := range []struct {
		n    int
		what string
	}{{l.old, "without leases"}, {l.unfit, "not what was required"}, {l.draining, "draining"}, {l.quarantined, "quarantined"}} {
		if c.n > 0 {
			why = append(why, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if why == nil {
		return "none is live that matches"
	}
	return "of those that match " + strings.Join(why, ", ")
}
