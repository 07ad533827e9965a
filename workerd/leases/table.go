package leases

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// The bounds of a lease's time to live.
const (
	DefaultTTL = time.Minute
	MinTTL     = time.Second
	MaxTTL     = time.Hour
)

// DefaultKeep is for how long what a holder has left behind outlives its last lease.
const DefaultKeep = 10 * time.Minute

// MaxSlots bounds the slots of one worker.
const MaxSlots = 65535

// keepPast is how many leases that have ended are remembered, so that their holders are told why.
const keepPast = 1024

// Config says what there is to hand out.
type Config struct {
	// Slots is how many leases are granted at once; zero means 1. At most MaxSlots.
	Slots int
	// Keep is for how long what a holder left outlives its last lease; zero means DefaultKeep.
	Keep time.Duration
	// Ended is told of each lease's end, on a goroutine of its own and before Close returns; nil means nobody.
	Ended func(*Lease)
	// Left is told of a holder whose last lease ended Keep ago, on a goroutine of its own; nil means nobody. It is not
	// told of those whose time is not over when the table is closed.
	Left func(holder string)
}

// Why a lease has ended, or is none.
var (
	ErrExpired  = errors.New("it was not renewed in time")
	ErrReleased = errors.New("its holder has released it")
	ErrClosed   = errors.New("the worker has ended")
	ErrUnknown  = errors.New("this worker has not granted it")
	ErrForeign  = errors.New("it is another harness's")
)

// ErrBusy says that too few slots are free; nothing was granted.
var ErrBusy = errors.New("no slot is free")

// RangeError is a value of a request that is out of its bounds.
type RangeError struct {
	What     string
	Got      any
	Min, Max any
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s %v: want %v to %v, or 0 for the default", e.What, e.Got, e.Min, e.Max)
}

// Request asks for a lease.
type Request struct {
	// Holder is who asks; must not be empty.
	Holder string
	// Op names the request: the same holder's Op again gets the same lease. Empty names nothing.
	Op string
	// TTL is for how long the lease lasts without being used; zero means DefaultTTL. From MinTTL to MaxTTL.
	TTL time.Duration
	// Exclusive takes all slots.
	Exclusive bool
	// Cap is how many slots may be taken with this lease; zero means all that there are.
	Cap int
	// Ticket names the waiting of the one who asks; empty means that it does not wait. See tickets.
	Ticket string
	// Waited is for how long it has waited; it counts with a Ticket only. At most MaxWaited.
	Waited time.Duration
}

// Lease is a right to one slot, or to all of them.
type Lease struct {
	ID        string
	Epoch     uint64
	Holder    string
	TTL       time.Duration
	Exclusive bool

	op      string
	granted time.Time
	life    context.Context //nolint:containedctx // the lease's own life, ended by the table
	end     context.CancelCauseFunc
	timer   *time.Timer

	// guarded by the table's lock
	until time.Time
	ended bool
}

// Life ends with the lease; its cause is why.
func (l *Lease) Life() context.Context { return l.life }

// Table knows the leases of a worker. Its methods may be called at once.
type Table struct {
	cfg Config
	wg  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	live   map[string]*Lease
	byOp   map[opKey]*Lease
	queue  tickets
	used   int
	epoch  uint64
	past   map[string]past
	order  []string              // of past, the oldest first
	held   map[string]int        // live leases of a holder
	left   map[string]*departure // of holders without a lease
	closed bool
}

// departure is a holder's time without a lease.
type departure struct{ timer *time.Timer }

type opKey struct{ holder, op string }

// past is a lease that has ended.
type past struct {
	holder string
	epoch  uint64
	cause  error
	at     time.Time
}

// NewTable makes a table without leases. Errors: *[RangeError].
func NewTable(cfg Config) (*Table, error) {
	if cfg.Slots < 0 || cfg.Slots > MaxSlots {
		return nil, &RangeError{"slots", cfg.Slots, 1, MaxSlots}
	}
	if cfg.Keep < 0 {
		return nil, fmt.Errorf("keep %s: want more than 0, or 0 for %s", cfg.Keep, DefaultKeep)
	}
	if cfg.Slots == 0 {
		cfg.Slots = 1
	}
	if cfg.Keep == 0 {
		cfg.Keep = DefaultKeep
	}
	return &Table{
		cfg: cfg, live: map[string]*Lease{}, byOp: map[opKey]*Lease{}, past: map[string]past{},
		queue: tickets{}, held: map[string]int{}, left: map[string]*departure{},
	}, nil
}

