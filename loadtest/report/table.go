package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sandbus/sandbus/loadtest/record"
)

// Table prints a file of records: a line for each rung, one for each kind of operation, the knees, what was missing.
func Table(w io.Writer, f *record.File) error {
	for _, r := range f.Runs {
		m := r.Machine
		if _, err := fmt.Fprintf(w, "workload %s, %s\n%d × %s, %s/%s, kernel %s, load %s\n%s\n\n", r.Workload, r.Time,
			m.CPUs, m.CPU, m.OS, m.Arch, m.Kernel, m.Load, versions(m)); err != nil {
			return err
		}
	}
	if len(f.Rungs) > 0 {
		if err := grid(w, rungColumns, f.Rungs); err != nil {
			return err
		}
		if err := operations(w, f.Rungs); err != nil {
			return err
		}
	}
	for _, k := range f.Knees {
		line := fmt.Sprintf("knee %-16s %s", k.Arm, k)
		if k.Why != "" {
			line += ": " + k.Why
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	if err := missing(w, f); err != nil {
		return err
	}
	return addressable(w, f.Addressable)
}

// rungColumns are the columns of a rung, those that were measured nowhere left out.
var rungColumns = []column[*record.Rung]{
	{"c", func(r *record.Rung) string { return fmt.Sprint(r.Concurrency) }},
	{"arm", func(r *record.Rung) string { return r.Arm }},
	{"W×S/K", func(r *record.Rung) string { return fmt.Sprintf("%d×%d/%d", r.Workers, r.Sessions, r.Sandboxes) }},
	{"attempts", func(r *record.Rung) string { return fmt.Sprint(r.Attempts) }},
	{"ok", func(r *record.Rung) string { return record.Percent(r.SuccessRate) }},
	{"ops/s", func(r *record.Rung) string { return record.Number(r.Throughput) }},
	{"p50", func(r *record.Rung) string { return record.Micros(r.All.P50) }},
	{"p90", func(r *record.Rung) string { return record.Micros(r.All.P90) }},
	{"p95", func(r *record.Rung) string { return record.Micros(r.All.P95) }},
	{"p99", func(r *record.Rung) string { return record.Micros(r.All.P99) }},
	{"p99.9", func(r *record.Rung) string { return record.Micros(r.All.P999) }},
	{"max", func(r *record.Rung) string { return record.Micros(r.All.Max) }},
	{"lease waits", func(r *record.Rung) string { return record.Percent(r.LeaseWaitShare) }},
	{"wait p95", func(r *record.Rung) string { return record.Micros(r.LeaseWaitP95) }},
	{"sandbox CPU", func(r *record.Rung) string { return record.Percent(r.SandboxCPUShare) }},
	{"harness CPU", func(r *record.Rung) string { return record.Percent(r.HarnessCPUShare) }},
	{"hub CPU", func(r *record.Rung) string { return record.Percent(r.HubCPUShare) }},
	{"relay CPU", func(r *record.Rung) string { return record.Percent(r.RelayCPUShare) }},
	{"far CPU/op", func(r *record.Rung) string { return record.Micros(r.CPUPerOp) }},
	{"started", func(r *record.Rung) string { return record.Number(r.ProcessesStarted) }},
	{"duty", func(r *record.Rung) string { return record.Percent(r.Duty) }},
	{"sandbox RSS", func(r *record.Rung) string { return record.Bytes(r.SandboxRSS) }},
	{"harness RSS", func(r *record.Rung) string { return record.Bytes(r.HarnessRSS) }},
	{"goroutines", func(r *record.Rung) string {
		return each(r.Harnesses, func(p record.Process) *float64 { return p.Goroutines })
	}},
	{"sched p99", func(r *record.Rung) string { return record.Micros(r.SchedP99) }},
	{"hub msgs/s", func(r *record.Rung) string {
		return ofHub(r, func(h *record.Hub) string { return record.Number(h.MsgsPerS) })
	}},
	{"hub bytes/s", func(r *record.Rung) string {
		return ofHub(r, func(h *record.Hub) string { return record.Bytes(h.BytesPerS) })
	}},
	{"slow", func(r *record.Rung) string {
		return ofHub(r, func(h *record.Hub) string { return record.Number(h.SlowConsumers) })
	}},
	{"ceiling", func(r *record.Rung) string { return record.Number(r.Ceiling) }},
	{"bound", bound},
	{"marks", func(r *record.Rung) string { return strings.Join(r.Marks, ",") }},
}

func bound(r *record.Rung) string {
	if r.BoundColumn == "" || r.BoundValue == nil {
		return r.Bound
	}
	return fmt.Sprintf("%s (%s %.3g)", r.Bound, r.BoundColumn, *r.BoundValue)
}

func ofHub(r *record.Rung, show func(*record.Hub) string) string {
	if r.Hub == nil {
		return "-"
	}
	return show(r.Hub)
}

func each(ps []record.Process, of func(record.Process) *float64) string {
	var parts []string
	for _, p := range ps {
		parts = append(parts, record.Number(of(p)))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, "+")
}

type column[T any] struct {
	name string
	show func(T) string
}

func (c column[T]) measured(rows []T) bool {
	return slices.ContainsFunc(rows, func(r T) bool { s := c.show(r); return s != "-" && s != "" })
}

func grid[T any](w io.Writer, columns []column[T], rows []T) error {
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column[T]) bool { return !c.measured(rows) })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range columns {
		_, _ = fmt.Fprintf(t, "%s\t", c.name) // Flush says what went wrong
	}
	_, _ = fmt.Fprintln(t)
	for _, r := range rows {
		for _, c := range columns {
			_, _ = fmt.Fprintf(t, "%s\t", c.show(r))
		}
		_, _ = fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// kindRow is one kind of operation of one rung.
type kindRow struct {
	rung *record.Rung
	kind string
	ops  *record.Ops
}

func operations(w io.Writer, rungs []*record.Rung) error {
	var rows []kindRow
	for _, r := range rungs {
		for _, kind := range slices.Sorted(maps.Keys(r.Ops)) {
			rows = append(rows, kindRow{r, kind, r.Ops[kind]})
		}
	}
	return grid(w, []column[kindRow]{
		{"c", func(k kindRow) string { return fmt.Sprint(k.rung.Concurrency) }},
		{"arm", func(k kindRow) string { return k.rung.Arm }},
		{"operation", func(k kindRow) string { return k.kind }},
		{"n", func(k kindRow) string { return fmt.Sprint(k.ops.N) }},
		{"ok", func(k kindRow) string { return fmt.Sprint(k.ops.OK) }},
		{"p50", func(k kindRow) string { return record.Micros(k.ops.P50) }},
		{"p90", func(k kindRow) string { return record.Micros(k.ops.P90) }},
		{"p95", func(k kindRow) string { return record.Micros(k.ops.P95) }},
		{"p99", func(k kindRow) string { return record.Micros(k.ops.P99) }},
		{"p99.9", func(k kindRow) string { return record.Micros(k.ops.P999) }},
		{"max", func(k kindRow) string { return record.Micros(k.ops.Max) }},
		{"errors", func(k kindRow) string { return failures(k.ops.Errors) }},
	}, rows)
}

func failures(errors map[string]int64) string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(errors)) {
		parts = append(parts, fmt.Sprintf("%s=%d", why, errors[why]))
	}
	return strings.Join(parts, ",")
}

