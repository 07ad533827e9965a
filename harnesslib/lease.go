package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Why a lease has ended, or is not to be had. Those of the first group are what a *[LeaseError] wraps.
var (
	// ErrReleased says that we ended the lease.
	ErrReleased = errors.New("the lease was released")
	// ErrGone says that the worker that granted the lease is gone, or has been started anew.
	ErrGone = errors.New("the worker of the lease is gone")
	// ErrFenced says that the lease was not renewed in time, or that its worker does not know it any more. A request that
	// was sent after that did not run; of one that was under way nobody knows.
	ErrFenced = bus.ErrFenced
	// ErrQuarantined says that the sandbox did not confirm the end of a command: it is not used again until a new worker
	// takes its place.
	ErrQuarantined = errors.New("the sandbox is quarantined: it did not confirm an abort")

	// ErrNoSandbox says that no live sandbox is meant that could be leased.
	ErrNoSandbox = errors.New("no sandbox to lease")
	// ErrPoolSaturated is what a *[SaturatedError] is: all slots that may be taken are.
	ErrPoolSaturated = errors.New("the pool is saturated")
)

// AcquireOptions says what to lease.
type AcquireOptions struct {
	// Selector says which sandboxes are meant; the zero value means all of all zones.
	Selector
	// Requirements are what such a sandbox must be: others are left out, and counted in the error when none is left.
	Requirements
	// Max is how many slots of one sandbox may be taken, by whomever, this lease included; zero means as many as its worker
	// has. At most 65,535.
	Max int
	// Exclusive takes all slots of a sandbox: nobody else has a lease there meanwhile.
	Exclusive bool
	// Wait waits for a slot until the context ends; false means ErrPoolSaturated at once. Those who wait in one Hub are
	// served in the order of their calls: no slot of a sandbox goes to a later one while an earlier one waits for that
	// sandbox. Among several processes the workers keep what is free for who has waited longest.
	Wait bool
	// TTL is how long the lease outlives a harness that died, from 1 s to 1 h; zero means 1 min. It is renewed at a third
	// of that.
	TTL time.Duration
}

// The bounds of a lease's TTL, and its default. They are the workers'.
const (
	minTTL     = time.Second
	maxTTL     = time.Hour
	defaultTTL = time.Minute
	maxSlots   = 65535
	maxWaited  = 7 * 24 * time.Hour
)

func (o *AcquireOptions) check() error {
	if err := o.Selector.Check(); err != nil {
		return err
	}
	if err := o.Requirements.valid(); err != nil {
		return err
	}
	if o.TTL != 0 && (o.TTL < minTTL || o.TTL > maxTTL) {
		return fmt.Errorf("lease: TTL %s: want %s to %s, or 0 for %s", o.TTL, minTTL, maxTTL, defaultTTL)
	}
	if o.Max < 0 || o.Max > maxSlots {
		return fmt.Errorf("lease: max %d: want 1 to %d slots, or 0 for as many as the worker has", o.Max, maxSlots)
	}
	return nil
}

// LeaseError says why a lease has ended. It wraps ErrReleased, ErrGone, ErrFenced, ErrQuarantined or bus.ErrClosed.
type LeaseError struct {
	Zone, Sandbox string
	Epoch         uint64
	Reason        string // more for people; may be empty
	Err           error
}

