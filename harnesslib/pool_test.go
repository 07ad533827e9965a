package harnesslib

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
)

func TestSaturatedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		for range 5 {
			lease(t, p, AcquireOptions{})
		}
		_, err := p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, ErrPoolSaturated)
		se, ok := errors.AsType[*SaturatedError](err)
		require.True(t, ok)
		require.Equal(t, SaturatedError{Sandboxes: 2, Slots: 5, Used: 5}, *se)
		_, err = p.acquire(t.Context(), &AcquireOptions{Selector: Selector{ID: []string{"box1"}}, Max: 1})
		require.ErrorContains(t, err, "1 of 1 slots of 1 sandboxes")
		s := p.snapshot()
		require.EqualValues(t, 7, s.Acquires)
		require.EqualValues(t, 5, s.Granted)
		require.EqualValues(t, 2, s.Saturated)
		require.InDelta(t, 2.0/7, s.SaturatedShare(), 1e-9)
		require.Equal(t, 5, s.Held)
	}, 2, 3)
}

func TestNoSandbox(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		for _, wait := range []bool{false, true} {
			_, err := p.acquire(t.Context(), &AcquireOptions{Selector: Selector{Labels: map[string]string{"team": "x"}}, Wait: wait})
			require.ErrorIs(t, err, ErrNoSandbox)
			require.NotErrorIs(t, err, ErrPoolSaturated)
			require.ErrorContains(t, err, "none is live that matches")
		}
		all := d.presence()
		for i := range all {
			all[i].Draining = all[i].Sandbox == "box0"
			if all[i].Sandbox == "box1" {
				all[i].Features = nil
			}
		}
		d.beat(p, all)
		p.quarantine(place{"main", "box2", "inst-box2"})
		_, err := p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, ErrNoSandbox)
		require.ErrorContains(t, err, "1 without leases, 1 draining, 1 quarantined")
		require.Empty(t, d.asked)
	}, 1, 1, 1)
}

// TestRequirementsOfALease holds that a lease is of a sandbox that is what was required, however loaded the others are.
func TestRequirementsOfALease(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		all := d.presence()
		for i := range all {
			all[i].Commands, all[i].Files = &bus.Privileges{UID: 1000, NoNewPrivs: true}, &bus.Privileges{UID: 1000, NoNewPrivs: true}
			if all[i].Sandbox == "box0" {
				all[i].Commands = &bus.Privileges{UID: 0}
			}
		}
		d.beat(p, all)
		plain := AcquireOptions{Requirements: Requirements{RequireUnprivileged: true}}
		for range 2 {
			require.Equal(t, bus.SandboxID("box1"), lease(t, p, plain).place.sandbox)
		}
		_, err := p.acquire(t.Context(), &plain)
		require.ErrorIs(t, err, ErrPoolSaturated, "the other one has room, and is not what was required")
		_, err = p.acquire(t.Context(), &AcquireOptions{Requirements: Requirements{RequireTrust: "trusted"}})
		require.ErrorIs(t, err, ErrNoSandbox)
		require.ErrorContains(t, err, "2 not what was required")
		require.ErrorContains(t, (&AcquireOptions{Requirements: Requirements{RequireTrust: "much"}}).check(), `"much"`)
	}, 5, 2)
}

// TestQuarantine holds that an instance stays out, also when presence lost sight of it, and its successor does not.
func TestQuarantine(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{})
		p.quarantine(l.place)
		l.finish(ErrQuarantined, "")
		require.EqualValues(t, 1, p.snapshot().Quarantined)
		_, err := p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, ErrNoSandbox)
		d.beat(p, nil)
		d.beat(p, d.presence())
		_, err = p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, ErrNoSandbox)
		next := d.presence()
		next[0].Instance = "next"
		d.beat(p, next)
		require.Equal(t, bus.InstanceID("next"), lease(t, p, AcquireOptions{}).place.instance)
	}, 5)
}

// TestTheNextCandidate has workers that are full, away and silent: they do not end the search.
func TestTheNextCandidate(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		stale := d.presence()
		d.worker("box0", func(w *fakeWorker) { w.slots = 0 })
		d.worker("box1", func(w *fakeWorker) { w.away = true })
		d.worker("box2", func(w *fakeWorker) { w.hangs = true })
		for range 20 {
			d.beat(p, stale)
			l := lease(t, p, AcquireOptions{})
			require.Equal(t, bus.SandboxID("box3"), l.place.sandbox)
			require.NoError(t, l.Release(t.Context()))
		}
	}, 1, 1, 1, 1)
}