func missing(w io.Writer, f *record.File) error {
	for _, m := range f.Missing {
		if _, err := fmt.Fprintf(w, "arm %s is not to be had: %s\n", m.Arm, m.Why); err != nil {
			return err
		}
	}
	for _, r := range f.Rungs {
		for _, n := range r.Notes {
			if _, err := fmt.Fprintf(w, "note: %s at %d: %s\n", r.Arm, r.Concurrency, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func addressable(w io.Writer, list []record.Addressable) error {
	if len(list) == 0 {
		return nil
	}
	return grid(w, []column[record.Addressable]{
		{"addressable", func(a record.Addressable) string { return fmt.Sprint(a.Sandboxes) }},
		{"join", func(a record.Addressable) string { return fmt.Sprintf("%.1fs", a.JoinS) }},
		{"hub KiB each", func(a record.Addressable) string { return kib(a.HubBytes) }},
		{"worker KiB each", func(a record.Addressable) string { return kib(a.WorkerBytes) }},
		{"hub CPU idle", func(a record.Addressable) string { return record.Percent(a.HubCPUShare) }},
		{"p50", func(a record.Addressable) string { return record.Micros(a.Requests.P50) }},
		{"p95", func(a record.Addressable) string { return record.Micros(a.Requests.P95) }},
		{"p99", func(a record.Addressable) string { return record.Micros(a.Requests.P99) }},
		{"against", func(a record.Addressable) string { return fmt.Sprint(a.Against) }},
		{"p50 there", func(a record.Addressable) string { return record.Micros(a.AgainstOps.P50) }},
		{"p95 there", func(a record.Addressable) string { return record.Micros(a.AgainstOps.P95) }},
		{"p50 ratio", func(a record.Addressable) string { return ratio(a.P50Ratio) }},
	}, list)
}

func kib(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *v/1024)
}

func ratio(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

func versions(m record.Machine) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		parts = append(parts, name+" "+m.Versions[name])
	}
	return strings.Join(parts, ", ")
}
