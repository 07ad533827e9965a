package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// pool has the leases of a hub, and those who wait for one. What it knows of workers comes from presence and from their
// own answers; it grants nothing itself: the worker that has the slots does.
type pool struct {
	desk desk
	wg   sync.WaitGroup          // questions to workers that are under way
	life context.Context         //nolint:containedctx // the pool's own life, ended by close
	end  context.CancelCauseFunc // its cause is bus.ErrClosed

	mu          sync.Mutex // guards the fields below
	candidates  map[string]*candidate
	quarantined map[place]bool // instances that are not asked any more; kept, for they may come back
	leases      map[*Lease]struct{}
	queue       []*waiter     // calls of acquire, in order of arrival
	changed     chan struct{} // closed and replaced when those who wait should look again
	ready       chan struct{} // closed when presence is known
	listed      bool
	stats       LeaseStats
}

func newPool(d desk) *pool {
	p := &pool{
		desk: d, candidates: map[string]*candidate{}, quarantined: map[place]bool{}, leases: map[*Lease]struct{}{},
		changed: make(chan struct{}), ready: make(chan struct{}),
	}
	p.life, p.end = context.WithCancelCause(context.Background())
	return p
}

func (p *pool) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// waiter is one Acquire.
type waiter struct {
	o      *AcquireOptions
	key    string // of what it wants: the same for the same options
	begin  time.Time
	ticket bus.OpID // names its waiting to the workers

	// guarded by the pool's lock
	waiting bool           // it has found no slot free
	asked   map[place]bool // workers that know its ticket
}

// SaturatedError says that no slot may be taken now. It is ErrPoolSaturated.
type SaturatedError struct {
	Sandboxes int           // that are meant and live
	Slots     int           // of them, as far as they may be taken under the options
	Used      int           // of those, by the latest word of the workers
	Waiting   int           // others of this hub that wait for them
	Waited    time.Duration // how long this one did
}

func (e *SaturatedError) Error() string {
	s := fmt.Sprintf("%v: %d of %d slots of %d sandboxes are taken", ErrPoolSaturated, e.Used, e.Slots, e.Sandboxes)
	if e.Waiting > 0 {
		s += fmt.Sprintf(", %d others wait", e.Waiting)
	}
	if e.Waited > 0 {
		s += fmt.Sprintf("; waited for %s", e.Waited.Round(time.Millisecond))
	}
	return s
}

// Is knows ErrPoolSaturated.
func (e *SaturatedError) Is(target error) bool { return target == ErrPoolSaturated }

// acquire gets a lease of one of the workers that are meant.
func (p *pool) acquire(ctx context.Context, o *AcquireOptions) (*Lease, error) {
	w := &waiter{
		o: o, key: fmt.Sprintf("%v|%d|%t", o.Selector, o.Max, o.Exclusive), begin: time.Now(), ticket: bus.NewOpID(), asked: map[place]bool{},
	}
	p.mu.Lock()
	p.queue = append(p.queue, w)
	p.stats.Acquires++
	p.mu.Unlock()
	defer p.dequeue(w)
	for first := true; ; first = false {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		l, turn, err := p.round(ctx, w)
		switch {
		case err == nil && !first:
			p.waited(time.Since(w.begin))
			return l, nil
		case !errors.Is(err, ErrPoolSaturated) && (first || ctx.Err() == nil):
			return l, err
		case first:
			p.full(w)
		}
		if !o.Wait {
			return nil, p.saturated(w, 0)
		}
		if !await(ctx, changed, turn, time.Since(w.begin)) {
			p.note(func(s *LeaseStats) { s.GaveUp++ })
			return nil, fmt.Errorf("%w: %w", p.saturated(w, time.Since(w.begin)), context.Cause(ctx))
		}
	}
}

// full notes that a call has found no slot free: if it waits, those who come later do not overtake it from now on.
func (p *pool) full(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Saturated++
	w.waiting = w.o.Wait
}

// await returns true when it is time to look again. Whose turn it is does so after a while: others than this hub's take
// and give slots too.
func await(ctx context.Context, changed <-chan struct{}, turn bool, waited time.Duration) bool {
	var again <-chan time.Time
	if ctx.Err() != nil {
		return false
	}
	if turn {
		t := time.NewTimer(pollAfter(waited))
		defer t.Stop()
		again = t.C
	}
	select {
	case <-changed:
		return true
	case <-again:
		return true
	case <-ctx.Done():
		return false
	}
}

// pollAfter is after how long a slot is asked for again: the longer somebody has waited the sooner, for the workers keep
// what is free for those who have waited longest. Part of it is chance, so that they do not ask all at once.
func pollAfter(waited time.Duration) time.Duration {
	d := max(20*time.Millisecond, time.Duration(float64(60*time.Millisecond)/(1+waited.Seconds())))
	return d/2 + rand.N(d) //nolint:gosec // G404: spreads load, hides nothing
}

