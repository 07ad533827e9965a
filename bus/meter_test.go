package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMeterCostsNoMemory holds that counting a request, and asking for a trace that is not there, allocate nothing: both are
// in the path of every read.
func TestMeterCostsNoMemory(t *testing.T) {
	m := &Meter{}
	ctx, began := context.Background(), time.Now()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		m.verb("fs.read").done(began, nil)
		if traceOf(ctx) != "" {
			panic("a trace from nowhere")
		}
	}))
	m.verb("fs.read").done(began, errors.New("x"))
	count, _, upTo := m.Latencies()["fs.read"].Snapshot()
	require.Equal(t, uint64(102), count) // AllocsPerRun runs once more, to warm up
	require.Equal(t, count, upTo[600])
	require.Equal(t, int64(1), m.Latencies()["fs.read"].Failed.Load())
	require.Nil(t, (&Meter{}).Latencies())
}

func TestTraceparent(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", traceID(good))
	require.Equal(t, good, traceOf(WithTrace(t.Context(), good)))
	for _, bad := range []string{
		"", "00", good + "x", "01" + good[2:], "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-\n1", "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
	} {
		require.Empty(t, traceID(bad), "%q", bad)
		require.Empty(t, traceOf(WithTrace(t.Context(), bad)))
	}
}
