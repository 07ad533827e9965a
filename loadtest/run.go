package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/loadtest/record"
	"github.com/sandbus/sandbus/loadtest/report"
	"github.com/sandbus/sandbus/loadtest/rig"
	"github.com/sandbus/sandbus/loadtest/workload"
)

// runFlags are the flags of a run.
type runFlags struct {
	cfg       rig.Config
	workloads []string
	output    output
}

// output is where records go.
type output struct {
	json bool
	file string
	html string
}

func (o *output) add(c *cobra.Command) {
	c.Flags().BoolVar(&o.json, "json", false, "records as JSON lines on standard output, instead of the table")
	c.Flags().StringVar(&o.file, "out", "", "also write the records as JSON lines to this `file`")
	c.Flags().StringVar(&o.html, "html", "", "also write one self-contained HTML page to this `file`")
}

func newRun(a *app) *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:   "run",
		Short: "Run workloads rung by rung and arm by arm",
		Long: `run starts everything in processes of its own, does the workloads, and prints a table.

Arms:
` + rig.DescribeArms() + `
Workloads: ` + strings.Join(workload.Shipped(), ", ") + `, or the path of a file like those in loadtest/workload/mixes.`,
		Example: `  go run ./loadtest run --arms echo,bus-native,bus-shell --rungs 1,4,16 --html page.html
  go run ./loadtest run --workload agent --sandboxes 4 --json > agent.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.run(c.Context(), f) },
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.workloads, "workload", []string{"fileops"}, "`name`s or files, separated by commas, one after the other")
	fl.StringSliceVar(&f.cfg.Arms, "arms", []string{"echo", "bus-native"}, "`arm`s, separated by commas; they take turns")
	fl.IntSliceVar(&f.cfg.Rungs, "rungs", rig.DefaultRungs, "operations in flight, c = W·S; 1 is the baseline")
	fl.IntVar(&f.cfg.Workers, "workers", 2, "harness processes, W; a rung below has one session in each of fewer")
	fl.IntVar(&f.cfg.Sandboxes, "sandboxes", 2, "sandboxes, K")
	fl.IntVar(&f.cfg.Slots, "slots", 0, "leases that each sandbox grants (default: enough for the highest rung)")
	fl.IntVar(&f.cfg.Samples, "samples", 3, "samples of each rung; the record has their median")
	fl.DurationVar(&f.cfg.Duration, "duration", 2*time.Second, "of a sample")
	fl.Float64Var(&f.cfg.Rate, "rate", 0, "open loop: operations per second of all sessions together; 0 is a closed loop")
	fl.Uint64Var(&f.cfg.Seed, "seed", 1, "of everything that is drawn")
	fl.Float64Var(&f.cfg.Limits.Degrade, "degrade", 2, "the knee is the last rung whose p95 is at most so many times the baseline's")
	fl.IntVar(&f.cfg.Limits.Patience, "patience", 2, "so many unhealthy rungs in a row end the search for the knee")
	fl.Float64Var(&f.cfg.Limits.Success, "success", 0.95, "share of attempts that must succeed")
	fl.IntVar(&f.cfg.LeaseOps, "lease-ops", 0, "operations for each lease of the bus arms; 0 is one lease for a whole sample")
	fl.StringSliceVar(&f.cfg.Command, "command", []string{"env"}, "`prefix` of the arm command, its words separated by commas")
	fl.StringVar(&f.cfg.Image, "docker-image", "debian:bookworm-slim", "`image` of the docker arms' containers; never pulled")
	fl.StringVar(&f.cfg.Profiles.CPU, "cpuprofile", "", "`directory` for CPU profiles of hub, sandboxes and harness processes")
	fl.StringVar(&f.cfg.Profiles.Trace, "trace", "", "`directory` for execution traces of the same")
	f.output.add(c)
	return c
}

func newSmoke(a *app) *cobra.Command {
	f := &runFlags{workloads: []string{"fileops"}, cfg: rig.Config{
		Arms: []string{"echo", "bus-native", "bus-shell"}, Rungs: []int{1, 4}, Samples: 1, Duration: 500 * time.Millisecond,
	}}
	c := &cobra.Command{
		Use:   "smoke",
		Short: "Run a small load test, within 20 s: does the rig work here?",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return a.run(c.Context(), f) },
	}
	f.output.add(c)
	return c
}

// sink collects records and writes them as they come.
type sink struct {
	to   []io.Writer
	file *os.File
	buf  strings.Builder
}

// open makes a sink. Its close must be called.
func (a *app) open(o output) (*sink, error) {
	s := &sink{}
	s.to = append(s.to, &s.buf)
	if o.json {
		s.to = append(s.to, a.stdout)
	}
	if o.file != "" {
		f, err := os.Create(o.file)
		if err != nil {
			return nil, &usageError{err}
		}
		s.file = f
		s.to = append(s.to, f)
	}
	if o.html != "" { // tell now what would be lost in the end
		if _, err := os.Stat(filepath.Dir(o.html)); err != nil {
			return nil, &usageError{errors.Join(err, s.close())}
		}
	}
	return s, nil
}

func (s *sink) close() error {
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}

func (s *sink) emit(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	for _, w := range s.to {
		if _, err := w.Write(append(b, '\n')); err != nil {
			return fmt.Errorf("write record: %w", err)
		}
	}
	return nil
}

// show prints what was recorded, as the output says.
func (a *app) show(s *sink, o output) error {
	f, err := record.Read(strings.NewReader(s.buf.String()))
	if err != nil {
		return err
	}
	if !o.json {
		if err := report.Table(a.stdout, f); err != nil {
			return err
		}
	}
	if o.html == "" {
		return nil
	}
	return writePage(o.html, f)
}

func writePage(path string, f *record.File) (err error) {
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return report.HTML(to, f)
}

func (a *app) run(ctx context.Context, f *runFlags) (err error) {
	f.cfg.Progress = a.stderr
	for _, dir := range []string{f.cfg.Profiles.CPU, f.cfg.Profiles.Trace} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return &usageError{err}
		}
	}
	var loads []*workload.Workload
	for _, name := range f.workloads {
		w, err := workload.Load(name)
		if err != nil {
			return &usageError{err}
		}
		loads = append(loads, w)
	}
	s, err := a.open(f.output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	f.cfg.Emit = s.emit
	marked, interrupted := false, false
	for _, w := range loads {
		cfg := f.cfg
		cfg.Workload = w
		if err := cfg.Check(); err != nil {
			return &usageError{err}
		}
		result, rerr := rig.Run(ctx, cfg)
		if rerr != nil {
			return errors.Join(rerr, a.show(s, f.output))
		}
		marked = marked || result.Marked()
		if interrupted = result.Interrupted; interrupted {
			break
		}
	}
	if err := a.show(s, f.output); err != nil {
		return err
	}
	switch {
	case interrupted:
		return &statusError{exitInterrupted, "interrupted: what was measured before is written"}
	case marked:
		return &statusError{exitMarked, "some records are marked; see the columns marks and knee, and the missing arms"}
	}
	return nil
}
