package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/e2e/faults/history"
)

var (
	seeds  = flag.Int("seeds", 0, "with how many seeds TestFaults runs each scenario; 0 skips it")
	seed   = flag.Uint64("seed", 1, "the first seed of TestFaults")
	atOnce = flag.Int("at-once", 4, "how many runs there are at once")
	ops    = flag.Int("ops", 80, "operations of each harness, at most")
	rounds = flag.Int("rounds", 2, "how often a scenario repeats its fault, at most")
	long   = flag.Bool("long", false, "faults last as long as their names say")
	keep   = flag.Bool("keep", false, "keep the files of runs")
)

// TestFaults runs each scenario with some seeds. What fails is run again with less for as long as it fails.
func TestFaults(t *testing.T) {
	if *seeds == 0 {
		t.Skip("it takes minutes: asked for by -seeds N, as make faults does")
	}
	t.Cleanup(func() { require.NoError(t, previous.remove()) })
	var mu sync.Mutex
	reports := map[string]*report{}
	t.Run("all", func(t *testing.T) {
		for _, name := range names() {
			for n := range *seeds {
				t.Run(fmt.Sprintf("%s/%d", name, *seed+uint64(n)), func(t *testing.T) {
					t.Parallel()
					sc := scenarios[name]
					if sc.need != nil {
						sc.need(t)
					}
					r := runScenario(t, name, spec{Seed: *seed + uint64(n), Ops: *ops, Rounds: *rounds})
					mu.Lock()
					defer mu.Unlock()
					if reports[name] == nil {
						reports[name] = &report{outcomes: map[history.Result]int{}}
					}
					reports[name].add(r)
				})
			}
		}
	})
	t.Log("\n" + table(reports))
}

