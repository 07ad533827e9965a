package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/e2e/faults/history"
	"github.com/sandbus/sandbus/e2e/faults/link"
)

var soak = flag.Duration("soak", 0, "how long TestSoak works; 0 skips it")

// TestSoak works like agents do, without an end, while things break at random: the promise is kept, and no process that
// lives on needs more and more memory or descriptors.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("it takes as long as one likes: asked for by -soak 3m, as make soak does")
	}
	dir, err := os.MkdirTemp("", "faults-") //nolint:usetesting // it is kept when something was wrong
	require.NoError(t, err)
	sh := shape{harness: func(_ int, s *spec) { s.Endless, s.Small = true, true }}
	w, err := newWorld(dir, sh, spec{Seed: *seed, Rounds: 1})
	require.NoError(t, err)
	var use *usage
	wrong := []string{}
	if err := w.run(t.Context(), func(ctx context.Context, w *world) (err error) {
		use, err = soakFaults(ctx, w)
		return err
	}); err != nil {
		wrong = append(wrong, "the run: "+err.Error())
	}
	require.NoError(t, w.down())
	files, err := filepath.Glob(filepath.Join(dir, "*.history"))
	require.NoError(t, err)
	events, err := history.Load(files...)
	require.NoError(t, err)
	truth, err := w.truth(events)
	require.NoError(t, err)
	w.close()
	wrong = append(wrong, history.Check(events, truth)...)
	r := newReport(events)
	if len(wrong) > 0 {
		t.Logf("%s\n%s", strings.Join(wrong, "\n"), w.logs())
	}
	t.Logf("%s, seed %d: %d operations, outcomes %v, longest silence %s, longest recovery %s", *soak, *seed, r.operations, r.outcomes, r.gap, r.recovery)
	if use != nil {
		wrong = append(wrong, use.check(t)...)
	}
	if !*keep {
		require.NoError(t, os.RemoveAll(dir))
	}
	require.Empty(t, wrong)
}

// soakFaults breaks and mends things at random until the time is over.
func soakFaults(ctx context.Context, w *world) (*usage, error) {
	use := &usage{samples: map[string][]sample{}, began: time.Now()}
	measured := map[string]*process{box(1): w.workers[1], box(2): w.workers[2], "h0": w.harnesses[0], "h1": w.harnesses[1]}
	sides := []string{box(0), box(1), box(2), "h0", "h1", "registrar-0", "registrar-1"}
	for time.Since(use.began) < *soak {
		side := sides[w.rng.IntN(len(sides))]
		var err error
		switch w.rng.IntN(6) {
		case 0:
			w.note("connections of %s dropped", side)
			w.eachLink((*link.Link).Drop, side)
		case 1:
			w.note("network of %s cut", side)
			w.eachLink((*link.Link).Cut, side)
			err = pause(ctx, w.within(3*time.Second))
			w.eachLink((*link.Link).Mend, side)
		case 2:
			w.note("link of %s takes 64 KiB/s and is late", side)
			slow := link.Rules{Rate: 64 << 10, Delay: 5 * time.Millisecond}
			w.eachLink(func(l *link.Link) { l.Set(slow, slow) }, side)
			err = pause(ctx, w.within(3*time.Second))
			w.eachLink((*link.Link).Mend, side)
		case 3:
			w.note("%s killed", box(0))
			w.workers[0].kill()
			err = errors.Join(pause(ctx, w.within(time.Second)), w.startWorker(0))
		case 4:
			w.note("hub killed")
			w.hub[0].kill()
			err = errors.Join(pause(ctx, w.within(time.Second)), w.startHub(0))
		case 5:
			i := w.rng.IntN(len(w.registrars))
			w.note("registrar %d killed", i)
			w.registrars[i].kill()
			err = w.startRegistrar(i)
		}
		w.note("mended")
		if err = errors.Join(err, pause(ctx, 2*time.Second+w.within(5*time.Second))); err != nil {
			return use, err
		}
		for name, p := range measured {
			if err := use.take(name, p.cmd.Process.Pid); err != nil {
				return use, err
			}
		}
	}
	return use, pause(ctx, bus.PresenceTTL/4)
}

// sample is what a process needed at a time.
type sample struct {
	at          time.Duration
	memory      float64 // bytes that are resident
	descriptors float64
}

// usage is what processes needed in the course of time.
type usage struct {
	began   time.Time
	samples map[string][]sample
}

func (u *usage) take(name string, pid int) error {
	d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f := strings.Fields(string(b))
	pages, err := strconv.Atoi(f[1])
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	u.samples[name] = append(u.samples[name], sample{time.Since(u.began), float64(pages * os.Getpagesize()), float64(len(d))})
	return nil
}

// check says which process needs more and more. The first fifth does not count: caches fill up.
func (u *usage) check(t *testing.T) (wrong []string) {
	t.Helper()
	for _, name := range sortedNames(u.samples) {
		all := u.samples[name]
		all = all[len(all)/5:]
		if len(all) < 8 {
			t.Logf("%s: %d samples say nothing of a slope", name, len(all))
			continue
		}
		memory := growth(all, func(s sample) float64 { return s.memory })
		descriptors := growth(all, func(s sample) float64 { return s.descriptors })
		last := all[len(all)-1]
		t.Logf("%s: %.0f MB resident, %+.1f MB in the course; %.0f descriptors, %+.1f in the course", name, last.memory/1e6, memory/1e6, last.descriptors, descriptors)
		if memory > 40e6 {
			wrong = append(wrong, fmt.Sprintf("%s needs %.0f MB more at the end than at the beginning", name, memory/1e6))
		}
		if descriptors > 30 {
			wrong = append(wrong, fmt.Sprintf("%s needs %.0f descriptors more at the end than at the beginning", name, descriptors))
		}
	}
	return wrong
}

// growth is by how much a value has grown over all samples, by the median of the slopes of all pairs (Theil and Sen): a
// moment in which much was going on does not count for a growth.
func growth(all []sample, value func(sample) float64) float64 {
	var slopes []float64
	for i := range all {
		for j := range i {
			if d := all[i].at - all[j].at; d > 0 {
				slopes = append(slopes, (value(all[i])-value(all[j]))/float64(d))
			}
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	slices.Sort(slopes)
	return slopes[len(slopes)/2] * float64(all[len(all)-1].at-all[0].at)
}

func sortedNames[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestGrowthIsFound tells a process that grows from one that is busy now and then.
func TestGrowthIsFound(t *testing.T) {
	var flat, leak []sample
	for i := range 60 {
		s := sample{at: time.Duration(i) * time.Second, memory: 50e6, descriptors: 20}
		if i%7 == 0 {
			s.memory, s.descriptors = 150e6, 90
		}
		flat = append(flat, s)
		s.memory += float64(i) * 1e6
		s.descriptors += float64(i)
		leak = append(leak, s)
	}
	require.Empty(t, (&usage{samples: map[string][]sample{"a": flat}}).check(t))
	require.Len(t, (&usage{samples: map[string][]sample{"a": leak}}).check(t), 2)
}
