package harnesslib

import "time"

// LeaseStats counts what became of a hub's leases since it was connected.
type LeaseStats struct {
	Acquires  int64 // calls of Acquire
	Granted   int64 // leases that workers granted
	Refused   int64 // times that a worker said it had no room
	Saturated int64 // calls that found no slot free at their first look
	Waited    int64 // calls that got a lease after they had waited
	GaveUp    int64 // calls that waited until their context ended
	// WaitTime is how long those that Waited did, together and at most.
	WaitTime, MaxWait time.Duration

	Released    int64 // leases that we ended
	Gone        int64 // leases that ended with their worker
	Fenced      int64 // leases that were not renewed in time, or unknown to their worker
	Quarantined int64 // leases that ended because an abort was not confirmed

	Held    int // leases now
	Waiting int // calls that wait now
}

// SaturatedShare is which part of the calls found no slot free, from 0 to 1.
func (s LeaseStats) SaturatedShare() float64 {
	if s.Acquires == 0 {
		return 0
	}
	return float64(s.Saturated) / float64(s.Acquires)
}

func (p *pool) note(f func(*LeaseStats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.stats)
}

// waited notes a call that got its lease after a while.
func (p *pool) waited(d time.Duration) {
	p.note(func(s *LeaseStats) {
		s.Waited++
		s.WaitTime += d
		s.MaxWait = max(s.MaxWait, d)
	})
}

func (p *pool) snapshot() LeaseStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Held = len(p.leases)
	for _, w := range p.queue {
		if w.waiting {
			s.Waiting++
		}
	}
	return s
}
