package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/loadtest/record"
)

// lead is how far ahead a sample's start is set, so that all processes have heard of it.
const lead = 30 * time.Millisecond

// snapshot is the counters of all processes of a setting at one moment.
type snapshot struct {
	all     map[int]procStat
	use     map[*process]use
	started map[*process]*float64
	hub     *hub.Stats
	inside  []*float64 // processes started in each container
}

func (t *setting) processes(harnesses []*process) []*process {
	var ps []*process
	ps = append(ps, harnesses...)
	ps = append(ps, t.sandboxes...)
	ps = append(ps, t.relays...)
	if t.hub != nil {
		ps = append(ps, t.hub)
	}
	return ps
}

func (t *setting) snapshot(ctx context.Context, harnesses []*process) (*snapshot, error) {
	s := &snapshot{use: map[*process]use{}, started: map[*process]*float64{}}
	for _, p := range t.processes(harnesses) {
		var u use
		if err := p.call(ctx, verbUse, struct{}{}, &u); err != nil {
			return nil, err
		}
		s.use[p] = u
		s.started[p] = t.stage.forks.started(p.pid())
	}
	if t.hub != nil {
		s.hub = &hub.Stats{}
		if err := t.hub.call(ctx, "stats", struct{}{}, s.hub); err != nil {
			return nil, err
		}
	}
	for _, c := range t.containers {
		s.inside = append(s.inside, t.stage.forks.started(c.pid))
	}
	s.all = processes()
	return s, nil
}

// trial is one sample to make.
type trial struct {
	rung   int
	n      int // which sample of the rung
	dur    time.Duration
	closed bool // without pauses and rate, whatever the workload says: for the ceiling
	think  bool // with the pauses that the arm's own service time makes
}

// made is what came of it.
type made struct {
	sample   record.Sample
	think    time.Duration
	examples map[string]string
	meanNS   int64 // of the operations: time at the sandbox
}