// Acquire grants a lease, or refuses it at once. Errors: ErrBusy, ErrClosed, *[RangeError].
func (t *Table) Acquire(r Request) (*Lease, error) {
	if r.TTL == 0 {
		r.TTL = DefaultTTL
	}
	if r.TTL < MinTTL || r.TTL > MaxTTL {
		return nil, &RangeError{"TTL", r.TTL, MinTTL, MaxTTL}
	}
	if r.Waited < 0 || r.Waited > MaxWaited {
		return nil, &RangeError{"waited", r.Waited, time.Duration(0), MaxWaited}
	}
	if r.Cap < 0 || r.Cap > MaxSlots {
		return nil, &RangeError{"cap", r.Cap, 1, MaxSlots}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	now := time.Now()
	if l := t.byOp[opKey{r.Holder, r.Op}]; l != nil && r.Op != "" && now.Before(l.until) {
		l.until = now.Add(l.TTL)
		return l, nil
	}
	bound, takes := t.cfg.Slots, 1
	if r.Exclusive {
		takes = t.cfg.Slots
	} else if r.Cap > 0 {
		bound = min(bound, r.Cap)
	}
	if t.used+takes > bound {
		t.sweepLocked(now)
	}
	if ahead := t.queue.ahead(r, now); t.used+ahead+takes > bound {
		t.queue.take(r, takes, now)
		return nil, fmt.Errorf("%w: %d of %d are taken and %d are for those who have waited longer; %d more would be over the cap of %d",
			ErrBusy, t.used, t.cfg.Slots, ahead, takes, bound)
	}
	t.queue.drop(r.Holder, r.Ticket)
	t.epoch++
	l := &Lease{
		ID: strings.ToLower(rand.Text()), Epoch: t.epoch, Holder: r.Holder, TTL: r.TTL, Exclusive: r.Exclusive,
		op: r.Op, granted: now, until: now.Add(r.TTL),
	}
	l.life, l.end = context.WithCancelCause(context.Background())
	l.timer = time.AfterFunc(r.TTL, func() { t.expire(l) })
	t.used += takes
	t.live[l.ID] = l
	if r.Op != "" {
		t.byOp[opKey{r.Holder, r.Op}] = l
	}
	t.held[r.Holder]++
	if d := t.left[r.Holder]; d != nil {
		d.timer.Stop()
		delete(t.left, r.Holder)
	}
	return l, nil
}

// sweepLocked ends the leases whose time is over and whose timers have not run yet.
func (t *Table) sweepLocked(now time.Time) {
	for _, l := range t.live {
		if !now.Before(l.until) {
			t.endLocked(l, ErrExpired)
		}
	}
}

// expire ends a lease whose time is over; uses meanwhile have only moved that time.
func (t *Table) expire(l *Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.ended {
		return
	}
	if left := time.Until(l.until); left > 0 {
		l.timer.Reset(left)
		return
	}
	t.endLocked(l, ErrExpired)
}

// Use renews a lease for one request of its holder. Errors: *[EndedError].
func (t *Table) Use(id, holder string) (*Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, err := t.findLocked(id, holder)
	if err != nil {
		return nil, err
	}
	l.until = time.Now().Add(l.TTL)
	return l, nil
}

func (t *Table) findLocked(id, holder string) (*Lease, error) {
	l := t.live[id]
	if l == nil {
		p, ok := t.past[id]
		switch {
		case !ok:
			return nil, &EndedError{Err: ErrUnknown}
		case p.holder != holder:
			return nil, &EndedError{Err: ErrForeign}
		}
		return nil, &EndedError{Epoch: p.epoch, Ago: time.Since(p.at), Err: p.cause}
	}
	if l.Holder != holder {
		return nil, &EndedError{Err: ErrForeign}
	}
	if !time.Now().Before(l.until) {
		t.endLocked(l, ErrExpired)
		return nil, &EndedError{Epoch: l.Epoch, Err: ErrExpired}
	}
	return l, nil
}

// Release ends a lease. Its slots are free when it returns. Errors: *[EndedError].
func (t *Table) Release(id, holder string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, err := t.findLocked(id, holder)
	if err != nil {
		return err
	}
	t.endLocked(l, ErrReleased)
	return nil
}

// ReleaseOp ends the lease that an Acquire with this Op was granted, if there is one, or the waiting with this Ticket.
func (t *Table) ReleaseOp(op, holder string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue.drop(holder, op)
	if l := t.byOp[opKey{holder, op}]; l != nil {
		t.endLocked(l, ErrReleased)
	}
}

func (t *Table) endLocked(l *Lease, why error) {
	l.ended = true
	l.timer.Stop()
	delete(t.live, l.ID)
	delete(t.byOp, opKey{l.Holder, l.op})
	if l.Exclusive {
		t.used = 0
	} else {
		t.used--
	}
	t.past[l.ID] = past{l.Holder, l.Epoch, why, time.Now()}
	t.order = append(t.order, l.ID)
	if len(t.order) > keepPast {
		delete(t.past, t.order[0])
		t.order = t.order[1:]
	}
	l.end(&EndedError{Epoch: l.Epoch, Err: why})
	if t.cfg.Ended != nil {
		t.wg.Go(func() { t.cfg.Ended(l) })
	}
	if t.held[l.Holder]--; t.held[l.Holder] > 0 {
		return
	}
	delete(t.held, l.Holder)
	if !t.closed {
		d := &departure{}
		d.timer = time.AfterFunc(t.cfg.Keep, func() { t.leave(l.Holder, d) })
		t.left[l.Holder] = d
	}
}

// leave tells of a holder that has not come back.
func (t *Table) leave(holder string, d *departure) {
	t.mu.Lock()
	if t.left[holder] != d { // it has come back, or the table is closed
		t.mu.Unlock()
		return
	}
	delete(t.left, holder)
	t.wg.Add(1)
	t.mu.Unlock()
	defer t.wg.Done()
	if t.cfg.Left != nil {
		t.cfg.Left(holder)
	}
}

// Info describes a lease.
type Info struct {
	Epoch     uint64
	Holder    string
	Exclusive bool
	Age       time.Duration
	Left      time.Duration // until it ends if nobody uses it
	TTL       time.Duration
}

// List describes the leases by their epochs.
func (t *Table) List() []Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	list := make([]Info, 0, len(t.live))
	for _, l := range t.live {
		if left := l.until.Sub(now); left > 0 {
			list = append(list, Info{l.Epoch, l.Holder, l.Exclusive, now.Sub(l.granted), left, l.TTL})
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return list
}

// Used is how many slots are taken.
func (t *Table) Used() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked(time.Now())
	return t.used
}

// Slots is how many there are.
func (t *Table) Slots() int { return t.cfg.Slots }

// Close ends all leases with ErrClosed and waits until all has been told that is to be told. It may be called twice.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	for _, l := range t.live {
		t.endLocked(l, ErrClosed)
	}
	for _, d := range t.left {
		d.timer.Stop()
	}
	clear(t.left)
	t.mu.Unlock()
	t.wg.Wait()
}

// EndedError says why a request may not use a lease. It wraps ErrExpired, ErrReleased, ErrClosed, ErrUnknown or
// ErrForeign, and is a *[bus.Error] of CODE_FENCED.
type EndedError struct {
	Epoch uint64        // zero when it is not the caller's to know
	Ago   time.Duration // since the end
	Err   error
}

func (e *EndedError) Error() string {
	if e.Epoch == 0 {
		return fmt.Sprintf("fenced: lease: %v; acquire a new one", e.Err)
	}
	return fmt.Sprintf("fenced: the lease with epoch %d has ended %s ago: %v; acquire a new one", e.Epoch, e.Ago.Round(time.Millisecond), e.Err)
}

// Unwrap gives the reason and the code.
func (e *EndedError) Unwrap() []error {
	return []error{e.Err, bus.Errorf(sandbusv1.Code_CODE_FENCED, "%v", e.Err)}
}
