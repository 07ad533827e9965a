package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func compared(arm string, c int, p50, throughput float64) *Rung {
	o := &Ops{P50: ptr(p50), P95: ptr(2 * p50), P50Of: []float64{0.9 * p50, p50, 1.1 * p50}, P95Of: []float64{2 * p50}}
	return &Rung{
		Arm: arm, Workload: "w", Concurrency: c, All: o, Ops: map[string]*Ops{"read": o, "stat": o},
		Throughput: ptr(throughput), ThroughputOf: []float64{throughput},
	}
}

func TestCompare(t *testing.T) {
	a := []*Rung{compared("x", 1, 100, 1000), compared("x", 4, 100, 1000)}
	same := Compare(a, a, false, 1.25)
	require.Len(t, same, 6, "all, read and stat, for each rung")
	for _, d := range same {
		require.Empty(t, d.Past)
		require.InDelta(t, 1, d.P50.Median, 1e-9)
		require.InDelta(t, 0.9/1.1, d.P50.Low, 1e-9)
		require.InDelta(t, 1.1/0.9, d.P50.High, 1e-9)
	}

	slower := Compare(a, []*Rung{compared("x", 1, 130, 1000), compared("x", 4, 120, 700)}, false, 1.25)
	require.Equal(t, []string{"p50", "p95"}, slower[0].Past)
	require.Equal(t, []string{"throughput"}, slower[3].Past)
	require.Empty(t, Compare(a, []*Rung{compared("x", 1, 50, 3000), compared("x", 4, 50, 3000)}, false, 1.25)[0].Past, "better is never too much")

	gone := Compare(a, a[:1], false, 1.25)
	require.Equal(t, []string{"missing"}, gone[len(gone)-1].Past)

	failing := compared("x", 1, 100, 1000)
	failing.Marks = []string{MarkSuccess}
	require.Equal(t, []string{"marked"}, Compare(a[:1], []*Rung{failing}, false, 1.25)[0].Past)
}

func TestCompareArms(t *testing.T) {
	a, b := []*Rung{compared("echo", 1, 100, 1000)}, []*Rung{compared("bus", 1, 115, 900)}
	require.Equal(t, []string{"missing"}, Compare(a, b, false, 2)[0].Past)
	d := Compare(a, b, true, 2)[0]
	require.InDelta(t, 1.15, d.P50.Median, 1e-9)
	require.InDelta(t, 0.9, d.Throughput.Median, 1e-9)
}