// measure makes one sample. Errors: ErrUnavailable; the context's end; a process that is gone.
func (t *setting) measure(ctx context.Context, tr trial) (_ *made, err error) {
	n, sessions := split(tr.rung, t.opened)
	harnesses := t.stage.harnesses[:n]
	defer func() {
		for _, h := range harnesses {
			err = errors.Join(err, h.call(context.WithoutCancel(ctx), "finish", struct{}{}, nil))
		}
	}()
	leases, err := t.prepare(ctx, harnesses, sessions)
	if err != nil {
		return nil, err
	}
	before, err := t.snapshot(ctx, harnesses)
	if err != nil {
		return nil, err
	}
	req := t.request(tr)
	results := make([]goResult, n)
	group, gctx := errgroup.WithContext(ctx)
	for i, h := range harnesses {
		group.Go(func() error { return h.call(gctx, "go", req, &results[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	after, err := t.snapshot(ctx, harnesses)
	if err != nil {
		return nil, err
	}
	return t.result(harnesses, results, before, after, leases, sessions)
}

func (t *setting) prepare(ctx context.Context, harnesses []*process, sessions int) (*record.Leases, error) {
	ready := make([]prepareReady, len(harnesses))
	group, gctx := errgroup.WithContext(ctx)
	for i, h := range harnesses {
		req := prepareRequest{Arm: t.name, LeaseOps: t.stage.cfg.LeaseOps}
		for s := range sessions {
			req.Sessions = append(req.Sessions, s*len(harnesses)+i)
		}
		group.Go(func() error { return h.call(gctx, "prepare", req, &ready[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var all *record.Leases
	for _, r := range ready {
		all = addLeases(all, r.Leases)
	}
	return all, nil
}

// addLeases puts two counts together; nil is what was not counted.
func addLeases(a, b *record.Leases) *record.Leases {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &record.Leases{
		Acquired: a.Acquired + b.Acquired, Waited: a.Waited + b.Waited, Refused: a.Refused + b.Refused,
		WaitUS: slices.Concat(a.WaitUS, b.WaitUS),
	}
}

func (t *setting) request(tr trial) goRequest {
	cfg := &t.stage.cfg
	req := goRequest{Start: time.Now().Add(lead).UnixNano(), For: tr.dur, Sample: uint64(tr.n)}
	if tr.closed {
		return req
	}
	req.Think, req.Every = cfg.Workload.Think(), cfg.Workload.Burst()
	if cfg.Rate > 0 {
		req.Rate = cfg.Rate / float64(tr.rung)
	}
	if tr.think {
		req.Service = time.Duration(t.service)
	}
	return req
}

func (t *setting) result(harnesses []*process, results []goResult, before, after *snapshot, leases *record.Leases, sessions int) (*made, error) {
	m := &made{examples: map[string]string{}}
	var parts []map[string]record.Outcomes
	s := &m.sample
	s.Sessions, s.Leases = sessions*len(harnesses), leases
	ops := int64(0)
	for i, r := range results {
		parts = append(parts, r.Outcomes)
		s.Wall, s.Busy = max(s.Wall, r.Wall), s.Busy+r.Busy
		s.Leases = addLeases(s.Leases, r.Leases)
		m.think += r.Think / time.Duration(len(results))
		if r.Late != nil && (s.Late == nil || *r.Late > *s.Late) {
			s.Late = r.Late
		}
		maps.Copy(m.examples, r.Examples)
		for _, o := range r.Outcomes {
			ops += o.OK
			for _, n := range o.Failed {
				ops += n
			}
		}
		p := record.Process{
			Name: harnesses[i].name, CPU: new(time.Duration(r.CPUNanos).Seconds()), Goroutines: new(r.Goroutines), SchedP99: r.SchedP99,
		}
		if st, ok := after.all[harnesses[i].pid()]; ok {
			p.RSS = new(float64(st.rss))
		}
		s.Harnesses = append(s.Harnesses, p)
	}
	if ops > 0 {
		m.meanNS = int64(s.Busy) / ops
	}
	if s.Wall == 0 {
		s.Wall = t.stage.cfg.Duration // nothing ended
	}
	t.addTiers(s, harnesses, before, after)
	var err error
	s.Latencies, err = record.Merge(parts...)
	return m, err
}

// addTiers adds what the processes other than the harnesses have used.
func (t *setting) addTiers(s *record.Sample, harnesses []*process, before, after *snapshot) {
	under := func(name string, pid int, self time.Duration, selfRSS int64, started0, started1 *float64) record.Process {
		out := record.Process{Name: name}
		cpu0, _, ok0 := below(before.all, pid)
		cpu1, rss, ok1 := below(after.all, pid)
		if ok0 && ok1 {
			out.CPU, out.RSS = new(max(0, (cpu1-cpu0+self).Seconds())), new(float64(rss+selfRSS))
		}
		if started0 != nil && started1 != nil {
			out.Started = new(*started1 - *started0)
		}
		return out
	}
	tree := func(p *process, self bool) record.Process {
		if !self {
			return under("below "+p.name, p.pid(), 0, 0, before.started[p], after.started[p])
		}
		used := time.Duration(after.use[p].CPUNanos - before.use[p].CPUNanos)
		return under(p.name, p.pid(), used, after.all[p.pid()].rss, before.started[p], after.started[p])
	}
	for _, p := range t.sandboxes {
		s.Sandboxes = append(s.Sandboxes, tree(p, true))
	}
	for i, c := range t.containers {
		s.Sandboxes = append(s.Sandboxes, under(c.name, c.pid, 0, 0, before.inside[i], after.inside[i]))
	}
	for _, p := range t.relays {
		r := tree(p, true)
		r.Started = nil
		s.Relays = append(s.Relays, r)
	}
	if t.below {
		for _, p := range harnesses {
			s.Sandboxes = append(s.Sandboxes, tree(p, false))
		}
	}
	if t.hub == nil || before.hub == nil || after.hub == nil {
		return
	}
	h := &record.Hub{Process: tree(t.hub, true)}
	h.Started = nil
	secs := s.Wall.Seconds()
	h.MsgsPerS = new(float64(after.hub.InMsgs+after.hub.OutMsgs-before.hub.InMsgs-before.hub.OutMsgs) / secs)
	h.BytesPerS = new(float64(after.hub.InBytes+after.hub.OutBytes-before.hub.InBytes-before.hub.OutBytes) / secs)
	h.SlowConsumers = new(float64(after.hub.SlowConsumers - before.hub.SlowConsumers))
	s.Hub = h
}

func (m *made) notes() (out []string) {
	for kind, text := range m.examples {
		out = append(out, fmt.Sprintf("%s: %.300s", kind, text))
	}
	return out
}
