package record

import (
	"fmt"
	"slices"
)

// Limits say when a rung is healthy and what bounds it. Its zero value stands for the defaults.
type Limits struct {
	Degrade  float64 // a rung is healthy while its p95 is at most this many times the baseline's; zero means 2
	Patience int     // so many unhealthy rungs in a row end the search for the knee; zero means 2
	Success  float64 // share of attempts that must succeed; zero means 0.95
}

// Defaults fills in what zero means.
func (l Limits) Defaults() Limits {
	if l.Degrade == 0 {
		l.Degrade = 2
	}
	if l.Patience == 0 {
		l.Patience = 2
	}
	if l.Success == 0 {
		l.Success = 0.95
	}
	return l
}

// Check refuses what can be no limit.
func (l Limits) Check() error {
	switch {
	case l.Degrade < 1:
		return fmt.Errorf("degrade %g: want 1 or more times the baseline's p95", l.Degrade)
	case l.Patience < 1:
		return fmt.Errorf("patience %d: want 1 or more rungs", l.Patience)
	case l.Success <= 0 || l.Success > 1:
		return fmt.Errorf("success rate %g: want more than 0, and at most 1", l.Success)
	}
	return nil
}

// What can bound a rung.
const (
	BoundSandbox      = "sandbox CPU"
	BoundHarness      = "harness CPU"
	BoundScheduler    = "harness scheduler latency"
	BoundHub          = "hub"
	BoundRelay        = "relay CPU"
	BoundLeases       = "lease pool"
	BoundGenerator    = "generator"
	BoundUnattributed = "unattributed"
)

const (
	// ceilingShare of the generator's own ceiling is where a rung is the generator's figure and not the system's.
	ceilingShare = 0.5
	// leaseShare of acquisitions that waited or were refused is where the pool bounds.
	leaseShare = 0.05
	// machineFull is the share of the processors at which they are what everything waits for.
	machineFull = 0.8
	// schedShare of the median latency is where waiting for a processor in the harness is what a request does.
	schedShare = 0.5
)

// Attribute names what bounds the rung, from its own columns and with the column that shows it, and sets the marks that
// follow from the figures. A column that was not measured names nothing.
func (r *Rung) Attribute(l Limits) {
	if r.SuccessRate == nil || *r.SuccessRate < l.Success {
		r.mark(MarkSuccess)
	}
	r.Bound, r.BoundColumn, r.BoundValue = r.attribute()
	if r.Bound == BoundGenerator {
		r.mark(MarkGenerator)
	}
}

func (r *Rung) mark(m string) { r.Marks = append(r.Marks, m) }

// Marked says whether the rung has a mark.
func (r *Rung) Marked(mark string) bool {
	return slices.Contains(r.Marks, mark)
}

func (r *Rung) attribute() (bound, column string, value *float64) {
	if r.Throughput != nil && r.Ceiling != nil && *r.Ceiling > 0 && *r.Throughput > ceilingShare**r.Ceiling {
		return BoundGenerator, "throughput_ops/ceiling_ops", new(*r.Throughput / *r.Ceiling)
	}
	var p50 *float64
	if r.All != nil {
		p50 = r.All.P50
	}
	if r.TimerLateP99 != nil && r.Loop != "closed" && p50 != nil && *r.TimerLateP99 > *p50/2 {
		return BoundGenerator, "timer_late_p99_us", r.TimerLateP99
	}
	if r.LeaseWaitShare != nil && *r.LeaseWaitShare > leaseShare {
		return BoundLeases, "lease_wait_share", r.LeaseWaitShare
	}
	if r.Hub != nil && r.Hub.SlowConsumers != nil && *r.Hub.SlowConsumers > 0 {
		return BoundHub, "hub.slow_consumers", r.Hub.SlowConsumers
	}
	tiers := []struct {
		bound, column string
		share         *float64
	}{
		{BoundSandbox, "sandbox_cpu_share", r.SandboxCPUShare},
		{BoundHarness, "harness_cpu_share", r.HarnessCPUShare},
		{BoundHub, "hub_cpu_share", r.HubCPUShare},
		{BoundRelay, "relay_cpu_share", r.RelayCPUShare},
	}
	total := 0.0
	top := tiers[0]
	for _, t := range tiers {
		if t.share == nil {
			continue
		}
		total += *t.share
		if top.share == nil || *t.share > *top.share {
			top = t
		}
	}
	if total >= machineFull {
		return top.bound, top.column, top.share
	}
	if r.SchedP99 != nil && p50 != nil && *r.SchedP99 > schedShare**p50 {
		return BoundScheduler, "sched_p99_us", r.SchedP99
	}
	return BoundUnattributed, "", nil
}
