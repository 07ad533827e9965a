package pace

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func rng() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// drive runs a schedule against a system whose every answer takes a while, and returns when each operation counts from
// and when it was asked, both relative to the start.
func drive(t *testing.T, plan Plan, takes time.Duration) (from, asked []time.Duration, missed int) {
	t.Helper()
	plan.Start = time.Now()
	plan.End = plan.Start.Add(time.Second)
	p := New(plan, rng())
	for {
		f, ok := p.Next(t.Context())
		if !ok {
			return from, asked, p.Missed()
		}
		require.Zero(t, p.Late(), "the clock of the bubble is exact")
		from = append(from, f.Sub(plan.Start))
		asked = append(asked, time.Since(plan.Start))
		time.Sleep(takes) //nolint:forbidigo // in the bubble: the system under test
	}
}

func TestClosedLoopWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, asked, missed := drive(t, Plan{}, 100*time.Millisecond)
		require.Len(t, from, 10)
		require.Equal(t, asked, from, "a closed loop counts from when it asks")
		require.Zero(t, missed)
	})
}

func TestClosedLoopThinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, asked, _ := drive(t, Plan{Think: 9 * time.Millisecond}, time.Millisecond)
		require.Equal(t, asked, from)
		require.InDelta(t, 100, len(from), 30, "1 ms of work and 9 ms of thought, for 1 s")
		again, _, _ := drive(t, Plan{Think: 9 * time.Millisecond}, time.Millisecond)
		require.Equal(t, from, again, "the same seed is the same schedule")
	})
}

func TestOpenLoopCountsFromWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle, asked, missed := drive(t, Plan{Rate: 100}, 0)
		require.Equal(t, asked, idle, "a system that answers at once is asked when it is due")
		require.InDelta(t, 100, len(idle), 30)
		require.Zero(t, missed)

		from, asked, missed := drive(t, Plan{Rate: 100}, 100*time.Millisecond)
		require.Equal(t, idle[:len(from)], from, "what is due does not depend on the answers")
		require.Len(t, asked, 10, "one in flight")
		for i := range from {
			require.LessOrEqual(t, from[i], asked[i])
		}
		require.Greater(t, asked[9]-from[9], 700*time.Millisecond, "the tenth left late and counts from when it was due")
		require.Equal(t, len(idle), len(from)+missed, "those that were never asked are counted")
	})
}

func TestBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, asked, missed := drive(t, Plan{Every: 250 * time.Millisecond}, 10*time.Millisecond)
		require.Equal(t, []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond}, from)
		require.Equal(t, from, asked)
		require.Zero(t, missed)
		from, _, missed = drive(t, Plan{Every: 250 * time.Millisecond}, 400*time.Millisecond)
		require.Equal(t, []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond}, from)
		require.Equal(t, 1, missed)
	})
}

func TestNothingBeforeTheStartOrAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Add(time.Minute)
		p := New(Plan{Start: start, End: start.Add(time.Second)}, rng())
		from, ok := p.Next(t.Context())
		require.True(t, ok)
		require.Equal(t, start, from)

		ctx, cancel := context.WithCancelCause(t.Context())
		p = New(Plan{Start: time.Now().Add(time.Hour), End: time.Now().Add(2 * time.Hour)}, rng())
		time.AfterFunc(time.Second, func() { cancel(errors.New("enough")) })
		_, ok = p.Next(ctx)
		require.False(t, ok)
	})
}
