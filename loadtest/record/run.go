package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Run opens the records of a run.
type Run struct {
	Record   string  `json:"record"` // "run"
	Time     string  `json:"time"`
	Workload string  `json:"workload"`
	Command  string  `json:"command"`
	Machine  Machine `json:"machine"`
}

// NewRun describes a run that begins now; the command is this process's.
func NewRun(workload string, m Machine) Run {
	return Run{
		Record: "run", Time: time.Now().UTC().Format(time.RFC3339), Workload: workload, Machine: m,
		Command: strings.Join(append([]string{"go run ./loadtest"}, os.Args[1:]...), " "),
	}
}

// MissingArm is an arm that was asked for and is not to be had.
type MissingArm struct {
	Record   string `json:"record"` // "missing-arm"
	Arm      string `json:"arm"`
	Workload string `json:"workload"`
	Why      string `json:"why"`
}

// Addressable is what many sandboxes cost that only exist: sessions that are addressable, not operations in flight.
type Addressable struct {
	Record      string   `json:"record"` // "addressable"
	Sandboxes   int      `json:"sandboxes"`
	HubBytes    *float64 `json:"hub_bytes_per_sandbox,omitempty"`    // resident memory of the hub, for each more sandbox
	WorkerBytes *float64 `json:"worker_bytes_per_sandbox,omitempty"` // likewise of the process of simulated workers
	JoinS       float64  `json:"join_s"`                             // until all were live
	Requests    *Ops     `json:"requests"`                           // to random ones, one in flight
	Against     int      `json:"against"`                            // as many sandboxes
	AgainstOps  *Ops     `json:"against_requests"`
	P50Ratio    *float64 `json:"p50_ratio,omitempty"`
	Seed        uint64   `json:"seed"`
	Machine     Machine  `json:"machine"`
	HubCPUShare *float64 `json:"hub_cpu_share_idle,omitempty"` // while all only beat
	IdleSeconds float64  `json:"idle_s,omitempty"`
	// FirstRequests are the first ones to each, which look it up.
	FirstRequests *Ops  `json:"first_requests"`
	SlowConsumers int64 `json:"slow_consumers"`
}

// NewOps is the outcome of operations of one kind, of one sample.
func NewOps(o map[string]Outcomes) (*Ops, error) {
	l, err := Merge(o)
	if err != nil {
		return nil, err
	}
	ops := &Ops{}
	ops.add(l.all())
	ops.finish()
	return ops, nil
}

// File is what a file of records holds.
type File struct {
	Runs        []Run
	Rungs       []*Rung
	Knees       []Knee
	Missing     []MissingArm
	Addressable []Addressable
}

// Read reads records, one JSON object a line. Errors name the line. Records of kinds that it does not know are skipped.
func Read(r io.Reader) (*File, error) {
	f := &File{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for line := 1; s.Scan(); line++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		if err := f.add(s.Bytes()); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	return f, s.Err()
}

func (f *File) add(b []byte) error {
	var kind struct {
		Record string `json:"record"`
	}
	if err := json.Unmarshal(b, &kind); err != nil {
		return err
	}
	switch kind.Record {
	case "run":
		return decode(b, &f.Runs)
	case "rung":
		var g Rung
		if err := json.Unmarshal(b, &g); err != nil {
			return err
		}
		if g.All == nil || g.Arm == "" || g.Concurrency < 1 {
			return fmt.Errorf("a rung without arm, concurrency or operations")
		}
		f.Rungs = append(f.Rungs, &g)
		return nil
	case "knee":
		return decode(b, &f.Knees)
	case "missing-arm":
		return decode(b, &f.Missing)
	case "addressable":
		return decode(b, &f.Addressable)
	}
	return nil
}

func decode[T any](b []byte, to *[]T) error {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*to = append(*to, v)
	return nil
}

// Line is the rung in one line, for people who watch.
func (r *Rung) Line() string {
	line := fmt.Sprintf("c=%-4d %-14s %9s ops/s  p50 %s  p95 %s  p99 %s  ok %s  bound: %s",
		r.Concurrency, r.Arm, Number(r.Throughput), Micros(r.All.P50), Micros(r.All.P95), Micros(r.All.P99), Percent(r.SuccessRate), r.Bound)
	if r.BoundColumn != "" {
		line += fmt.Sprintf(" (%s %.4g)", r.BoundColumn, *r.BoundValue)
	}
	if len(r.Marks) > 0 {
		line += "  [" + strings.Join(r.Marks, ", ") + "]"
	}
	return line
}

// absent is how a column is shown that was not measured.
const absent = "-"

// Micros shows a time in microseconds.
func Micros(us *float64) string {
	switch {
	case us == nil:
		return absent
	case *us < 1000:
		return fmt.Sprintf("%.0fµs", *us)
	case *us < 1e6:
		return fmt.Sprintf("%.2fms", *us/1e3)
	}
	return fmt.Sprintf("%.2fs", *us/1e6)
}

// Percent shows a share.
func Percent(v *float64) string {
	if v == nil {
		return absent
	}
	return fmt.Sprintf("%.1f%%", *v*100)
}

// Number shows a number without its fraction.
func Number(v *float64) string {
	if v == nil {
		return absent
	}
	return fmt.Sprintf("%.0f", *v)
}

// Bytes shows a size.
func Bytes(v *float64) string {
	if v == nil {
		return absent
	}
	return fmt.Sprintf("%.1fMiB", *v/(1<<20))
}
