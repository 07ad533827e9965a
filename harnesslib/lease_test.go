package harnesslib

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
)

// inBubble runs a test with its own clock and a pool of fake workers with slots.
func inBubble(t *testing.T, test func(t *testing.T, d *fakeDesk, p *pool), slots ...int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDesk(slots...)
		p := newPool(d)
		d.beat(p, d.presence())
		defer p.close()
		test(t, d, p)
	})
}

func lease(t *testing.T, p *pool, o AcquireOptions) *Lease {
	t.Helper()
	l, err := p.acquire(t.Context(), &o)
	require.NoError(t, err)
	return l
}

func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // synctest's own clock
	synctest.Wait()
}

func TestRenewedAtAThird(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		begin := time.Now()
		l := lease(t, p, AcquireOptions{TTL: 30 * time.Second})
		pass(25 * time.Second)
		renewed := d.renewals()
		require.Len(t, renewed, 2)
		require.Equal(t, 10*time.Second, renewed[0].Sub(begin))
		require.Equal(t, 20*time.Second, renewed[1].Sub(begin))
		l.extend(time.Now()) // a request of the holder
		pass(9 * time.Second)
		require.Len(t, d.renewals(), 2, "use renews too")
		pass(time.Hour)
		require.NoError(t, l.Cause())
	}, 1)
}

func TestNotUsedPastItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{TTL: 10 * time.Second})
		d.worker("box0", func(w *fakeWorker) { w.hangs = true })
		pass(9*time.Second - 1)
		require.NoError(t, l.usable())
		pass(1)
		require.ErrorIs(t, l.usable(), ErrFenced)
		require.ErrorContains(t, l.Cause(), "no answer to a renewal")
		select {
		case <-l.Lost():
		default:
			require.Fail(t, "the holder is not told")
		}
		require.EqualValues(t, 1, p.snapshot().Fenced)
	}, 1)
}

// TestLateTimer asks whether a lease may be used at a moment at which its time is over and nobody has looked yet.
func TestLateTimer(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{TTL: 10 * time.Second})
		l.mu.Lock()
		l.heard = l.heard.Add(-10 * time.Second)
		l.mu.Unlock()
		require.ErrorIs(t, l.usable(), ErrFenced)
	}, 1)
}

func TestATroubledRenewalIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{TTL: 12 * time.Second})
		d.worker("box0", func(w *fakeWorker) { w.fault = bus.ErrPublish })
		pass(10 * time.Second)
		require.NoError(t, l.Cause())
		d.worker("box0", func(w *fakeWorker) { w.fault = nil })
		pass(time.Hour)
		require.NoError(t, l.Cause())
	}, 1)
}

func TestFencedByTheWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{TTL: 30 * time.Second})
		d.worker("box0", func(w *fakeWorker) { clear(w.held) })
		pass(10 * time.Second)
		require.ErrorIs(t, l.Cause(), ErrFenced)
		require.ErrorContains(t, l.Cause(), "no such lease")
		le, ok := errors.AsType[*LeaseError](l.Cause())
		require.True(t, ok)
		require.Equal(t, "box0", le.Sandbox)
		require.ErrorIs(t, l.Release(t.Context()), ErrFenced, "Release says that it was lost before")
	}, 1)
}

func TestGone(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{TTL: 30 * time.Second})
		d.worker("box0", func(w *fakeWorker) { w.away = true })
		pass(10*time.Second + confirmLimit - 1)
		require.NoError(t, l.Cause(), "the word of the hub is confirmed: the worker may be on its way to another server")
		pass(confirmLimit)
		require.ErrorIs(t, l.Cause(), ErrGone)
		require.EqualValues(t, 1, p.snapshot().Gone)
	}, 1)
}

func TestGoneByPresence(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		stays := lease(t, p, AcquireOptions{})
		d.beat(p, nil) // a registrar's error: the worker answers
		pass(time.Second)
		require.NoError(t, stays.Cause())
		d.beat(p, d.presence())
		d.worker("box0", func(w *fakeWorker) { w.away = true })
		d.beat(p, nil)
		pass(confirmFirst)
		require.ErrorIs(t, stays.Cause(), ErrGone)

		d.worker("box0", func(w *fakeWorker) { w.away = false; clear(w.held) })
		d.beat(p, d.presence())
		l := lease(t, p, AcquireOptions{})
		d.worker("box0", func(w *fakeWorker) { w.hangs = true })
		d.beat(p, nil)
		pass(confirmFirst + confirmAnswer)
		require.ErrorIs(t, l.Cause(), ErrGone, "neither presence nor an answer")
	}, 1)
}

func TestANewInstanceIsAnotherWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{})
		d.worker("box0", func(w *fakeWorker) { w.away = true })
		next := d.presence()
		next[0].Instance = "next"
		d.beat(p, next)
		pass(confirmFirst)
		require.ErrorIs(t, l.Cause(), ErrGone)
	}, 1)
}

func TestRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the caller has given up"))
		require.NoError(t, l.Release(ctx), "cleanup is done all the same")
		require.NoError(t, l.Release(ctx), "once more")
		require.ErrorIs(t, l.Cause(), ErrReleased)
		require.ErrorIs(t, l.usable(), ErrReleased)
		d.worker("box0", func(w *fakeWorker) { require.Empty(t, w.held) })

		l = lease(t, p, AcquireOptions{})
		d.worker("box0", func(w *fakeWorker) { w.hangs = true })
		require.ErrorContains(t, l.Release(t.Context()), "its slot is free after 1m0s")
		s := p.snapshot()
		require.EqualValues(t, 2, s.Released)
		require.Zero(t, s.Held)
	}, 1)
}

// TestAGrantThatNobodyHeardOf loses the answer to a grant: the slot must not stay taken.
func TestAGrantThatNobodyHeardOf(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		d.worker("box0", func(w *fakeWorker) { w.mute = true })
		why := errors.New("the caller has given up")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		_, err := p.acquire(ctx, &AcquireOptions{})
		require.ErrorIs(t, err, why)
		synctest.Wait()
		d.worker("box0", func(w *fakeWorker) { require.Empty(t, w.held); require.Equal(t, 1, w.most) })
		_, err = p.acquire(t.Context(), &AcquireOptions{}) // nobody gives up: the worker has its time
		require.ErrorIs(t, err, ErrPoolSaturated)
		synctest.Wait()
		d.worker("box0", func(w *fakeWorker) { require.Empty(t, w.held) })
	}, 2)
}

// TestAGrantThatIsNone has a worker grant leases that no worker may grant.
func TestAGrantThatIsNone(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		_, err := p.acquire(t.Context(), &AcquireOptions{TTL: time.Millisecond}) // check lets nobody ask for that
		require.ErrorIs(t, err, ErrPoolSaturated)
		synctest.Wait()
		d.worker("box0", func(w *fakeWorker) { require.Empty(t, w.held); require.Equal(t, 1, w.most) })
	}, 1)
}

func TestOptionsOutOfBounds(t *testing.T) {
	for want, o := range map[string]AcquireOptions{
		"1h0m0s":  {TTL: maxTTL + 1},
		"1s":      {TTL: -time.Second},
		"65535":   {Max: maxSlots + 1},
		"max -1":  {Max: -1},
		"trusted": {Selector: Selector{Trust: "perhaps"}},
	} {
		require.ErrorContains(t, o.check(), want)
	}
	for _, o := range []AcquireOptions{{}, {TTL: minTTL}, {TTL: maxTTL, Max: maxSlots}} {
		require.NoError(t, o.check())
	}
}

func TestTheHubIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, d *fakeDesk, p *pool) {
		l := lease(t, p, AcquireOptions{})
		waiting := make(chan error, 1)
		go func() {
			_, err := p.acquire(t.Context(), &AcquireOptions{Wait: true})
			waiting <- err
		}()
		synctest.Wait()
		p.close()
		require.ErrorIs(t, l.Cause(), bus.ErrClosed)
		require.ErrorIs(t, <-waiting, bus.ErrClosed)
		d.worker("box0", func(w *fakeWorker) { require.Empty(t, w.held, "the workers are told") })
		_, err := p.acquire(t.Context(), &AcquireOptions{})
		require.ErrorIs(t, err, bus.ErrClosed)
	}, 1)
}