func (p *pool) dequeue(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, v := range p.queue {
		if v == w {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			break
		}
	}
	for at := range w.asked {
		if p.life.Err() != nil {
			break
		}
		p.giveBackLocked(at, w.ticket) // else nobody gets what is kept for it there, for a second
	}
	p.wakeLocked()
}

// maxAsked is how many workers one round asks of which it is thought that they have no room: the same ones in each
// round, because they keep slots for those who wait.
const maxAsked = 8

// round asks workers until one grants a lease. turn says that w had one to ask that nobody waits for who came before.
// Errors: ErrNoSandbox, ErrPoolSaturated, a worker's refusal of the request itself, the context's cause.
func (p *pool) round(ctx context.Context, w *waiter) (l *Lease, turn bool, err error) {
	tried := map[place]bool{}
	over := 0 // asked although full
	for {
		c, full, err := p.choose(w, tried, over < maxAsked)
		if err != nil {
			return nil, len(tried) > 0, err
		}
		if full {
			over++
		}
		tried[c.place] = true
		l, err := p.ask(ctx, c, w)
		if l != nil || err != nil {
			return l, true, err
		}
	}
}

// choose takes the less loaded of two workers, chosen by chance among those that are thought to have room; beats are
// stale, and if all took the least loaded they would all come to the same one. When none is left it is one without room,
// as far as is known, if that may be. The caller must ask it. Errors: as round.
func (p *pool) choose(w *waiter, tried map[place]bool, orFull bool) (c *candidate, full bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.Err() != nil {
		return nil, false, bus.ErrClosed
	}
	before, blocked := p.beforeLocked(w)
	if blocked {
		return nil, false, ErrPoolSaturated
	}
	all, left := p.matchingLocked(w.o)
	if len(all) == 0 {
		return nil, false, fmt.Errorf("%w: %s", ErrNoSandbox, left)
	}
	var room, rest []*candidate
	for _, c := range all {
		switch {
		case tried[c.place] || int(c.Slots) == 0 || wanted(c, before):
		case c.full(w.o) || time.Now().Before(c.silentUntil):
			if len(w.asked) < maxAsked || w.asked[c.place] {
				rest = append(rest, c)
			}
		default:
			room = append(room, c)
		}
	}
	switch {
	case len(room) > 0:
		c = lessOfTwo(room, w.o)
	case len(rest) > 0 && orFull:
		c, full = rest[rand.N(len(rest))], true //nolint:gosec // likewise
	default:
		return nil, false, ErrPoolSaturated
	}
	c.asking++
	p.wg.Add(1)
	return c, full, nil
}

// lessOfTwo is the less loaded of two that are chosen by chance.
func lessOfTwo(room []*candidate, o *AcquireOptions) *candidate {
	i := rand.N(len(room)) //nolint:gosec // G404: spreads load, hides nothing
	if len(room) == 1 {
		return room[i]
	}
	j := rand.N(len(room) - 1) //nolint:gosec // likewise
	if j >= i {
		j++
	}
	if room[j].less(room[i], o) {
		return room[j]
	}
	return room[i]
}

// beforeLocked lists those who wait and came before w, one for each thing that is wanted. blocked says that one of them
// wants the same.
func (p *pool) beforeLocked(w *waiter) (before []*waiter, blocked bool) {
	seen := map[string]bool{}
	for _, v := range p.queue {
		switch {
		case v == w:
			return before, false
		case !v.waiting:
		case v.key == w.key:
			return nil, true
		case !seen[v.key]:
			seen[v.key] = true
			before = append(before, v)
		}
	}
	return before, false
}

func wanted(c *candidate, by []*waiter) bool {
	for _, v := range by {
		if v.o.Matches(c.SandboxInfo) {
			return true
		}
	}
	return false
}

// saturated says how full the workers are that w may lease.
func (p *pool) saturated(w *waiter, waited time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, _ := p.matchingLocked(w.o)
	e := &SaturatedError{Sandboxes: len(all), Waited: waited}
	for _, c := range all {
		e.Slots += c.bound(w.o)
		e.Used += min(c.taken(), c.bound(w.o))
	}
	for _, v := range p.queue {
		if v != w && v.waiting {
			e.Waiting++
		}
	}
	return e
}

// askLimit is how long a worker may take to answer. One that is gone, and that presence still knows, says nothing.
const askLimit = 5 * time.Second

// errAskLimit is the cause with which a question to a worker ends.
var errAskLimit = fmt.Errorf("no answer to lease.acquire within %s", askLimit)

