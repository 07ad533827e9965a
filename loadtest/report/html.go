package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"

	"github.com/sandbus/sandbus/loadtest/record"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	Runs      []record.Run
	Workloads []section
	Table     string
}

// section is one workload.
type section struct {
	Name   string
	Charts []template.HTML
	Knees  []record.Knee
}

// HTML writes one page with everything in it: no script, and nothing that is fetched from elsewhere.
func HTML(w io.Writer, f *record.File) error {
	data := pageData{Runs: f.Runs}
	var table bytes.Buffer
	if err := Table(&table, f); err != nil {
		return err
	}
	data.Table = table.String()
	for _, name := range workloads(f) {
		s := section{Name: name}
		var rungs []*record.Rung
		for _, r := range f.Rungs {
			if r.Workload == name {
				rungs = append(rungs, r)
			}
		}
		for _, k := range f.Knees {
			if k.Workload == name {
				s.Knees = append(s.Knees, k)
			}
		}
		s.Charts = []template.HTML{
			lines("Latency, p50", "µs", rungs, func(r *record.Rung) *float64 { return r.All.P50 }),
			lines("Latency, p95", "µs", rungs, func(r *record.Rung) *float64 { return r.All.P95 }),
			lines("Latency, p99", "µs", rungs, func(r *record.Rung) *float64 { return r.All.P99 }),
			lines("Throughput", "ops/s", rungs, func(r *record.Rung) *float64 { return r.Throughput }),
			knees(s.Knees),
			bounds(rungs),
			tiers(rungs),
		}
		data.Workloads = append(data.Workloads, s)
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

func workloads(f *record.File) []string {
	names := map[string]bool{}
	for _, r := range f.Rungs {
		names[r.Workload] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// armsOf are the arms of some rungs, in the order of their appearance.
func armsOf(rungs []*record.Rung) (arms []string) {
	for _, r := range rungs {
		if !slices.Contains(arms, r.Arm) {
			arms = append(arms, r.Arm)
		}
	}
	return arms
}

// concurrencies are the rungs of the ladder, ascending.
func concurrencies(rungs []*record.Rung) (cs []int) {
	for _, r := range rungs {
		if !slices.Contains(cs, r.Concurrency) {
			cs = append(cs, r.Concurrency)
		}
	}
	slices.Sort(cs)
	return cs
}
