package harnesslib

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbus/sandbus/bus"
)

// candidate is a worker instance that leases may be had of, as we know it. It is guarded by its pool's lock.
type candidate struct {
	SandboxInfo

	place place
	// used is how many slots are taken, by the latest beat or the worker's own word, whichever came later. The beats lag
	// behind, and others take slots too.
	used int
	// held are the leases of ours, asking the requests for one that are on their way.
	held, asking int
	// silent says that nobody answered there; the next beat takes it back.
	silent bool
}

func (c *candidate) full(o *AcquireOptions) bool {
	if o.Exclusive {
		return c.taken() > 0
	}
	return c.taken() >= c.bound(o)
}

// taken is how many slots are taken, as far as we know: at least ours.
func (c *candidate) taken() int { return max(c.used, c.held) + c.asking }

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

func (p *pool) sync(all []SandboxInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := map[string]bool{}
	for _, info := range all {
		live[key(info)] = true
		p.liveLocked(info)
	}
	for k := range p.candidates {
		if !live[k] {
			p.goneLocked(k)
		}
	}
	if !p.synced {
		p.synced = true
		close(p.ready)
	}
	p.wakeLocked()
}

func (p *pool) live(info SandboxInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.liveLocked(info) {
		p.wakeLocked()
	}
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
		c = &candidate{place: place{info.Zone, info.Sandbox, info.Instance}}
		p.candidates[k] = c
	}
	better := c.Features == nil || c.silent || int(info.Used) < c.used || c.Draining && !info.Draining
	c.SandboxInfo, c.silent, c.used = info, false, int(info.Used)
	return better
}

func (p *pool) gone(z bus.Zone, id bus.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goneLocked(string(z) + "." + string(id))
	p.wakeLocked()
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
type leftOut struct{ old, draining, quarantined int }

func (l leftOut) String() string {
	var why []string
	for _, c := range []struct {
		n    int
		what string
	}{{l.old, "without leases"}, {l.draining, "draining"}, {l.quarantined, "quarantined"}} {
		if c.n > 0 {
			why = append(why, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if why == nil {
		return "none is live that matches"
	}
	return "of those that match " + strings.Join(why, ", ")
}
