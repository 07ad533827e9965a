package record

import (
	"fmt"
	"slices"
)

// Knee is where an arm's latency begins to suffer from concurrency. It is about operations in flight, and always a
// floor: what was not tried is not known.
type Knee struct {
	Record   string `json:"record"` // "knee"
	Arm      string `json:"arm"`
	Workload string `json:"workload"`
	// Concurrency is the highest healthy rung; zero when there is none, or no baseline to tell by.
	Concurrency int  `json:"concurrency"`
	AtLeast     bool `json:"at_least"` // the ladder ended before the arm did
	// Why says why there is no knee, or what the ladder ended by; empty when the knee was passed.
	Why string `json:"why,omitempty"`
	// Mark is set when the knee cannot be told, and makes the exit status say so.
	Mark string `json:"mark,omitempty"`
}

// MarkBaseline marks an arm whose ladder has no rung at concurrency 1 that could be the baseline.
const MarkBaseline = "missing-baseline-rung"

// String is "64", "at least 64" or "none".
func (k Knee) String() string {
	switch {
	case k.Concurrency == 0:
		return "none"
	case k.AtLeast:
		return fmt.Sprintf("at least %d", k.Concurrency)
	}
	return fmt.Sprint(k.Concurrency)
}

// FindKnee looks for the knee of one arm: the highest rung whose p95 is within Degrade of the p95 at concurrency 1 and
// whose success rate is high enough, before Patience rungs in a row are not so.
func FindKnee(rungs []*Rung, l Limits) Knee {
	ladder := slices.Clone(rungs)
	slices.SortStableFunc(ladder, func(a, b *Rung) int { return a.Concurrency - b.Concurrency })
	k := Knee{Record: "knee"}
	if len(ladder) == 0 {
		k.Mark, k.Why = MarkBaseline, "no rung was run"
		return k
	}
	k.Arm, k.Workload = ladder[0].Arm, ladder[0].Workload
	base := ladder[0]
	if base.Concurrency != 1 {
		k.Mark, k.Why = MarkBaseline, fmt.Sprintf("the lowest rung is %d: want 1, the warm baseline", base.Concurrency)
		return k
	}
	if base.All.P95 == nil || !healthy(base, *base.All.P95, l) {
		k.Why = "the baseline itself is below the success floor"
		return k
	}
	misses := 0
	var first *Rung // of the misses in a row
	for _, r := range ladder {
		if healthy(r, *base.All.P95, l) {
			k.Concurrency, misses, first = r.Concurrency, 0, nil
			continue
		}
		if misses++; misses == 1 {
			first = r
		}
		if misses == l.Patience {
			break
		}
	}
	switch {
	case first == nil:
		k.AtLeast, k.Why = true, "the top rung was healthy"
	case first.Marked(MarkGenerator):
		k.AtLeast, k.Why = true, fmt.Sprintf("the generator bounds rung %d", first.Concurrency)
	case misses < l.Patience:
		k.Why = fmt.Sprintf("the ladder ends after %d of %d unhealthy rungs", misses, l.Patience)
	}
	return k
}

func healthy(r *Rung, base float64, l Limits) bool {
	return r.SuccessRate != nil && *r.SuccessRate >= l.Success && r.All.P95 != nil && *r.All.P95 <= l.Degrade*base
}
