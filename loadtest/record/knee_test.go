package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// ladder makes rungs of p95 in µs and success rates, at 1, 2, 4, ...
func ladder(p95 []float64, success []float64) []*Rung {
	var rungs []*Rung
	for i, v := range p95 {
		r := &Rung{Arm: "arm", Workload: "mix", Concurrency: 1 << i, All: &Ops{P95: ptr(v)}, SuccessRate: ptr(1)}
		if success != nil {
			r.SuccessRate = ptr(success[i])
		}
		rungs = append(rungs, r)
	}
	return rungs
}

func TestKnee(t *testing.T) {
	l := Limits{}.Defaults()
	for _, c := range []struct {
		name    string
		p95     []float64
		success []float64
		want    string
		mark    string
	}{
		{"passed", []float64{100, 150, 199, 300, 400}, nil, "4", ""},
		{"exactly at the limit is healthy", []float64{100, 200, 201, 201}, nil, "2", ""},
		{"top rung healthy", []float64{100, 100, 110, 120}, nil, "at least 8", ""},
		{"one dip does not end it", []float64{100, 100, 900, 120, 500, 500}, nil, "8", ""},
		{"two dips do", []float64{100, 100, 900, 900, 120}, nil, "2", ""},
		{"ends before patience", []float64{100, 100, 900}, nil, "2", ""},
		{"fast failures are no health", []float64{100, 100, 100, 100}, []float64{1, 1, 0.94, 0.5}, "2", ""},
		{"at the floor", []float64{100, 100, 100}, []float64{1, 0.95, 0.95}, "at least 4", ""},
		{"a baseline that fails", []float64{100, 100}, []float64{0.5, 1}, "none", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := FindKnee(ladder(c.p95, c.success), l)
			require.Equal(t, c.want, k.String(), k.Why)
			require.Equal(t, c.mark, k.Mark)
			require.Equal(t, "arm", k.Arm)
		})
	}
}

func TestKneeNeedsItsBaseline(t *testing.T) {
	l := Limits{}.Defaults()
	k := FindKnee(ladder([]float64{100, 100, 100}, nil)[1:], l)
	require.Equal(t, MarkBaseline, k.Mark)
	require.Equal(t, "none", k.String())
	require.Contains(t, k.Why, "the lowest rung is 2")
	require.Equal(t, MarkBaseline, FindKnee(nil, l).Mark)

	silent := ladder([]float64{100, 100}, nil)
	silent[0].All.P95 = nil // nothing succeeded
	require.Equal(t, "none", FindKnee(silent, l).String())
}

func TestKneeOfAGeneratorIsAFloor(t *testing.T) {
	rungs := ladder([]float64{100, 100, 900, 900}, nil)
	rungs[2].Marks = []string{MarkGenerator}
	k := FindKnee(rungs, Limits{}.Defaults())
	require.Equal(t, "at least 2", k.String())
	require.Contains(t, k.Why, "the generator bounds rung 4")
}

func TestLimits(t *testing.T) {
	require.NoError(t, Limits{}.Defaults().Check())
	require.ErrorContains(t, Limits{Degrade: 0.5}.Defaults().Check(), "degrade 0.5")
	require.ErrorContains(t, Limits{Patience: -1}.Defaults().Check(), "patience -1")
	require.ErrorContains(t, Limits{Success: 1.5}.Defaults().Check(), "success rate 1.5")
}
