package harnesslib

import (
	"context"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// LeaseList is what a sandbox's worker says of its slots.
type LeaseList struct {
	Slots    int         `json:"slots"`
	Used     int         `json:"used"`
	Required bool        `json:"required"` // who has no lease is not served
	Leases   []LeaseInfo `json:"leases"`   // by their epochs
}

// LeaseInfo is one lease of a sandbox.
type LeaseInfo struct {
	Epoch     uint64        `json:"epoch"`
	Harness   string        `json:"harness"` // who holds it
	Exclusive bool          `json:"exclusive"`
	Age       time.Duration `json:"age_ns"`
	Left      time.Duration `json:"left_ns"` // until it ends, when nobody renews it
	TTL       time.Duration `json:"ttl_ns"`
}

// Leases lists who holds the sandbox's slots.
func (s *Sandbox) Leases(ctx context.Context) (LeaseList, error) {
	resp := &sandbusv1.LeaseListResponse{}
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "lease.list", "", &sandbusv1.LeaseListRequest{}, resp)
	})
	if err != nil {
		return LeaseList{}, execError(err)
	}
	list := LeaseList{Slots: int(resp.GetSlots()), Used: int(resp.GetUsed()), Required: resp.GetRequired(), Leases: []LeaseInfo{}}
	for _, l := range resp.GetLeases() {
		list.Leases = append(list.Leases, LeaseInfo{
			Epoch: l.GetEpoch(), Harness: l.GetHarness(), Exclusive: l.GetExclusive(),
			Age: ms(l.GetAgeMs()), Left: ms(l.GetLeftMs()), TTL: ms(l.GetTtlMs()),
		})
	}
	return list, nil
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