func (e *LeaseError) Error() string {
	s := fmt.Sprintf("lease %d of sandbox %s: %v", e.Epoch, e.Sandbox, e.Err)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

func (e *LeaseError) Unwrap() error { return e.Err }

// Lease is the right to one slot of a sandbox, or to all of them. It is renewed from the moment of its acquisition until
// it ends: by Release, with its worker, or because the worker could not be reached for the length of the TTL. Its
// methods may be called at once.
type Lease struct {
	id      string
	epoch   uint64
	ttl     time.Duration
	place   place
	desk    desk
	sandbox *Sandbox
	life    context.Context //nolint:containedctx // the lease's own life, ended by finish
	end     context.CancelCauseFunc
	ended   func(*Lease, error) // tells the pool, once
	kept    chan struct{}       // closed when nobody renews it any more
	gone    chan struct{}       // one element when presence does not know the worker any more

	mu    sync.Mutex // guards the fields below
	heard time.Time  // when the latest request was sent that has renewed it
	over  bool
}

// place is a worker instance.
type place struct {
	zone     bus.Zone
	sandbox  bus.SandboxID
	instance bus.InstanceID
}

func (p place) target() bus.Target {
	return bus.Target{Zone: p.zone, Sandbox: p.sandbox, Instance: p.instance}
}

// desk is where leases are had: the workers, by requests.
type desk interface {
	acquire(ctx context.Context, p place, op bus.OpID, req *sandbusv1.LeaseAcquireRequest) (*sandbusv1.LeaseAcquireResponse, error)
	renew(ctx context.Context, p place, lease string) error
	// release ends a lease, or when that has no name what was granted under an op.
	release(ctx context.Context, p place, lease string, op bus.OpID) error
}

// newLease begins to renew a lease that was asked for at that time.
func newLease(d desk, p place, asked time.Time, resp *sandbusv1.LeaseAcquireResponse, ended func(*Lease, error)) *Lease {
	l := &Lease{
		id: resp.GetLease(), epoch: resp.GetEpoch(), ttl: time.Duration(resp.GetTtlMs()) * time.Millisecond, place: p, desk: d,
		ended: ended, kept: make(chan struct{}), gone: make(chan struct{}, 1), heard: asked,
	}
	l.life, l.end = context.WithCancelCause(context.Background())
	go l.keep()
	return l
}

// Sandbox is the sandbox, as the lease's holder sees it: each request names the lease, and fails with the lease's cause
// when that has ended. It stays with the worker instance that granted the lease.
func (l *Lease) Sandbox() *Sandbox { return l.sandbox }

// Epoch tells the leases of one worker instance apart; a later one has a greater number.
func (l *Lease) Epoch() uint64 { return l.epoch }

// TTL is how long the lease lasts without a renewal.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Lost is closed when the lease has ended; Cause says why.
func (l *Lease) Lost() <-chan struct{} { return l.life.Done() }

// Cause is why the lease has ended, a *[LeaseError]; nil while it lasts.
func (l *Lease) Cause() error { return context.Cause(l.life) }

// releaseLimit is how long the worker may take to answer a release.
const releaseLimit = 5 * time.Second

// Release ends the lease: calls that are under way fail with ErrReleased, and the worker aborts commands that are not
// detached. It is done also when ctx has ended, and takes at most 5 s. Errors: why the lease had ended before, other than
// by Release; that the worker did not answer: then it is free after the TTL.
func (l *Lease) Release(ctx context.Context) error {
	if !l.finish(ErrReleased, "") {
		if err := l.Cause(); !errors.Is(err, ErrReleased) {
			return err
		}
		return nil
	}
	<-l.kept // a renewal after the release would be fenced
	defer l.ended(l, ErrReleased)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	err := l.desk.release(limit, l.place, l.id, "")
	if err == nil || errors.Is(err, bus.ErrFenced) || errors.Is(err, bus.ErrNoResponders) {
		return nil // it is free, one way or another
	}
	return fmt.Errorf("release lease %d of sandbox %s: %w; its slot is free after %s", l.epoch, l.place.sandbox, err, l.ttl)
}

// finish ends the lease on this side, for a reason, unless it has ended already. All but a Release tell the pool here.
func (l *Lease) finish(why error, reason string) bool {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return false
	}
	l.over = true
	l.mu.Unlock()
	l.end(&LeaseError{Zone: string(l.place.zone), Sandbox: string(l.place.sandbox), Epoch: l.epoch, Reason: reason, Err: why})
	if !errors.Is(why, ErrReleased) {
		l.ended(l, why)
	}
	return true
}

// usable is nil while requests may be sent under the lease.
func (l *Lease) usable() error {
	if l.life.Err() == nil && !time.Now().Before(l.deadline()) {
		l.finish(ErrFenced, "it was not renewed in time")
	}
	return context.Cause(l.life)
}

// margin is how long before the worker ends a lease we stop to use it. The grant is counted from the sending of its
// request already: what is left are clocks that do not run alike.
func (l *Lease) margin() time.Duration { return min(l.ttl/10, 2*time.Second) }

