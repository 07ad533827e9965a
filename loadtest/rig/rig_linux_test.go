package rig

import (
	"math"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestSplit(t *testing.T) {
	for _, c := range []struct{ rung, workers, processes, sessions int }{{1, 2, 1, 1}, {2, 2, 2, 1}, {3, 4, 3, 1}, {16, 2, 2, 8}, {64, 1, 1, 64}} {
		p, s := split(c.rung, c.workers)
		require.Equal(t, [2]int{c.processes, c.sessions}, [2]int{p, s}, "%+v", c)
	}
}

func TestQuantileOfBuckets(t *testing.T) {
	buckets := []float64{0, 1e-6, 1e-5, 1e-4, math.Inf(1)}
	require.Nil(t, p99([]uint64{0, 0, 0, 0}, buckets))
	require.InDelta(t, 1, *p99([]uint64{100, 0, 0, 0}, buckets), 1e-9)
	require.InDelta(t, 10, *p99([]uint64{98, 2, 0, 0}, buckets), 1e-9)
	require.InDelta(t, 1, *p99([]uint64{99, 1, 0, 0}, buckets), 1e-9)
	require.InDelta(t, 100, *p99([]uint64{0, 0, 0, 5}, buckets), 1e-9, "of the last bucket only the lower bound is known")
}

func TestSchedLatencies(t *testing.T) {
	s := schedLatencies()
	for range 100 {
		done := make(chan struct{})
		go close(done)
		<-done
	}
	require.NotNil(t, s.p99Since())
}

func TestDescendants(t *testing.T) {
	all := map[int]procStat{
		1:  {parent: 0, cpu: time.Hour, waited: time.Second, rss: 1},
		2:  {parent: 1, cpu: 2 * time.Second, waited: 3 * time.Second, rss: 10},
		3:  {parent: 2, cpu: 4 * time.Second, rss: 20},
		4:  {parent: 9, cpu: time.Hour, rss: 1000},
		10: {parent: 11}, 11: {parent: 10}, // a ring
	}
	cpu, rss, ok := below(all, 1)
	require.True(t, ok)
	require.Equal(t, 10*time.Second, cpu, "what lives below, and what it and the root have waited for")
	require.EqualValues(t, 30, rss)
	_, _, ok = below(all, 5)
	require.False(t, ok)
	require.Positive(t, processes()[os.Getpid()].rss)
}

// TestForksCountsProcesses counts those that a shell starts, and neither threads nor others.
func TestForksCountsProcesses(t *testing.T) {
	f, err := watchForks()
	testenv.Need(t, "cn_proc", err == nil) // root in the first namespaces
	defer f.close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read go; for i in 1 2 3; do (exec true); done; (sh -c 'exec true; :')& wait; read stop; exit 0")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	root := cmd.Process.Pid
	f.add(root)
	require.Zero(t, *f.started(root))
	_, err = in.Write([]byte("go\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return *f.started(root) >= 4 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, exec.CommandContext(t.Context(), "true").Run(), "not below the shell")
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.LessOrEqual(t, *f.started(root), 5.0)
	require.Nil(t, f.started(1), "it was never added")
}

func TestConfig(t *testing.T) {
	cfg := Config{}
	require.ErrorContains(t, cfg.Check(), "workload")
	require.Subset(t, ArmNames(), []string{
		"echo", "bus-native", "bus-shell", "bus-exec", "bus-embedded", "local", "relay", "relay+fast", "relay-echo", "command",
		"command-percall", "docker", "docker-percall", "ssh",
	})
	for _, name := range ArmNames() {
		require.Contains(t, DescribeArms(), name)
	}
}
