package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/loadtest/record"
)

// Result is what a run has made.
type Result struct {
	Run     record.Run
	Rungs   []*record.Rung
	Knees   []record.Knee
	Missing []record.MissingArm
	// Interrupted says that the context ended before the run did: what is here was measured before.
	Interrupted bool
}

// Marked says whether anything of the run has a mark.
func (r *Result) Marked() bool {
	return len(r.Missing) > 0 || slices.ContainsFunc(r.Knees, func(k record.Knee) bool { return k.Mark != "" }) ||
		slices.ContainsFunc(r.Rungs, func(g *record.Rung) bool { return len(g.Marks) > 0 })
}

const (
	warmUp      = 300 * time.Millisecond // at most, for each arm
	ceilingTime = 500 * time.Millisecond // at most, for each rung
)

// Run does a whole load test. When ctx ends it returns what was measured so far, as a result and not as an error.
// Errors: a setting that is wrong; a process of the rig that does not start or ends; Emit's.
func Run(ctx context.Context, cfg Config) (_ *Result, err error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg.Progress = &lockedWriter{to: cfg.Progress} // processes write there too
	r := &run{cfg: cfg, result: &Result{Run: record.NewRun(cfg.Workload.Name, record.ThisMachine(hub.Version()))}}
	if err := cfg.Emit(r.result.Run); err != nil {
		return nil, err
	}
	r.stage, err = setUp(ctx, cfg)
	defer func() { err = errors.Join(err, r.stage.strike()) }()
	if err == nil {
		err = r.arms(ctx)
	}
	defer func() {
		for _, t := range r.settings {
			t.strike()
		}
	}()
	if err == nil {
		err = r.ladder(ctx)
	}
	if ctx.Err() != nil {
		r.result.Interrupted, err = true, nil
	}
	if err != nil {
		return r.result, err
	}
	return r.result, r.knees()
}

// run is a load test under way.
type run struct {
	cfg      Config
	stage    *stage
	null     *setting
	settings []*setting
	result   *Result
}

func (r *run) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.cfg.Progress, format+"\n", args...) // a progress that nobody sees is no reason to stop
}

// arms opens the arms and finds the time that an operation takes by each when idle.
func (r *run) arms(ctx context.Context) error {
	var err error
	if r.null, err = r.stage.open(ctx, armNull.name); err != nil {
		return err
	}
	for _, name := range r.cfg.Arms {
		t, err := r.stage.open(ctx, name)
		if err == nil {
			r.settings = append(r.settings, t)
			err = r.warm(ctx, t)
		}
		if errors.Is(err, ErrUnavailable) {
			if err := r.missing(name, err); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("arm %s: %w", name, err)
		}
	}
	return nil
}

func (r *run) warm(ctx context.Context, t *setting) error {
	m, err := t.measure(ctx, trial{rung: 1, dur: min(warmUp, r.cfg.Duration), closed: true})
	if err != nil {
		return err
	}
	t.service = m.meanNS
	return nil
}

// missing marks an arm that is not to be had.
func (r *run) missing(name string, why error) error {
	r.settings = slices.DeleteFunc(r.settings, func(t *setting) bool {
		if t.name == name {
			t.strike()
		}
		return t.name == name
	})
	m := record.MissingArm{Record: "missing-arm", Arm: name, Workload: r.cfg.Workload.Name, Why: why.Error()}
	r.say("%-14s is not to be had: %v", name, why)
	r.result.Missing = append(r.result.Missing, m)
	return r.cfg.Emit(m)
}

// ladder runs the rungs: within each the samples, and within each sample the arms in turn, so that what disturbs the
// machine disturbs all arms.
func (r *run) ladder(ctx context.Context) error {
	for _, rung := range r.cfg.Rungs {
		ceiling, err := r.null.measure(ctx, trial{rung: rung, dur: min(ceilingTime, r.cfg.Duration), closed: true})
		if err != nil {
			return err
		}
		var top record.Rung
		top.Summarize([]record.Sample{ceiling.sample}, r.result.Run.Machine)
		r.say("c=%-4d the generator's own ceiling is %.0f ops/s", rung, *top.Throughput)
		samples := map[string][]*made{}
		for n := range r.cfg.Samples {
			if err = r.round(ctx, rung, n, samples); err != nil {
				break
			}
		}
		for _, t := range r.settings {
			if err := r.finish(t, rung, samples[t.name], top.Throughput); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// round makes one sample of each arm.
func (r *run) round(ctx context.Context, rung, n int, samples map[string][]*made) error {
	for _, t := range slices.Clone(r.settings) {
		m, err := t.measure(ctx, trial{rung: rung, n: n, dur: r.cfg.Duration, think: true})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, ErrUnavailable) {
			if err := r.missing(t.name, err); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("arm %s at rung %d: %w", t.name, rung, err)
		}
		samples[t.name] = append(samples[t.name], m)
	}
	return nil
}

// finish makes the record of a rung from what samples there are.
func (r *run) finish(t *setting, rung int, all []*made, ceiling *float64) error {
	if len(all) == 0 {
		return nil
	}
	n, sessions := split(rung, t.opened)
	g := &record.Rung{
		Time: time.Now().UTC().Format(time.RFC3339), Arm: t.name, Workload: r.cfg.Workload.Name, Workers: n, Sessions: sessions,
		Sandboxes: len(t.site.Sandboxes), Concurrency: rung, Loop: "closed", RateOps: r.cfg.Rate, SampleS: r.cfg.Duration.Seconds(),
		Seed: r.cfg.Seed, Ceiling: ceiling,
	}
	switch {
	case r.cfg.Rate > 0:
		g.Loop = "open"
	case r.cfg.Workload.BurstMS > 0:
		g.Loop = "burst"
	}
	var samples []record.Sample
	for _, m := range all {
		samples = append(samples, m.sample)
		g.ThinkUS = float64(m.think) / 1e3
		for _, note := range m.notes() {
			if !slices.Contains(g.Notes, note) && len(g.Notes) < 10 {
				g.Notes = append(g.Notes, note)
			}
		}
	}
	if t.oneHarness && r.cfg.Workers > 1 {
		g.Notes = append(g.Notes, "one harness process has all sessions: the hub is in it")
	}
	g.Summarize(samples, r.result.Run.Machine)
	if len(all) < r.cfg.Samples {
		g.Marks = append(g.Marks, record.MarkInterrupted)
	}
	g.Attribute(r.cfg.Limits)
	r.result.Rungs = append(r.result.Rungs, g)
	r.say("%s", g.Line())
	return r.cfg.Emit(g)
}

// knees finds the knee of each arm that has rungs.
func (r *run) knees() error {
	for _, name := range r.cfg.Arms {
		var ladder []*record.Rung
		for _, g := range r.result.Rungs {
			if g.Arm == name {
				ladder = append(ladder, g)
			}
		}
		if len(ladder) == 0 {
			continue
		}
		k := record.FindKnee(ladder, r.cfg.Limits)
		r.result.Knees = append(r.result.Knees, k)
		if err := r.cfg.Emit(k); err != nil {
			return err
		}
	}
	return nil
}
