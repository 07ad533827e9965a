package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAttribution(t *testing.T) {
	base := func() *Rung {
		return &Rung{
			Loop: "closed", SuccessRate: ptr(1), Throughput: ptr(1000), Ceiling: ptr(100_000), All: &Ops{P50: ptr(100)},
			SandboxCPUShare: ptr(0.1), HarnessCPUShare: ptr(0.1), HubCPUShare: ptr(0.1), SchedP99: ptr(10), LeaseWaitShare: ptr(0),
			Hub: &Hub{SlowConsumers: ptr(0)},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Rung)
		bound  string
		column string
		value  float64
	}{
		{"nothing stands out", func(*Rung) {}, BoundUnattributed, "", 0},
		{"the generator", func(r *Rung) { r.Throughput = ptr(50_001) }, BoundGenerator, "throughput_ops/ceiling_ops", 0.50001},
		{"half the ceiling is not over it", func(r *Rung) { r.Throughput = ptr(50_000) }, BoundUnattributed, "", 0},
		{"late timers in an open loop", func(r *Rung) { r.Loop, r.TimerLateP99 = "open", ptr(60) }, BoundGenerator, "timer_late_p99_us", 60},
		{"late timers say nothing of a closed one", func(r *Rung) { r.TimerLateP99 = ptr(60) }, BoundUnattributed, "", 0},
		{"leases", func(r *Rung) { r.LeaseWaitShare = ptr(0.2) }, BoundLeases, "lease_wait_share", 0.2},
		{"slow consumers", func(r *Rung) { r.Hub.SlowConsumers = ptr(1) }, BoundHub, "hub.slow_consumers", 1},
		{"sandboxes", func(r *Rung) { r.SandboxCPUShare = ptr(0.7) }, BoundSandbox, "sandbox_cpu_share", 0.7},
		{"harness", func(r *Rung) { r.HarnessCPUShare = ptr(0.61) }, BoundHarness, "harness_cpu_share", 0.61},
		{"hub", func(r *Rung) { r.HubCPUShare = ptr(0.62) }, BoundHub, "hub_cpu_share", 0.62},
		{"relay", func(r *Rung) { r.RelayCPUShare = ptr(0.63) }, BoundRelay, "relay_cpu_share", 0.63},
		{"a machine with room", func(r *Rung) { r.SandboxCPUShare = ptr(0.5) }, BoundUnattributed, "", 0},
		{"scheduler", func(r *Rung) { r.SchedP99 = ptr(51) }, BoundScheduler, "sched_p99_us", 51},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := base()
			c.change(r)
			r.Attribute(Limits{}.Defaults())
			require.Equal(t, c.bound, r.Bound)
			require.Equal(t, c.column, r.BoundColumn)
			if c.column == "" {
				require.Nil(t, r.BoundValue)
			} else {
				require.InDelta(t, c.value, *r.BoundValue, 1e-9)
			}
			require.Equal(t, c.bound == BoundGenerator, r.Marked(MarkGenerator))
			require.False(t, r.Marked(MarkSuccess))
		})
	}
}

func TestAttributionOfWhatWasNotMeasured(t *testing.T) {
	r := &Rung{All: &Ops{}}
	r.Attribute(Limits{}.Defaults())
	require.Equal(t, BoundUnattributed, r.Bound)
	require.True(t, r.Marked(MarkSuccess), "a rung without attempts is no success")
	r = &Rung{All: &Ops{}, SuccessRate: ptr(0.949)}
	r.Attribute(Limits{}.Defaults())
	require.True(t, r.Marked(MarkSuccess))
}
