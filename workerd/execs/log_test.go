package execs

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// all reads to the end; gaps count.
func all(t *testing.T, r *Reader) (got [2][]byte, gaps int64) {
	t.Helper()
	buf := make([]byte, 100)
	for {
		p, err := r.Next(t.Context(), buf, true)
		require.NoError(t, err)
		if p.End {
			return got, gaps
		}
		gaps += p.Gap
		got[p.Stream] = append(got[p.Stream], buf[:p.Bytes]...)
	}
}

func TestLogKeepsHeadAndTail(t *testing.T) {
	for _, chunk := range []int{1, 7, 64, 1000, 5000} {
		l := NewLog(100, 200)
		var data []byte
		for i := range 5000 {
			data = append(data, byte(i%251))
		}
		for rest := data; len(rest) > 0; {
			n := min(chunk, len(rest))
			l.Write(t.Context(), Stdout, rest[:n])
			rest = rest[n:]
		}
		l.Close()
		for range 3 {
			got, gap := all(t, l.Read(0, false))
			require.EqualValues(t, 4700, gap, "chunk %d", chunk)
			require.Equal(t, append(append([]byte{}, data[:100]...), data[4800:]...), got[Stdout], "chunk %d", chunk)
		}
		got, gap := all(t, l.Read(4900, false))
		require.Zero(t, gap)
		require.Equal(t, data[4900:], got[Stdout])
		got, gap = all(t, l.Read(50, true))
		require.EqualValues(t, 4700, gap)
		require.Len(t, got[Stdout], 250)
	}
}

// TestLogWithReaders has a command and readers of different paces at work at once: a reader that keeps up gets every
// byte, a slow one gets gaps that are counted right.
func TestLogWithReaders(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			l := NewLog(int64(rng.IntN(300)), int64(1+rng.IntN(300)))
			var want [2][]byte
			readers := 1 + rng.IntN(3)
			var wg sync.WaitGroup
			lost := make([]int64, readers)
			got := make([][2][]byte, readers)
			for i := range readers {
				r := l.Read(0, false)
				slow := time.Duration(i) * time.Duration(rng.IntN(5)) * time.Millisecond
				wg.Go(func() {
					defer r.Close()
					buf := make([]byte, 50)
					for {
						p, err := r.Next(t.Context(), buf, true)
						if err != nil || p.End {
							return
						}
						lost[i] += p.Gap
						got[i][p.Stream] = append(got[i][p.Stream], buf[:p.Bytes]...)
						time.Sleep(slow) //nolint:forbidigo // the bubble's clock
					}
				})
			}
			total := 0
			for range 200 {
				s := Stream(rng.IntN(2))
				b := make([]byte, rng.IntN(100))
				for k := range b {
					b[k] = byte(rng.Uint32())
				}
				want[s] = append(want[s], b...)
				total += len(b)
				l.Write(t.Context(), s, b)
			}
			l.Close()
			wg.Wait()
			for i := range readers {
				require.EqualValues(t, total, int64(len(got[i][0])+len(got[i][1]))+lost[i], "seed %d", seed)
				if readers == 1 {
					require.Zero(t, lost[i], "a single reader holds the command back")
					require.True(t, bytes.Equal(want[0], got[i][0]) && bytes.Equal(want[1], got[i][1]))
				}
			}
			out, errs := l.Totals()
			require.EqualValues(t, len(want[0]), out)
			require.EqualValues(t, len(want[1]), errs)
		})
	}
}

func TestLogHoldsTheCommandBack(t *testing.T) {
	l := NewLog(0, 10)
	r := l.Read(0, false)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("enough"))
	defer cancel()
	l.Write(t.Context(), Stdout, make([]byte, 10))
	l.Write(ctx, Stdout, make([]byte, 5))
	require.Error(t, ctx.Err(), "it waited")
	l.Close()
	got, gap := all(t, r)
	require.EqualValues(t, 5, gap)
	require.Len(t, got[Stdout], 10)
}
