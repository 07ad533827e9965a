package leases

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// record keeps what a table tells.
type record struct {
	mu    sync.Mutex // guards the fields below
	ended []uint64
	left  []string
}

func (r *record) all() (ended []uint64, left []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint64{}, r.ended...), append([]string{}, r.left...)
}

func newTable(t *testing.T, slots int) (*Table, *record) {
	t.Helper()
	r := &record{}
	table, err := NewTable(Config{
		Slots: slots,
		Ended: func(l *Lease) { r.mu.Lock(); r.ended = append(r.ended, l.Epoch); r.mu.Unlock() },
		Left:  func(h string) { r.mu.Lock(); r.left = append(r.left, h); r.mu.Unlock() },
	})
	require.NoError(t, err)
	t.Cleanup(table.Close)
	return table, r
}

func acquire(t *testing.T, table *Table, holder string) *Lease {
	t.Helper()
	l, err := table.Acquire(Request{Holder: holder})
	require.NoError(t, err)
	return l
}

func TestNoMoreThanTheSlots(t *testing.T) {
	table, _ := newTable(t, 2)
	a, b := acquire(t, table, "h"), acquire(t, table, "h")
	require.Less(t, a.Epoch, b.Epoch)
	require.NotEqual(t, a.ID, b.ID)
	_, err := table.Acquire(Request{Holder: "h"})
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "2 of 2")
	require.NoError(t, table.Release(a.ID, "h"))
	require.Equal(t, 1, table.Used())
	c := acquire(t, table, "h")
	require.Greater(t, c.Epoch, b.Epoch, "a grant is newer than all before it")
	require.Equal(t, 2, table.Used())
}

func TestCapAndExclusive(t *testing.T) {
	table, _ := newTable(t, 4)
	one := func(c int) error {
		_, err := table.Acquire(Request{Holder: "h", Cap: c})
		return err
	}
	require.NoError(t, one(2))
	require.NoError(t, one(2))
	require.ErrorIs(t, one(2), ErrBusy)
	require.ErrorContains(t, one(2), "cap of 2")
	require.NoError(t, one(100), "a cap above the slots is the slots")
	_, err := table.Acquire(Request{Holder: "h", Exclusive: true})
	require.ErrorIs(t, err, ErrBusy, "others have slots")

	table, _ = newTable(t, 4)
	l, err := table.Acquire(Request{Holder: "h", Exclusive: true})
	require.NoError(t, err)
	require.Equal(t, 4, table.Used())
	_, err = table.Acquire(Request{Holder: "h"})
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, table.Release(l.ID, "h"))
	require.Zero(t, table.Used())
}

func TestTheBounds(t *testing.T) {
	table, _ := newTable(t, 1)
	for _, r := range []Request{{TTL: -1}, {TTL: MinTTL - 1}, {TTL: MaxTTL + 1}, {Cap: -1}, {Cap: MaxSlots + 1}} {
		_, err := table.Acquire(r)
		var re *RangeError
		require.ErrorAs(t, err, &re, "%+v", r)
		require.ErrorContains(t, err, fmt.Sprint(re.Max))
	}
	require.Zero(t, table.Used())
	for _, c := range []Config{{Slots: -1}, {Slots: MaxSlots + 1}, {Keep: -1}} {
		_, err := NewTable(c)
		require.Error(t, err, "%+v", c)
	}
}

func TestUseRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, told := newTable(t, 1)
		l, err := table.Acquire(Request{Holder: "h", TTL: 10 * time.Second})
		require.NoError(t, err)
		for range 5 {
			time.Sleep(9 * time.Second) //nolint:forbidigo // synctest's own clock
			_, err := table.Use(l.ID, "h")
			require.NoError(t, err)
		}
		require.NoError(t, l.Life().Err())
		time.Sleep(10*time.Second - 1) //nolint:forbidigo // synctest's own clock
		synctest.Wait()
		require.NoError(t, l.Life().Err(), "not a moment before its time")
		time.Sleep(time.Nanosecond) //nolint:forbidigo // synctest's own clock
		synctest.Wait()
		require.ErrorIs(t, context.Cause(l.Life()), ErrExpired)
		require.Zero(t, table.Used())
		_, err = table.Use(l.ID, "h")
		require.ErrorIs(t, err, ErrExpired)
		ended, _ := told.all()
		require.Equal(t, []uint64{1}, ended)
	})
}

// TestTheTimeCountsNotTheTimer looks at the moment at which the time is over and the timer may not have run.
func TestTheTimeCountsNotTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, 1)
		l := acquire(t, table, "h")
		l.timer.Stop()
		time.Sleep(DefaultTTL) //nolint:forbidigo // synctest's own clock
		require.Empty(t, table.List())
		next := acquire(t, table, "h2")
		require.Greater(t, next.Epoch, l.Epoch)
		_, err := table.Use(l.ID, "h")
		require.ErrorIs(t, err, ErrExpired)
		next.timer.Stop()
		time.Sleep(DefaultTTL) //nolint:forbidigo // synctest's own clock
		_, err = table.Use(next.ID, "h2")
		require.ErrorIs(t, err, ErrExpired)
		require.Zero(t, table.Used())
	})
}

