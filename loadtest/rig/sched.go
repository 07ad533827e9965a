package rig

import (
	"math"
	"runtime/metrics"
	"slices"
)

const schedMetric = "/sched/latencies:seconds"

// sched is how long runnable goroutines of this process have waited for a processor since its start.
type sched struct{ counts []uint64 }

func readSched() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: schedMetric}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64Histogram {
		return nil // this Go has it no more
	}
	return s[0].Value.Float64Histogram()
}

func schedLatencies() sched {
	if h := readSched(); h != nil {
		return sched{slices.Clone(h.Counts)}
	}
	return sched{}
}

// p99Since is the 99th percentile since then, in microseconds; nil when it was not measured.
func (s sched) p99Since() *float64 {
	h := readSched()
	if h == nil || len(h.Counts) != len(s.counts) {
		return nil
	}
	delta := make([]uint64, len(h.Counts))
	for i := range delta {
		delta[i] = h.Counts[i] - s.counts[i]
	}
	return p99(delta, h.Buckets)
}

// p99 is the upper bound, in microseconds, of the bucket that has the 99th percentile; nil when there are no values.
func p99(counts []uint64, buckets []float64) *float64 {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	if total == 0 {
		return nil
	}
	rank := uint64(math.Ceil(0.99 * float64(total)))
	seen := uint64(0)
	for i, n := range counts {
		if seen += n; seen >= rank {
			bound := buckets[i+1]
			if math.IsInf(bound, 1) {
				bound = buckets[i]
			}
			return new(bound * 1e6)
		}
	}
	return nil
}