func names() []string {
	var all []string
	for name := range scenarios {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// runScenario runs a scenario and fails the test with the shortest command that repeats what went wrong.
func runScenario(t *testing.T, name string, sp spec) *report {
	t.Helper()
	r, wrong := once(t, name, sp)
	if len(wrong) == 0 {
		return r
	}
	t.Logf("%s, seed %d:\n%s\n%s", name, sp.Seed, strings.Join(wrong, "\n"), r.logs)
	least := sp
	for range 4 {
		try := least
		try.Ops, try.Rounds = max(1, try.Ops/2), max(1, try.Rounds/2)
		if try.Ops == least.Ops && try.Rounds == least.Rounds {
			break
		}
		if _, again := once(t, name, try); len(again) == 0 {
			break
		}
		least = try
	}
	t.Errorf("%d violations; repeat by\n\tgo test ./e2e/faults -run 'TestFaults/all/%s/%d$' -seeds 1 -seed %d -ops %d -rounds %d%s",
		len(wrong), name, sp.Seed, sp.Seed, least.Ops, least.Rounds, map[bool]string{true: " -long"}[*long])
	return r
}

// once runs a scenario and returns what it has shown and what was wrong.
func once(t *testing.T, name string, sp spec) (r *report, wrong []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "faults-") //nolint:usetesting // it is kept when something was wrong
	require.NoError(t, err)
	sc := scenarios[name]
	w, err := newWorld(dir, sc.shape, sp)
	require.NoError(t, err)
	begin := time.Now()
	err = w.run(t.Context(), sc.faults)
	if err != nil {
		wrong = append(wrong, "the run: "+err.Error())
	}
	if err := w.down(); err != nil {
		wrong = append(wrong, "the run: "+err.Error())
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.history"))
	require.NoError(t, err)
	events, err := history.Load(files...)
	require.NoError(t, err)
	truth, err := w.truth(events)
	require.NoError(t, err)
	w.close()
	wrong = append(wrong, history.Check(events, truth)...)
	r = newReport(events)
	r.took, r.violations = time.Since(begin), len(wrong)
	if len(wrong) > 0 {
		r.logs = w.logs()
	}
	if *keep {
		t.Logf("files are kept in %s", dir)
	} else {
		require.NoError(t, os.RemoveAll(dir))
	}
	return r, wrong
}

// run starts the world and its work, does the faults, and ends all in good order.
func (w *world) run(ctx context.Context, faults func(context.Context, *world) error) error {
	if err := w.up(ctx); err != nil {
		return err
	}
	for i := range harnesses {
		if err := w.startHarness(i); err != nil {
			return err
		}
	}
	if err := faults(ctx, w); err != nil {
		return fmt.Errorf("the fault: %w", err)
	}
	if err := w.rest(ctx); err != nil {
		return err
	}
	return w.clean(ctx)
}

// rest ends the harnesses and waits for what they have begun.
func (w *world) rest(ctx context.Context) error {
	var errs []error
	for _, p := range w.harnesses {
		_ = p.stdin.Close() // tells it
	}
	for _, p := range w.harnesses {
		errs = append(errs, p.wait(opLimit+2*patience))
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// logs are the ends of what the processes have logged.
func (w *world) logs() string {
	var b strings.Builder
	for _, p := range w.all {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.name, p.tail(12))
	}
	return b.String()
}

// report is what a run, or several of one scenario, have shown.
type report struct {
	runs, operations, violations int
	inFlight                     int // when the first fault came
	outcomes                     map[history.Result]int
	gap, recovery, took          time.Duration // the longest ones
	logs                         string
}

func newReport(events []history.Event) *report {
	slices.SortStableFunc(events, func(a, b history.Event) int { return int(a.At - b.At) })
	r := &report{runs: 1, outcomes: map[history.Result]int{}}
	last := map[string]time.Duration{} // by side: its last probe
	waits := map[string]time.Duration{}
	open, broken := 0, false
	for _, e := range events {
		switch e.Kind {
		case history.Request:
			r.operations++
			open++
		case history.Outcome:
			open--
			r.outcomes[e.Result]++
		case history.Fault:
			if !broken {
				broken, r.inFlight = true, open
			}
			if strings.HasPrefix(e.Detail, "mended") {
				for side := range last {
					waits[side] = e.At
				}
			}
		case history.Probe:
			if at, ok := last[e.Side]; ok {
				r.gap = max(r.gap, e.At-at)
			}
			if at, ok := waits[e.Side]; ok {
				r.recovery = max(r.recovery, e.At-at)
				delete(waits, e.Side)
			}
			last[e.Side] = e.At
		case history.Died:
			delete(waits, e.Detail)
		case history.Granted, history.Ended, history.Left, history.Broken:
		}
	}
	return r
}

func (r *report) add(o *report) {
	r.runs += o.runs
	r.operations += o.operations
	r.violations += o.violations
	r.inFlight = max(r.inFlight, o.inFlight)
	r.gap, r.recovery, r.took = max(r.gap, o.gap), max(r.recovery, o.recovery), max(r.took, o.took)
	for k, n := range o.outcomes {
		r.outcomes[k] += n
	}
}

// table shows reports as Markdown.
func table(reports map[string]*report) string {
	var b strings.Builder
	b.WriteString("| Broken | Runs | Operations | At once | Outcomes | Longest silence | Recovery | Violations | Longest run |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range names() {
		r := reports[name]
		if r == nil {
			continue
		}
		var kinds []string
		for k, n := range r.outcomes {
			kinds = append(kinds, fmt.Sprintf("%s %d", k, n))
		}
		slices.Sort(kinds)
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %s | %d | %s |\n", name, r.runs, r.operations, r.inFlight, strings.Join(kinds, ", "),
			r.gap.Round(10*time.Millisecond), r.recovery.Round(10*time.Millisecond), r.violations, r.took.Round(time.Second))
	}
	return b.String()
}

// TestTheCheckIsMade breaks the promise on purpose, by a worker that is told to run something again, and wants it found.
func TestTheCheckIsMade(t *testing.T) {
	if *seeds == 0 {
		t.Skip("it takes seconds: asked for by -seeds N")
	}
	dir := t.TempDir()
	w, err := newWorld(dir, shape{}, spec{Seed: *seed, Ops: 10})
	require.NoError(t, err)
	require.NoError(t, w.run(t.Context(), func(ctx context.Context, w *world) error {
		orphan, err := w.start("orphan", "harness", "/bin/sleep", false)
		if err != nil {
			return err
		}
		orphan.signal(syscall.SIGTERM)
		return errors.Join(pause(ctx, time.Second), os.WriteFile(filepath.Join(w.tmp, "left"), nil, 0o600))
	}))
	require.NoError(t, w.down())
	events, err := history.Load(filepath.Join(dir, "h0.history"), filepath.Join(dir, "h1.history"), filepath.Join(dir, "driver.history"))
	require.NoError(t, err)
	truth, err := w.truth(events)
	require.NoError(t, err)
	w.close()
	require.Equal(t, []string{"left behind: file " + filepath.Join(w.tmp, "left")}, history.Check(events, truth))
	require.NotEmpty(t, truth.Ran)
	for op := range truth.Ran {
		truth.Ran[op]++
	}
	require.Len(t, history.Check(events, truth), 1+len(truth.Ran))
}
