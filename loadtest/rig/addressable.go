package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/loadtest/record"
)

// AddressableConfig says how many sandboxes to have that only exist.
type AddressableConfig struct {
	Sandboxes int           // at most 10,000; zero means 10,000
	Against   int           // as many are there when the first figures are taken; zero means 10
	Requests  int           // for each figure; zero means 2,000
	Idle      time.Duration // how long to watch the hub while all only beat; zero means 5 s
	Seed      uint64        // zero means 1
	Progress  io.Writer     // nil discards
}

const maxAddressable = 10_000 // connections to one hub, which has a descriptor for each

// Check fills in what zero means, and refuses what cannot be right.
func (c *AddressableConfig) Check() error {
	set := func(to *int, zero int) {
		if *to == 0 {
			*to = zero
		}
	}
	set(&c.Sandboxes, maxAddressable)
	set(&c.Against, 10)
	set(&c.Requests, 2000)
	if c.Idle == 0 {
		c.Idle = 5 * time.Second
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	switch {
	case c.Against < 1:
		return fmt.Errorf("against %d: want 1 or more sandboxes", c.Against)
	case c.Sandboxes <= c.Against || c.Sandboxes > maxAddressable:
		return fmt.Errorf("sandboxes %d: want more than %d (against), at most %d", c.Sandboxes, c.Against, maxAddressable)
	case c.Requests < 1:
		return fmt.Errorf("requests %d: want 1 or more", c.Requests)
	case c.Idle < 0:
		return fmt.Errorf("idle %s: want 0 (5s) or more", c.Idle)
	}
	return nil
}

// addressing is a measurement of sandboxes that only exist.
type addressing struct {
	cfg    AddressableConfig
	hub    *process
	crowd  *process
	ready  hubReady
	lib    *harnesslib.Hub
	boxes  []*harnesslib.Sandbox
	joined int
}

// Addressable measures what sandboxes cost that are addressable and do nothing. The harness is this process. Errors: the
// context's; a process that does not start.
func Addressable(ctx context.Context, cfg AddressableConfig) (_ *record.Addressable, err error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	hubCfg := hubConfig{}
	for i := range cfg.Sandboxes {
		hubCfg.Sandboxes = append(hubCfg.Sandboxes, sandboxName(i))
	}
	cfg.Progress = &lockedWriter{to: cfg.Progress} // processes write there too
	a := &addressing{cfg: cfg}
	defer a.close()
	if a.hub, err = spawn(ctx, "hub", "hub", cfg.Progress, hubCfg, &a.ready); err != nil {
		return nil, err
	}
	if a.crowd, err = spawn(ctx, "crowd", "workers", cfg.Progress, crowdConfig{URL: a.ready.URL}, &struct{}{}); err != nil {
		return nil, err
	}
	if a.lib, err = harnesslib.Connect(ctx, harnesslib.Config{URL: a.ready.URL, Token: a.ready.Harness}); err != nil {
		return nil, err
	}
	return a.measure(ctx)
}

func (a *addressing) close() {
	if a.lib != nil {
		a.lib.Close()
	}
	for _, p := range []*process{a.crowd, a.hub} {
		if p != nil {
			p.stop()
		}
	}
}

func (a *addressing) measure(ctx context.Context) (*record.Addressable, error) {
	r := &record.Addressable{
		Record: "addressable", Sandboxes: a.cfg.Sandboxes, Against: a.cfg.Against, Seed: a.cfg.Seed,
		Machine: record.ThisMachine(hub.Version()),
	}
	if err := a.join(ctx, a.cfg.Against); err != nil {
		return nil, err
	}
	var err error
	if _, r.AgainstOps, err = a.request(ctx); err != nil {
		return nil, err
	}
	hub0, crowd0, err := a.memory(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := a.join(ctx, a.cfg.Sandboxes); err != nil {
		return nil, err
	}
	r.JoinS = time.Since(begin).Seconds()
	_, _ = fmt.Fprintf(a.cfg.Progress, "%d sandboxes are live after %.1fs\n", a.cfg.Sandboxes, r.JoinS)
	if r.FirstRequests, r.Requests, err = a.request(ctx); err != nil {
		return nil, err
	}
	hub1, crowd1, err := a.memory(ctx)
	if err != nil {
		return nil, err
	}
	more := float64(a.cfg.Sandboxes - a.cfg.Against)
	if hub0 != nil && hub1 != nil {
		r.HubBytes = new((*hub1 - *hub0) / more)
	}
	if crowd0 != nil && crowd1 != nil {
		r.WorkerBytes = new((*crowd1 - *crowd0) / more)
	}
	if r.Requests.P50 != nil && r.AgainstOps.P50 != nil {
		r.P50Ratio = new(*r.Requests.P50 / *r.AgainstOps.P50)
	}
	return r, a.idle(ctx, r)
}

// join has sandboxes join until there are n.
func (a *addressing) join(ctx context.Context, n int) error {
	if err := a.crowd.call(ctx, "join", joinRequest{Tokens: a.ready.Tokens[a.joined:n]}, nil); err != nil {
		return err
	}
	for ; a.joined < n; a.joined++ {
		sb, err := a.lib.Sandbox(sandboxName(a.joined))
		if err != nil {
			return err
		}
		a.boxes = append(a.boxes, sb)
	}
	return nil
}

// request asks random sandboxes, one after the other: the first time each, which looks it up, and then again.
func (a *addressing) request(ctx context.Context) (first, again *record.Ops, err error) {
	rng := rand.New(rand.NewPCG(a.cfg.Seed, uint64(a.joined))) //nolint:gosec // G404: a load, not a secret
	chosen := make([]*harnesslib.Sandbox, a.cfg.Requests)
	for i := range chosen {
		chosen[i] = a.boxes[rng.IntN(len(a.boxes))]
	}
	ask := func() (*record.Ops, error) {
		rec := record.NewRecorder()
		for _, sb := range chosen {
			begin := time.Now()
			opCtx, cancel := context.WithTimeout(ctx, opLimit)
			_, err := sb.Stat(opCtx, "x")
			cancel()
			switch {
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case err != nil:
				rec.Failed("stat", kindOf(err), 1)
			default:
				rec.OK("stat", time.Since(begin))
			}
		}
		o, err := rec.Outcomes()
		if err != nil {
			return nil, err
		}
		return record.NewOps(o)
	}
	first, err1 := ask()
	again, err2 := ask()
	return first, again, errors.Join(err1, err2)
}

// memory is the resident memory of hub and workers after a garbage collection, in bytes; nil where it is not measured.
func (a *addressing) memory(ctx context.Context) (hub, crowd *float64, err error) {
	for _, p := range []*process{a.hub, a.crowd} {
		if err := p.call(ctx, verbSettle, struct{}{}, nil); err != nil {
			return nil, nil, err
		}
	}
	all := processes()
	of := func(p *process) *float64 {
		if st, ok := all[p.pid()]; ok {
			return new(float64(st.rss))
		}
		return nil
	}
	return of(a.hub), of(a.crowd), nil
}

// idle watches the hub while the sandboxes only beat.
func (a *addressing) idle(ctx context.Context, r *record.Addressable) error {
	var before, after use
	if err := a.hub.call(ctx, verbUse, struct{}{}, &before); err != nil {
		return err
	}
	begin := time.Now()
	t := time.NewTimer(a.cfg.Idle)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := a.hub.call(ctx, verbUse, struct{}{}, &after); err != nil {
		return err
	}
	r.IdleSeconds = time.Since(begin).Seconds()
	r.HubCPUShare = new(time.Duration(after.CPUNanos-before.CPUNanos).Seconds() / r.IdleSeconds / float64(r.Machine.CPUs))
	var stats hub.Stats
	if err := a.hub.call(ctx, "stats", struct{}{}, &stats); err != nil {
		return err
	}
	r.SlowConsumers = stats.SlowConsumers
	return nil
}
