package workerd

import (
	"context"
	"errors"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/leases"
)

func (w *Worker) registerLeases(srv *bus.Server) {
	srv.Admit(w.admit)
	srv.HandleQuick("lease.acquire", func(r *bus.Request) { w.acquireLease(r, srv.Load()) })
	// Who holds a lease may keep and end it also while the worker drains: its commands go on.
	srv.HandleLate("lease.renew", w.renewLease)
	srv.HandleLate("lease.release", w.releaseLease)
	srv.HandleLate("lease.list", w.listLeases)
}

// admit decides whether a request may run under the lease that it names, and renews that.
func (w *Worker) admit(r *bus.Request, lease string) (context.Context, error) {
	if lease == "" {
		if w.cfg.RequireLease && r.Verb != "lease.acquire" && r.Verb != "lease.release" && r.Verb != "lease.list" {
			return nil, bus.Errorf(sandbusv1.Code_CODE_FENCED, "verb %s: this worker serves holders of leases only: acquire one", r.Verb)
		}
		return nil, nil //nolint:nilnil // no lease, no life
	}
	if r.Verb == "lease.acquire" || r.Verb == "lease.list" {
		return nil, nil //nolint:nilnil // they need none
	}
	l, err := w.leases.Use(lease, string(r.Harness))
	if err != nil {
		return nil, err
	}
	return l.Life(), nil
}

// leaseEnded ends what must not outlive a lease. Requests under way end with its life.
func (w *Worker) leaseEnded(l *leases.Lease) {
	why := "released"
	if cause := context.Cause(l.Life()); !errors.Is(cause, leases.ErrReleased) {
		why = cause.Error()
	}
	w.cfg.Logger.Info("lease ended", "epoch", l.Epoch, "harness", l.Holder, "reason", why)
	w.execs.EndLease(l.ID)
	if w.sessions != nil {
		w.sessions.Rest(l.Holder)
	}
}

// holderLeft ends what a harness has left behind that did not come back.
func (w *Worker) holderLeft(holder string) {
	w.execs.EndOwner(holder)
	if w.sessions != nil {
		w.sessions.CloseOwner(holder)
	}
}

// acquireLease serves lease.acquire.
func (w *Worker) acquireLease(r *bus.Request, load int) {
	var m sandbusv1.LeaseAcquireRequest
	if _, err := r.Decode(&m); err != nil {
		r.Fail(err)
		return
	}
	l, err := w.grant(r, &m)
	resp := &sandbusv1.LeaseAcquireResponse{
		Error: bus.ToWire(leaseError(err)), Slots: int32(w.leases.Slots()), Used: int32(w.leases.Used()), Load: int32(load),
	}
	if err == nil {
		w.cfg.Logger.Info("lease granted", "epoch", l.Epoch, "harness", l.Holder, "exclusive", l.Exclusive)
		resp.Lease, resp.Epoch, resp.TtlMs = l.ID, l.Epoch, l.TTL.Milliseconds()
	}
	r.Reply(resp)
}

func (w *Worker) grant(r *bus.Request, m *sandbusv1.LeaseAcquireRequest) (*leases.Lease, error) {
	if r.Harness == "" {
		return nil, invalid("a lease belongs to a harness: want a reply subject rep.ZONE.ID.HARNESS.CONN.OP")
	}
	if ms, least, most := m.GetTtlMs(), leases.MinTTL.Milliseconds(), leases.MaxTTL.Milliseconds(); ms != 0 && (ms < least || ms > most) {
		return nil, invalid("ttl_ms %d: want %d to %d, or 0 for %d", ms, least, most, leases.DefaultTTL.Milliseconds())
	}
	if ms, most := m.GetWaitedMs(), leases.MaxWaited.Milliseconds(); ms < 0 || ms > most {
		return nil, invalid("waited_ms %d: want 0 to %d", ms, most)
	}
	if m.GetTicket() != "" {
		if _, err := bus.ParseOpID(m.GetTicket()); err != nil {
			return nil, invalid("ticket: %v", err)
		}
	}
	return w.leases.Acquire(leases.Request{
		Holder: string(r.Harness), Op: string(r.Op), TTL: time.Duration(m.GetTtlMs()) * time.Millisecond,
		Exclusive: m.GetExclusive(), Cap: int(m.GetCap()),
		Ticket: m.GetTicket(), Waited: time.Duration(m.GetWaitedMs()) * time.Millisecond,
	})
}

// leaseError gives the errors of package leases their codes.
func leaseError(err error) error {
	var re *leases.RangeError
	switch {
	case errors.As(err, &re):
		return invalid("%v", err)
	case errors.Is(err, leases.ErrBusy):
		return bus.Errorf(sandbusv1.Code_CODE_BUSY, "%v", err)
	case errors.Is(err, leases.ErrClosed):
		return bus.Errorf(sandbusv1.Code_CODE_DRAINING, "the worker is stopping")
	}
	return err
}

// renewLease serves lease.renew: admit has done it.
func (w *Worker) renewLease(r *bus.Request) {
	var m sandbusv1.LeaseRenewRequest
	if _, err := r.Decode(&m); err != nil {
		r.Fail(err)
		return
	}
	l, err := w.leases.Use(m.GetMeta().GetLease(), string(r.Harness))
	if err != nil {
		r.Fail(err)
		return
	}
	r.Reply(&sandbusv1.LeaseRenewResponse{TtlMs: l.TTL.Milliseconds()})
}

// releaseLease serves lease.release.
func (w *Worker) releaseLease(r *bus.Request) {
	var m sandbusv1.LeaseReleaseRequest
	_, err := r.Decode(&m)
	lease, op := m.GetMeta().GetLease(), m.GetAcquireOp()
	switch {
	case err != nil:
	case (lease == "") == (op == ""):
		err = invalid("release: want either the lease in meta or acquire_op")
	case op != "":
		w.leases.ReleaseOp(op, string(r.Harness))
	default:
		err = w.leases.Release(lease, string(r.Harness))
	}
	if err != nil {
		r.Fail(err)
		return
	}
	r.Reply(&sandbusv1.LeaseReleaseResponse{})
}

// listLeases serves lease.list.
func (w *Worker) listLeases(r *bus.Request) {
	var m sandbusv1.LeaseListRequest
	if _, err := r.Decode(&m); err != nil {
		r.Fail(err)
		return
	}
	resp := &sandbusv1.LeaseListResponse{Slots: int32(w.leases.Slots()), Used: int32(w.leases.Used()), Required: w.cfg.RequireLease}
	for _, l := range w.leases.List() {
		resp.Leases = append(resp.Leases, &sandbusv1.LeaseInfo{
			Epoch: l.Epoch, Harness: l.Holder, Exclusive: l.Exclusive,
			AgeMs: l.Age.Milliseconds(), LeftMs: l.Left.Milliseconds(), TtlMs: l.TTL.Milliseconds(),
		})
	}
	r.Reply(resp)
}
