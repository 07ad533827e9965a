package record

import (
	"maps"
	"slices"
)

// Ratio is B's figure over A's. Low and High are the smallest and the largest ratio of a sample of B to one of A.
type Ratio struct {
	Median, Low, High float64
}

// Diff compares one kind of operation of a rung in two recordings.
type Diff struct {
	Workload, ArmA, ArmB string
	Concurrency          int
	Kind                 string // of operation; empty means all of them
	P50, P95, Throughput *Ratio // nil when one side has none
	// Past names what is past the limit: p50, p95, throughput, missing (B has no such rung), marked (B's rung is below
	// the success floor).
	Past []string
}

// Compare compares the rungs of A with those of B that have the same workload and concurrency, and the same arm unless
// arms is set. limit is how many times worse is too much.
func Compare(a, b []*Rung, arms bool, limit float64) (diffs []Diff) {
	for _, x := range a {
		i := slices.IndexFunc(b, func(y *Rung) bool {
			return x.Workload == y.Workload && x.Concurrency == y.Concurrency && (arms || x.Arm == y.Arm)
		})
		if i < 0 {
			diffs = append(diffs, Diff{Workload: x.Workload, ArmA: x.Arm, Concurrency: x.Concurrency, Past: []string{"missing"}})
			continue
		}
		y := b[i]
		d := diff(x, y, "", x.All, y.All)
		d.Throughput = ratioOf(x.Throughput, y.Throughput, x.ThroughputOf, y.ThroughputOf)
		if t := d.Throughput; t != nil && t.Median < 1/limit {
			d.Past = append(d.Past, "throughput")
		}
		if y.Marked(MarkSuccess) && !x.Marked(MarkSuccess) {
			d.Past = append(d.Past, "marked")
		}
		d.past(limit)
		diffs = append(diffs, d)
		for _, kind := range slices.Sorted(maps.Keys(x.Ops)) {
			if o := y.Ops[kind]; o != nil && len(x.Ops) > 1 {
				d := diff(x, y, kind, x.Ops[kind], o)
				d.past(limit)
				diffs = append(diffs, d)
			}
		}
	}
	return diffs
}

func diff(x, y *Rung, kind string, a, b *Ops) Diff {
	return Diff{
		Workload: x.Workload, ArmA: x.Arm, ArmB: y.Arm, Concurrency: x.Concurrency, Kind: kind,
		P50: ratioOf(a.P50, b.P50, a.P50Of, b.P50Of), P95: ratioOf(a.P95, b.P95, a.P95Of, b.P95Of),
	}
}

func (d *Diff) past(limit float64) {
	if d.P50 != nil && d.P50.Median > limit {
		d.Past = append(d.Past, "p50")
	}
	if d.P95 != nil && d.P95.Median > limit {
		d.Past = append(d.Past, "p95")
	}
}

func ratioOf(a, b *float64, as, bs []float64) *Ratio {
	if a == nil || b == nil || *a <= 0 {
		return nil
	}
	r := &Ratio{Median: *b / *a, Low: *b / *a, High: *b / *a}
	if len(as) > 0 && len(bs) > 0 && slices.Min(as) > 0 {
		r.Low, r.High = slices.Min(bs)/slices.Max(as), slices.Max(bs)/slices.Min(as)
	}
	return r
}

// Append adds the records of another file.
func (f *File) Append(g *File) {
	f.Runs = append(f.Runs, g.Runs...)
	f.Rungs = append(f.Rungs, g.Rungs...)
	f.Knees = append(f.Knees, g.Knees...)
	f.Missing = append(f.Missing, g.Missing...)
	f.Addressable = append(f.Addressable, g.Addressable...)
}