func (l *Lease) deadline() time.Time { return l.lastHeard().Add(l.ttl - l.margin()) }

func (l *Lease) lastHeard() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// extend notes that the worker has renewed the lease for a request that was sent at that time.
func (l *Lease) extend(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.After(l.heard) {
		l.heard = sent
	}
}

// keep renews the lease until it ends.
func (l *Lease) keep() {
	defer close(l.kept)
	var trouble error // why the latest renewal failed
	pause := time.Duration(0)
	t := time.NewTimer(l.ttl / 3)
	defer t.Stop()
	for {
		select {
		case <-l.life.Done():
			return
		case <-l.gone:
			l.confirmGone(true)
		case <-t.C:
		}
		now, heard := time.Now(), l.lastHeard()
		if !now.Before(l.deadline()) {
			reason := "it was not renewed in time"
			if trouble != nil {
				reason += ": " + trouble.Error()
			}
			l.finish(ErrFenced, reason)
			return
		}
		if due := heard.Add(l.ttl / 3); now.Before(due) {
			t.Reset(due.Sub(now))
			continue
		}
		if trouble = l.renew(); trouble == nil {
			pause = 0
			t.Reset(l.ttl / 3)
			continue
		}
		pause = min(max(2*pause, l.ttl/60), l.ttl/12)
		t.Reset(min(pause, max(0, time.Until(l.deadline()))))
	}
}

// renew asks the worker once, for at most a third of the TTL. What ends the lease ends it here.
func (l *Lease) renew() error {
	sent := time.Now()
	limit := min(l.ttl/3, l.deadline().Sub(sent))
	ctx, cancel := context.WithTimeoutCause(l.life, limit, fmt.Errorf("no answer to a renewal within %s", limit.Round(time.Millisecond)))
	defer cancel()
	err := l.desk.renew(ctx, l.place, l.id)
	switch {
	case err == nil:
		l.extend(sent)
	case errors.Is(err, bus.ErrNoResponders):
		l.confirmGone(false)
	default:
		_ = l.noted(err)
	}
	return err
}

// confirmAnswer is how long the answer may take by which the word of the hub that nobody listens, or that of presence, is
// confirmed.
const confirmAnswer = 5 * time.Second

// confirmGone asks the worker again, and ends the lease when nobody listens there for confirmLimit, or when presence does
// not know the worker either and no answer comes.
func (l *Lease) confirmGone(presence bool) {
	until := time.Now().Add(confirmLimit)
	for wait := confirmFirst; !l.confirm(presence, wait, until); wait = min(2*wait, confirmLimit/4) {
	}
}

// confirm asks once, after a pause. It is false when that says nothing yet, which it does until a time.
func (l *Lease) confirm(presence bool, wait time.Duration, until time.Time) (done bool) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.life.Done():
		return true
	}
	sent := time.Now()
	ctx, cancel := context.WithTimeoutCause(l.life, min(confirmAnswer, l.ttl/3), errNoAnswer)
	defer cancel()
	err := l.desk.renew(ctx, l.place, l.id)
	switch {
	case err == nil:
		l.extend(sent)
	case errors.Is(err, bus.ErrNoResponders) && (presence || !time.Now().Before(until)):
		l.finish(ErrGone, "nobody answers at its instance "+string(l.place.instance))
	case errors.Is(err, bus.ErrNoResponders):
		return false // its hub server may have died: then it is connected to another one soon
	case presence && errors.Is(err, errNoAnswer) && !errors.Is(err, bus.ErrPublish):
		l.finish(ErrGone, "presence does not know its instance any more, and no answer comes from there")
	default:
		_ = l.noted(err)
	}
	return true
}

// errNoAnswer is the cause with which a question to a worker ends that may be gone.
var errNoAnswer = errors.New("no answer")

// unheard notes that the sandbox did not confirm an abort.
func (s *Sandbox) unheard(t bus.Target) {
	s.hub.pool.quarantine(place{t.Zone, t.Sandbox, t.Instance})
	if l := s.hub.caller.lease; l != nil {
		l.finish(ErrQuarantined, "")
	}
}
