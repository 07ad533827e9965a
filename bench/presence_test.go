package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub/hubtest"
)

// BenchmarkPresence prints what the beats of 10,000 sandboxes cost: a hub, a registrar and the sandboxes, which are
// simulated on one connection, in a process each.
func BenchmarkPresence(b *testing.B) {
	const sandboxes = 10_000
	const span = 20 * time.Second
	c := hubtest.Start(b, 1)
	registrar := c.StartRegistrarProcess(b, "first")
	dir, err := bus.OpenDirectory(b.Context(), c.Connect(b, 0, bus.RoleHarness, "bench"))
	require.NoError(b, err)
	all := func() bool {
		list, err := dir.List(b.Context())
		return err == nil && len(list) == sandboxes
	}
	for b.Loop() {
		<-time.After(time.Second) // what starting leaves is collected
		hubBefore, registrarBefore := rss(b, c.Process(0).Pid), rss(b, c.Process(registrar).Pid)
		swarm := c.Swarm(b, sandboxes)
		require.Eventually(b, all, time.Minute, 100*time.Millisecond)
		<-time.After(hubtest.SwarmBeat) // until the beats are spread evenly
		hub, reg := cpu(b, c.Process(0)), cpu(b, c.Process(registrar))
		begin := time.Now()
		<-time.After(span)
		took := time.Since(begin).Seconds()
		hub, reg = cpu(b, c.Process(0))-hub, cpu(b, c.Process(registrar))-reg
		require.True(b, all(), "none is lost meanwhile")
		report(b, "10,000 beats in 5 s, cores of hub and registrar", (hub+reg).Seconds()/took, true, 0.15,
			fmt.Sprintf("hub %.1f %%, registrar %.1f %% of one core, over %.0f s", 100*hub.Seconds()/took, 100*reg.Seconds()/took, took))
		perBox := func(before int64, pid int) float64 { return float64(rss(b, pid)-before) / 1024 / sandboxes }
		inHub, inRegistrar := perBox(hubBefore, c.Process(0).Pid), perBox(registrarBefore, c.Process(registrar).Pid)
		fmt.Printf("%-44s %6.2f  KiB of memory: %.1f in the hub, %.1f in the registrar; connections apart\n", "per sandbox",
			inHub+inRegistrar, inHub, inRegistrar)

		c.Kill(b, registrar)
		swarm.LoseBucket(b)
		begin = time.Now()
		registrar = c.StartRegistrarProcess(b, "second")
		require.Eventually(b, all, time.Minute, 50*time.Millisecond)
		report(b, "restart of the registrar, s until all are seen", time.Since(begin).Seconds(), true, 10, "and the bucket was lost")
	}
}
