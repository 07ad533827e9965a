package harnesslib

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// fakeDesk is workers with slots, without a bus: time can be synctest's.
type fakeDesk struct {
	mu      sync.Mutex // guards the fields below
	workers map[bus.SandboxID]*fakeWorker
	epoch   uint64
	asked   []bus.SandboxID // in order
	renewed []time.Time
}

type fakeWorker struct {
	slots     int
	held      map[string]bus.OpID
	exclusive string // the lease that is
	away      bool   // nobody listens
	hangs     bool   // does not answer
	mute      bool   // grants, and does not answer
	fault     error  // what it answers to everything
	most      int
	delays    time.Duration // of acquire
}

func newFakeDesk(slots ...int) *fakeDesk {
	d := &fakeDesk{workers: map[bus.SandboxID]*fakeWorker{}}
	for i, n := range slots {
		d.workers[bus.SandboxID(fmt.Sprintf("box%d", i))] = &fakeWorker{slots: n, held: map[string]bus.OpID{}}
	}
	return d
}

// presence is what the workers' beats say now.
func (d *fakeDesk) presence() []SandboxInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []SandboxInfo
	for id, w := range d.workers {
		all = append(all, SandboxInfo{
			Zone: "main", Sandbox: id, Instance: bus.InstanceID("inst-" + id), Features: []string{"leases"},
			Slots: int32(w.slots), Used: int32(len(w.held)), Labels: map[string]string{"id": string(id)},
		})
	}
	return all
}

// beat tells a pool that these are live, and no others.
func (d *fakeDesk) beat(p *pool, live []SandboxInfo) {
	there := map[string]bool{}
	for _, info := range live {
		there[key(info)] = true
		p.heard(bus.PresenceEvent{Kind: bus.PresenceChanged, Presence: info})
	}
	for _, info := range d.presence() {
		if !there[key(info)] {
			p.heard(bus.PresenceEvent{Kind: bus.PresenceGone, Presence: info})
		}
	}
	p.heard(bus.PresenceEvent{Kind: bus.PresenceListed})
}

func (d *fakeDesk) renewals() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.renewed)
}

func (d *fakeDesk) worker(id bus.SandboxID, change func(*fakeWorker)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d.workers[id])
}

func (d *fakeDesk) reach(ctx context.Context, p place) (*fakeWorker, error) {
	d.mu.Lock()
	w := d.workers[p.sandbox]
	away, hangs, fault, delays := w.away, w.hangs, w.fault, w.delays
	d.mu.Unlock()
	switch {
	case hangs:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case away:
		return nil, bus.ErrNoResponders
	}
	if delays > 0 {
		select {
		case <-time.After(delays):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return w, fault
}

func (d *fakeDesk) acquire(ctx context.Context, p place, op bus.OpID, req *sandbusv1.LeaseAcquireRequest) (*sandbusv1.LeaseAcquireResponse, error) {
	d.mu.Lock()
	d.asked = append(d.asked, p.sandbox)
	d.mu.Unlock()
	w, err := d.reach(ctx, p)
	if err != nil {
		return &sandbusv1.LeaseAcquireResponse{}, err
	}
	resp, err := d.grant(w, op, req)
	if w.mute {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return resp, err
}

func (d *fakeDesk) grant(w *fakeWorker, op bus.OpID, req *sandbusv1.LeaseAcquireRequest) (*sandbusv1.LeaseAcquireResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	resp := &sandbusv1.LeaseAcquireResponse{Slots: int32(w.slots)}
	limit := w.slots
	if req.GetCap() > 0 {
		limit = min(limit, int(req.GetCap()))
	}
	if req.GetExclusive() {
		limit = 1
	} else if _, ok := w.held[w.exclusive]; ok {
		limit = 0
	}
	if len(w.held) >= limit {
		resp.Used = int32(len(w.held))
		return resp, bus.Errorf(sandbusv1.Code_CODE_BUSY, "full")
	}
	d.epoch++
	resp.Lease, resp.Epoch, resp.TtlMs = fmt.Sprint("lease", d.epoch), d.epoch, req.GetTtlMs()
	if resp.GetTtlMs() == 0 {
		resp.TtlMs = defaultTTL.Milliseconds()
	}
	w.held[resp.GetLease()] = op
	if req.GetExclusive() {
		w.exclusive = resp.GetLease()
	}
	w.most = max(w.most, len(w.held))
	resp.Used = int32(len(w.held))
	return resp, nil
}

func (d *fakeDesk) renew(ctx context.Context, p place, lease string) error {
	w, err := d.reach(ctx, p)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := w.held[lease]; !ok {
		return bus.Errorf(sandbusv1.Code_CODE_FENCED, "no such lease")
	}
	d.renewed = append(d.renewed, time.Now())
	return nil
}

func (d *fakeDesk) release(ctx context.Context, p place, lease string, op bus.OpID) error {
	w, err := d.reach(ctx, p)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, o := range w.held {
		if id == lease || o == op {
			delete(w.held, id)
			return nil
		}
	}
	if lease == "" {
		return nil
	}
	return bus.Errorf(sandbusv1.Code_CODE_FENCED, "no such lease")
}