// TestLessLoadedOfTwo: of two workers it is always the less loaded one.
func TestLessLoadedOfTwo(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		for range 200 {
			lease(t, p, AcquireOptions{})
		}
		a, b := len(d.workers["box0"].held), len(d.workers["box1"].held)
		require.Equal(t, 200, a+b)
		require.Equal(t, a, b)
		require.Len(t, d.asked, 200, "nobody was asked in vain")
	}, 1000, 1000)
}

// TestStaleBeats has presence say for ever that all is free: our own count says better.
func TestStaleBeats(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		stale := d.presence()
		for range 8 {
			lease(t, p, AcquireOptions{})
			pass(wordFor) // the workers' own word is old by then
			d.beat(p, stale)
		}
		require.Len(t, d.asked, 8)
	}, 4, 4)
}

func TestMaxIsACap(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		for range 4 {
			lease(t, p, AcquireOptions{Max: 2})
		}
		_, err := p.acquire(t.Context(), &AcquireOptions{Max: 2})
		require.ErrorContains(t, err, "4 of 4 slots of 2")
		for _, w := range d.workers {
			require.Equal(t, 2, w.most)
		}
		lease(t, p, AcquireOptions{}) // the worker's own slots
	}, 3, 3)
}

// TestInTheOrderOfArrival has many wait for one slot.
func TestInTheOrderOfArrival(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		holder := lease(t, p, AcquireOptions{})
		var mu sync.Mutex // guards order
		var order []int
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				l, err := p.acquire(t.Context(), &AcquireOptions{Wait: true})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(100 * time.Millisecond) //nolint:forbidigo // synctest's own clock
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		_, err := p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, ErrPoolSaturated)
		require.ErrorContains(t, err, "30 others wait")
		pass(time.Second)
		require.NoError(t, holder.Release(t.Context()))
		_, err = p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, ErrPoolSaturated, "who does not wait overtakes nobody")
		wg.Wait()
		for i, got := range order {
			require.Equal(t, i, got, "%v", order)
		}
		s := p.snapshot()
		require.EqualValues(t, 30, s.Waited)
		require.Greater(t, s.MaxWait, 3*time.Second)
		require.Greater(t, s.WaitTime, s.MaxWait)
		require.Zero(t, s.Waiting)
		require.Equal(t, 1, d.workers["box0"].most)
	}, 1)
}

// TestWhoWaitsForOtherSandboxes is not held up by somebody who came before.
func TestWhoWaitsForOtherSandboxes(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		on := func(ids ...string) AcquireOptions { return AcquireOptions{Selector: Selector{ID: ids}, Wait: true} }
		lease(t, p, on("box0"))
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			o := on("box0")
			_, err := p.acquire(ctx, &o)
			ended <- err
		}()
		synctest.Wait()
		free := lease(t, p, on("box1"))
		require.NoError(t, free.Release(t.Context()))
		l := lease(t, p, on("box0", "box1"))
		require.Equal(t, bus.SandboxID("box1"), l.place.sandbox)
		why := errors.New("had enough")
		cancel(why)
		err := <-ended
		require.ErrorIs(t, err, why)
		require.ErrorIs(t, err, ErrPoolSaturated)
		require.EqualValues(t, 1, p.snapshot().GaveUp)
	}, 1, 1)
}

// TestAnExclusiveOneIsNotStarved waits for a sandbox that others of this hub use without a pause.
func TestAnExclusiveOneIsNotStarved(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					l, err := p.acquire(t.Context(), &AcquireOptions{Wait: true})
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(300+i*70) * time.Millisecond) //nolint:forbidigo // synctest's own clock
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		pass(time.Second)
		begin := time.Now()
		l := lease(t, p, AcquireOptions{Exclusive: true, Wait: true})
		require.Less(t, time.Since(begin), time.Second)
		d.worker("box0", func(w *fakeWorker) { require.Len(t, w.held, 1) })
		require.NoError(t, l.Release(t.Context()))
		close(stop)
		wg.Wait()
	}, 3)
}

// TestSeveralPools has four processes fight for four slots, without the help of the workers' tickets: none is over the
// cap, and all come to their end.
func TestSeveralPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDesk(1, 1, 1, 1)
		var leases atomic.Int32
		var wg sync.WaitGroup
		var pools []*pool
		for range 4 {
			p := newPool(d)
			d.beat(p, d.presence())
			pools = append(pools, p)
			for range 5 {
				wg.Go(func() {
					for range 20 {
						l, err := p.acquire(t.Context(), &AcquireOptions{Wait: true})
						if err != nil {
							t.Error(err)
							return
						}
						leases.Add(1)
						time.Sleep(200 * time.Millisecond) //nolint:forbidigo // synctest's own clock
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, 400, leases.Load())
		for _, w := range d.workers {
			require.Equal(t, 1, w.most)
			require.Empty(t, w.held)
		}
		for _, p := range pools {
			p.close()
		}
	})
}
