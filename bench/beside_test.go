package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkBesideStream prints how long a fast request takes while a stream of the same worker is as fast as it can be,
// against the same request on an idle worker.
func BenchmarkBesideStream(b *testing.B) {
	r := startRig(b)
	r.file(b, "file", 3600)
	read := arm{"read", func(ctx context.Context) error {
		_, err := r.sb.ReadFile(ctx, "file")
		return err
	}}
	for b.Loop() {
		idle := latencies(b, 5, 1000, read)[0]
		ctx, stop := context.WithCancelCause(b.Context())
		var out flowing
		flood := r.sb.Command("cat", "/dev/zero")
		flood.Stdout = &out
		require.NoError(b, flood.Start(ctx))
		for out.Load() < 64<<20 { // until it is at its speed
			<-time.After(time.Millisecond)
		}
		busy := latencies(b, 5, 1000, read)[0]
		stop(errors.New("measured"))
		require.Error(b, flood.Wait())
		report(b, "read beside a stream / idle, p50", ratio(busy, idle), true, 3, fmt.Sprintf("%v / %v (%d MB streamed)", busy, idle, out.Load()/1e6))
	}
}

// flowing counts what it discards.
type flowing struct{ atomic.Int64 }

func (f *flowing) Write(b []byte) (int, error) {
	f.Add(int64(len(b)))
	return len(b), nil
}