// ask asks one worker. Neither lease nor error means that it has no room, or does not answer.
func (p *pool) ask(ctx context.Context, c *candidate, w *waiter) (*Lease, error) {
	defer p.wg.Done()
	limit, cancel := context.WithTimeoutCause(ctx, askLimit, errAskLimit)
	defer cancel()
	limit, stop := context.WithCancelCause(limit)
	defer stop(nil)
	defer context.AfterFunc(p.life, func() { stop(bus.ErrClosed) })()
	op := bus.NewOpID()
	asked := time.Now()
	req := &sandbusv1.LeaseAcquireRequest{TtlMs: w.o.TTL.Milliseconds(), Exclusive: w.o.Exclusive, Cap: int32(w.o.Max)}
	if w.o.Wait {
		req.Ticket, req.WaitedMs = string(w.ticket), min(asked.Sub(w.begin), maxWaited).Milliseconds()
	}
	resp, err := p.desk.acquire(limit, c.place, op, req)
	if err == nil && (resp.GetLease() == "" || resp.GetTtlMs() < minTTL.Milliseconds() || resp.GetTtlMs() > maxTTL.Milliseconds()) {
		err = fmt.Errorf("sandbox %s granted lease %.63q with a TTL of %d ms: want a name and 1,000 to 3,600,000", c.place.sandbox, resp.GetLease(), resp.GetTtlMs())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.asking--
	if req.GetTicket() != "" {
		w.asked[c.place] = true
	}
	if err == nil {
		delete(w.asked, c.place) // a ticket ends with its grant
		c.said(int(resp.GetUsed()))
		if p.life.Err() != nil {
			p.giveBackLocked(c.place, op)
			return nil, bus.ErrClosed
		}
		c.held++
		l := newLease(p.desk, c.place, asked, resp, p.ended)
		p.leases[l] = struct{}{}
		p.stats.Granted++
		return l, nil
	}
	return nil, p.refusedLocked(ctx, c, op, resp, err)
}

// refusedLocked takes note of why there is no lease. It returns what ends the search.
func (p *pool) refusedLocked(ctx context.Context, c *candidate, op bus.OpID, resp *sandbusv1.LeaseAcquireResponse, err error) error {
	be, said := errors.AsType[*bus.Error](err)
	switch {
	case said && be.Code == sandbusv1.Code_CODE_BUSY:
		p.stats.Refused++
		if n := resp.GetSlots(); n > 0 { // else it was too busy to look
			c.Slots = n
			c.said(int(resp.GetUsed()))
		}
	case said && be.Code == sandbusv1.Code_CODE_DRAINING:
		c.Draining = true
	case said:
		return fmt.Errorf("lease of sandbox %s: %w", c.place.sandbox, err)
	case errors.Is(err, bus.ErrNoResponders):
		c.silent()
	case ctx.Err() != nil:
		p.giveBackLocked(c.place, op)
		return context.Cause(ctx)
	case errors.Is(err, bus.ErrClosed):
		p.giveBackLocked(c.place, op)
		return bus.ErrClosed
	default: // nobody knows whether it has granted one
		c.silent()
		p.giveBackLocked(c.place, op)
	}
	return nil
}

// giveBackLocked has a worker end what it has granted under an op, if it has; nobody waits for that.
func (p *pool) giveBackLocked(at place, op bus.OpID) {
	p.wg.Go(func() {
		limit, cancel := context.WithTimeout(context.Background(), releaseLimit)
		defer cancel()
		_ = p.desk.release(limit, at, "", op) // else it ends after its TTL
	})
}

// ended is told of each lease's end.
func (p *pool) ended(l *Lease, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.leases[l]; !ok {
		return
	}
	delete(p.leases, l)
	switch {
	case errors.Is(why, ErrReleased):
		p.stats.Released++
	case errors.Is(why, ErrGone):
		p.stats.Gone++
	case errors.Is(why, ErrFenced):
		p.stats.Fenced++
	case errors.Is(why, ErrQuarantined):
		p.stats.Quarantined++
	}
	if c := p.candidates[string(l.place.zone)+"."+string(l.place.sandbox)]; c != nil && c.place == l.place {
		c.held = max(0, c.held-1)
		c.known = max(0, c.known-1)
	}
	p.wakeLocked()
}

// quarantine has an instance not be asked any more.
func (p *pool) quarantine(at place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quarantined[at] = true
}

// close ends all leases with bus.ErrClosed, and tells the workers, for a while.
func (p *pool) close() {
	p.mu.Lock()
	p.end(bus.ErrClosed)
	leases := p.leases
	p.leases = map[*Lease]struct{}{}
	p.wakeLocked()
	p.mu.Unlock()
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for l := range leases {
		wg.Go(func() {
			l.finish(bus.ErrClosed, "")
			<-l.kept
			_ = p.desk.release(limit, l.place, l.id, "") // else it ends after its TTL
		})
	}
	wg.Wait()
	p.wg.Wait()
}
