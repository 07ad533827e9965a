package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/sandbus/sandbus/loadtest/record"
)

// Comparison prints the ratios of two recordings.
func Comparison(w io.Writer, diffs []record.Diff, limit float64) error {
	if _, err := fmt.Fprintf(w, "B over A: median (smallest to largest of any two samples); past the limit of %g is marked\n\n", limit); err != nil {
		return err
	}
	return grid(w, []column[record.Diff]{
		{"workload", func(d record.Diff) string { return d.Workload }},
		{"c", func(d record.Diff) string { return fmt.Sprint(d.Concurrency) }},
		{"arm", func(d record.Diff) string {
			if d.ArmB == "" || d.ArmB == d.ArmA {
				return d.ArmA
			}
			return d.ArmB + "/" + d.ArmA
		}},
		{"operation", func(d record.Diff) string {
			if d.Kind == "" {
				return "all"
			}
			return d.Kind
		}},
		{"p50", func(d record.Diff) string { return spread(d.P50) }},
		{"p95", func(d record.Diff) string { return spread(d.P95) }},
		{"throughput", func(d record.Diff) string { return spread(d.Throughput) }},
		{"past", func(d record.Diff) string { return strings.Join(d.Past, ",") }},
	}, diffs)
}

func spread(r *record.Ratio) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", r.Median, r.Low, r.High)
}
