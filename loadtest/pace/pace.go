// Package pace says when the operations of a session are due.
//
// In a closed loop a session thinks, then asks, and waits for the answer before it thinks again. In an open loop requests
// are due at times that do not depend on the answers: one that leaves late because the answer before it was late counts
// from when it was due, so that a stalled system cannot hide its stall. In bursts all sessions ask at the same moments.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

// Plan is how a session's operations are spread over a sample. Of Rate and Every at most one is set; with neither the
// loop is closed.
type Plan struct {
	Start time.Time     // nothing is due before
	End   time.Time     // nothing is due from here on
	Think time.Duration // closed loop: mean of the exponential pause before each operation; zero means none
	Rate  float64       // open loop: operations per second of this session, at random moments
	Every time.Duration // bursts: operations are due at Start, Start+Every, ...
	Timer Timer         // what waits; nil means Go's own timers. It stays the caller's to close
}

// Pacer is the schedule of one session. It is used by one goroutine.
type Pacer struct {
	plan   Plan
	rng    *rand.Rand
	due    time.Time
	began  bool
	missed int
	late   time.Duration
}

// New makes a schedule; the same numbers from rng make the same schedule.
func New(plan Plan, rng *rand.Rand) *Pacer {
	if plan.Timer == nil {
		plan.Timer = ordinary{}
	}
	return &Pacer{plan: plan, rng: rng, due: plan.Start}
}

func (p *Pacer) open() bool { return p.plan.Rate > 0 || p.plan.Every > 0 }

// Next waits for the next operation and returns the moment from which it counts: in a closed loop now, else when it was
// due. ok is false when the sample is over or ctx has ended.
func (p *Pacer) Next(ctx context.Context) (from time.Time, ok bool) {
	p.advance(time.Now())
	if !p.due.Before(p.plan.End) {
		return time.Time{}, false
	}
	now := time.Now()
	if p.open() && !now.Before(p.plan.End) {
		for p.due.Before(p.plan.End) { // due in time, and never asked
			p.missed++
			p.advance(now)
		}
		return time.Time{}, false
	}
	p.late = 0
	if wait := p.due.Sub(now); wait > 0 {
		if !p.plan.Timer.WaitUntil(ctx, p.due) {
			return time.Time{}, false
		}
		p.late = time.Since(p.due)
	}
	if ctx.Err() != nil {
		return time.Time{}, false
	}
	if p.open() {
		return p.due, true
	}
	return time.Now(), true
}

// advance sets when the operation behind the present one is due.
func (p *Pacer) advance(now time.Time) {
	switch {
	case p.plan.Every > 0:
		if p.began {
			p.due = p.due.Add(p.plan.Every)
		}
	case p.plan.Rate > 0:
		p.due = p.due.Add(time.Duration(p.rng.ExpFloat64() / p.plan.Rate * float64(time.Second)))
	default:
		if now.Before(p.plan.Start) {
			now = p.plan.Start
		}
		p.due = now
		if p.plan.Think > 0 {
			p.due = now.Add(time.Duration(p.rng.ExpFloat64() * float64(p.plan.Think)))
		}
	}
	p.began = true
}

// Missed is how many operations were due before the end and never asked, because those before them took too long.
func (p *Pacer) Missed() int { return p.missed }

// Late is by how much this machine's own timer was late for the last operation; zero when there was nothing to wait for.
func (p *Pacer) Late() time.Duration { return p.late }
