package harnesslib

import (
	"context"
	"fmt"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Acquire leases a slot of a sandbox: the less loaded of two, chosen by chance among those that are meant and have room
// as far as is known, then the next one, until a worker grants it. The lease is renewed from then on; Release ends it.
// Errors: ErrNoSandbox, a *[SaturatedError] (ErrPoolSaturated), which with Wait comes with the context's cause; an option
// that is out of its bounds; *bus.Error when a worker refuses the request itself.
func (h *Hub) Acquire(ctx context.Context, o AcquireOptions) (*Lease, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := h.followPresence(ctx); err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	l, err := h.pool.acquire(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	l.sandbox = &Sandbox{hub: access{h, caller{h.caller, l}}, zone: l.place.zone, id: l.place.sandbox}
	return l, nil
}

// LeaseStats counts what became of the hub's leases.
func (h *Hub) LeaseStats() LeaseStats { return h.pool.snapshot() }

// followPresence begins to follow presence, once, and returns when it is known.
func (h *Hub) followPresence(ctx context.Context) error {
	d, err := h.directory(ctx)
	if err != nil {
		return err
	}
	h.follow.Do(func() {
		h.following.Go(func() { h.pool.follow(h.life, d) })
	})
	select {
	case <-h.pool.ready:
		return nil
	case <-h.life.Done():
		return bus.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leaseDesk asks workers for leases.
type leaseDesk struct{ caller *bus.Caller }

func (d leaseDesk) acquire(ctx context.Context, p place, op bus.OpID, req *sandbusv1.LeaseAcquireRequest) (*sandbusv1.LeaseAcquireResponse, error) {
	req.Meta = &sandbusv1.RequestMeta{Op: string(op)}
	resp := &sandbusv1.LeaseAcquireResponse{}
	return resp, d.caller.Request(ctx, p.target(), "lease.acquire", op, req, resp)
}

func (d leaseDesk) renew(ctx context.Context, p place, lease string) error {
	req := &sandbusv1.LeaseRenewRequest{Meta: &sandbusv1.RequestMeta{Lease: lease}}
	return d.caller.Request(ctx, p.target(), "lease.renew", "", req, &sandbusv1.LeaseRenewResponse{})
}

func (d leaseDesk) release(ctx context.Context, p place, lease string, op bus.OpID) error {
	req := &sandbusv1.LeaseReleaseRequest{Meta: &sandbusv1.RequestMeta{Lease: lease}, AcquireOp: string(op)}
	return d.caller.Request(ctx, p.target(), "lease.release", "", req, &sandbusv1.LeaseReleaseResponse{})
}
