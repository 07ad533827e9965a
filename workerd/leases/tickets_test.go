package leases

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhoHasWaitedLongerGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, 1)
		first := acquire(t, table, "h")
		ask := func(holder, ticket string, waited time.Duration) error {
			_, err := table.Acquire(Request{Holder: holder, Ticket: ticket, Waited: waited})
			return err
		}
		require.ErrorIs(t, ask("a", "t", 2*time.Second), ErrBusy)
		require.ErrorIs(t, ask("b", "t", 3*time.Second), ErrBusy)
		require.NoError(t, table.Release(first.ID, "h"))
		require.ErrorIs(t, ask("h", "", 0), ErrBusy, "who releases does not have it again first")
		require.ErrorIs(t, ask("c", "t", time.Second), ErrBusy)
		require.ErrorIs(t, ask("a", "t", 2*time.Second), ErrBusy)
		require.ErrorContains(t, ask("a", "t", 2*time.Second), "0 of 1 are taken and 1 are for those")
		require.NoError(t, ask("b", "t", 3*time.Second))
		table.ReleaseOp("nothing", "b")
		require.NoError(t, table.Release(table.only().ID, "b"))
		table.ReleaseOp("t", "a") // has had enough
		require.NoError(t, ask("c", "t", time.Second))
		require.Empty(t, table.queue)
	})
}

// only is the one lease that there is.
func (t *Table) only() *Lease {
	for _, l := range t.live {
		return l
	}
	return nil
}

func TestATicketIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, 1)
		l := acquire(t, table, "h")
		_, err := table.Acquire(Request{Holder: "dead", Ticket: "t", Waited: time.Hour})
		require.ErrorIs(t, err, ErrBusy)
		require.NoError(t, table.Release(l.ID, "h"))
		time.Sleep(ticketFor - 1) //nolint:forbidigo // synctest's own clock
		_, err = table.Acquire(Request{Holder: "h"})
		require.ErrorIs(t, err, ErrBusy)
		time.Sleep(time.Nanosecond) //nolint:forbidigo // synctest's own clock
		acquire(t, table, "h")
		require.Empty(t, table.queue)
	})
}

// TestAnExclusiveTicketDrains keeps all slots for who wants all.
func TestAnExclusiveTicketDrains(t *testing.T) {
	table, _ := newTable(t, 3)
	a := acquire(t, table, "h")
	all := Request{Holder: "x", Ticket: "t", Exclusive: true, Waited: time.Second}
	_, err := table.Acquire(all)
	require.ErrorIs(t, err, ErrBusy)
	_, err = table.Acquire(Request{Holder: "h"})
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, table.Release(a.ID, "h"))
	_, err = table.Acquire(all)
	require.NoError(t, err)
}

func TestTicketsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // they would be forgotten meanwhile
		table, _ := newTable(t, 1)
		acquire(t, table, "h")
		for i := range maxTickets + 10 {
			_, err := table.Acquire(Request{Holder: "h", Ticket: fmt.Sprint(i)})
			require.ErrorIs(t, err, ErrBusy)
		}
		require.Equal(t, maxTickets, len(table.queue)) // Len would print all of them
		_, err := table.Acquire(Request{Holder: "h", Ticket: "t", Waited: MaxWaited + 1})
		require.ErrorContains(t, err, "168h0m0s")
		_, err = table.Acquire(Request{Holder: "h", Ticket: "t", Waited: -1})
		require.Error(t, err)
	})
}