func TestWhoMayUseALease(t *testing.T) {
	table, _ := newTable(t, 2)
	l := acquire(t, table, "h")
	_, err := table.Use(l.ID, "other")
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorIs(t, table.Release(l.ID, "other"), ErrForeign)
	_, err = table.Use("nonsense", "h")
	require.ErrorIs(t, err, ErrUnknown)
	require.NoError(t, table.Release(l.ID, "h"))
	_, err = table.Use(l.ID, "h")
	require.ErrorIs(t, err, ErrReleased)
	require.ErrorIs(t, context.Cause(l.Life()), ErrReleased)
	_, err = table.Use(l.ID, "other")
	require.ErrorIs(t, err, ErrForeign, "what ended is not for others to know either")
	require.ErrorIs(t, table.Release(l.ID, "h"), ErrReleased)
}

func TestTheSameOpGetsTheSameLease(t *testing.T) {
	table, _ := newTable(t, 2)
	a, err := table.Acquire(Request{Holder: "h", Op: "op"})
	require.NoError(t, err)
	b, err := table.Acquire(Request{Holder: "h", Op: "op"})
	require.NoError(t, err)
	require.Same(t, a, b)
	c, err := table.Acquire(Request{Holder: "other", Op: "op"})
	require.NoError(t, err)
	require.NotSame(t, a, c)
	table.ReleaseOp("op", "nobody")
	require.Equal(t, 2, table.Used())
	table.ReleaseOp("op", "h")
	require.ErrorIs(t, context.Cause(a.Life()), ErrReleased)
	require.NoError(t, c.Life().Err())
	require.Equal(t, 1, table.Used())
}

// TestLeft sees who is told that a holder has not come back, and that one who has is not taken for gone.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, told := newTable(t, 3)
		a, b := acquire(t, table, "h"), acquire(t, table, "h")
		require.NoError(t, table.Release(a.ID, "h"))
		time.Sleep(50 * time.Second)          //nolint:forbidigo // synctest's own clock
		_, _ = table.Use(b.ID, "h")           // a renewal; found to be live below
		time.Sleep(50 * time.Second)          //nolint:forbidigo // synctest's own clock
		require.Equal(t, 1, table.Used())     // its second lease
		time.Sleep(10*time.Second + 1)        //nolint:forbidigo // synctest's own clock
		time.Sleep(DefaultKeep - time.Minute) //nolint:forbidigo // synctest's own clock
		c := acquire(t, table, "h")           // back in time
		time.Sleep(30 * time.Second)          //nolint:forbidigo // synctest's own clock
		require.NoError(t, table.Release(c.ID, "h"))
		time.Sleep(DefaultKeep - 1) //nolint:forbidigo // synctest's own clock
		synctest.Wait()
		_, left := told.all()
		require.Empty(t, left)
		time.Sleep(time.Nanosecond) //nolint:forbidigo // synctest's own clock
		synctest.Wait()
		_, left = told.all()
		require.Equal(t, []string{"h"}, left)
		time.Sleep(2 * DefaultKeep) //nolint:forbidigo // synctest's own clock
		_, left = told.all()
		require.Len(t, left, 1)
		acquire(t, table, "h2")
		table.Close()
		time.Sleep(2 * DefaultKeep) //nolint:forbidigo // synctest's own clock
		_, left = told.all()
		require.Len(t, left, 1, "not at the worker's end")
	})
}

func TestClose(t *testing.T) {
	table, told := newTable(t, 3)
	a := acquire(t, table, "h")
	acquire(t, table, "h")
	table.Close()
	require.ErrorIs(t, context.Cause(a.Life()), ErrClosed)
	ended, _ := told.all()
	require.ElementsMatch(t, []uint64{1, 2}, ended)
	_, err := table.Acquire(Request{Holder: "h"})
	require.ErrorIs(t, err, ErrClosed)
	_, err = table.Use(a.ID, "h")
	require.ErrorIs(t, err, ErrClosed)
	require.Zero(t, table.Used())
	table.Close()
}

func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, 2)
		acquire(t, table, "a")
		time.Sleep(10 * time.Second) //nolint:forbidigo // synctest's own clock
		acquire(t, table, "b")
		require.Equal(t, []Info{
			{Epoch: 1, Holder: "a", Age: 10 * time.Second, Left: 50 * time.Second, TTL: time.Minute},
			{Epoch: 2, Holder: "b", Left: time.Minute, TTL: time.Minute},
		}, table.List())
	})
}

// TestManyAtOnce has many holders fight for few slots, and counts.
func TestManyAtOnce(t *testing.T) {
	const slots = 5
	table, _ := newTable(t, slots)
	var held atomic.Int32
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			holder := fmt.Sprint("h", i)
			for range 200 {
				l, err := table.Acquire(Request{Holder: holder})
				if err != nil {
					continue
				}
				if n := held.Add(1); n > slots {
					t.Errorf("%d hold a lease at once, there are %d slots", n, slots)
				}
				runtime.Gosched()
				held.Add(-1)
				if err := table.Release(l.ID, holder); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, table.Used())
	require.Empty(t, table.List())
}
