package bus

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTrickleIsNotHeldUp has a source that never falls silent lose a frame, and the nak for it: what follows it must not
// keep the sender from noticing that the acks stand still.
func TestTrickleIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Sender
		naks, sent := 0, map[uint64]int{}
		over := make(chan struct{})
		forth, back := &link{rng: rand.New(rand.NewPCG(1, 1)), end: over}, &link{rng: rand.New(rand.NewPCG(1, 2)), end: over}
		r := newReceiver(MinWindow, func(b []byte) error {
			if FrameKind(b[8]) == FrameNak {
				if naks++; naks == 1 {
					return nil // lost
				}
			}
			return back.send(b)
		})
		s = newSender(MinWindow, func(b []byte) error {
			if f := mustParse(t, b); f.Kind == FrameStdout {
				if sent[f.Seq]++; f.Seq == 3 && sent[3] == 1 {
					return nil // lost
				}
			}
			return forth.send(b)
		})
		forth.to = func(b []byte) { r.deliver(mustParse(t, b)) }
		back.to = func(b []byte) { s.deliver(mustParse(t, b)) }
		var late time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 100 {
				f, err := r.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				sentAt := time.Duration(f.Body[0]) * 100 * time.Millisecond
				late = max(late, time.Since(bubbleStart)-sentAt)
				require.Equal(t, byte(i), f.Body[0])
			}
		}()
		for i := range 100 {
			require.NoError(t, s.Write(t.Context(), FrameStdout, []byte{byte(i)}))
			<-time.After(100 * time.Millisecond)
			synctest.Wait()
		}
		<-done
		require.Less(t, late, 700*time.Millisecond)
		for seq, n := range sent {
			require.LessOrEqual(t, n, 3, "frame %d: a stall is no reason to flood", seq)
		}
		s.stop(ErrClosed)
		r.fail(ErrClosed)
		close(over)
	})
}

// bubbleStart is when the clock of every synctest bubble begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// TestStaleAcksMoveTheSender has a receiver that only ever says the same: the oldest frame goes out again, at times that
// double up to their bound.
func TestStaleAcksMoveTheSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var again []time.Duration
		s := newSender(MinWindow, func(b []byte) error {
			if FrameKind(b[8]) == FrameStdout && b[7] == 0 {
				again = append(again, time.Since(bubbleStart))
			}
			return nil
		})
		require.NoError(t, s.Write(t.Context(), FrameStdout, []byte("x")))
		for range 200 {
			<-time.After(100 * time.Millisecond)
			s.deliver(mustParse(t, ackFrame(FrameAck, 0, MinWindow)))
		}
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		require.Equal(t, []time.Duration{0, ms(900), ms(2100), ms(4500), ms(9300), ms(14300), ms(19300)}, again)
		s.stop(ErrClosed)
	})
}

// TestSlowLinkIsNotFilledTwice has a window take longer than the patience of its sender: nothing was lost, so nothing is
// sent twice.
func TestSlowLinkIsNotFilledTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytesPerSecond = 64 << 10
		var s *Sender
		var free time.Time // when the link has sent what it was given
		total := 0
		r := newReceiver(DefaultWindow, func(b []byte) error {
			f := mustParse(t, b)
			time.AfterFunc(100*time.Millisecond, func() { s.deliver(f) })
			return nil
		})
		s = newSender(DefaultWindow, func(b []byte) error {
			f := mustParse(t, append([]byte{}, b...))
			total += len(b)
			free = later(free, time.Now()).Add(time.Duration(len(b)) * time.Second / bytesPerSecond)
			time.AfterFunc(time.Until(free), func() { r.deliver(f) })
			return nil
		})
		go func() {
			_ = s.Write(t.Context(), FrameStdout, make([]byte, 1<<20)) // End says what went wrong
			_ = s.End(t.Context(), nil)
		}()
		for {
			f, err := r.Next(t.Context())
			require.NoError(t, err)
			if f.Kind == FrameEnd {
				break
			}
		}
		<-time.After(time.Second)
		r.fail(ErrClosed)
		s.stop(ErrClosed)
		synctest.Wait()
		require.Less(t, total, 1<<20+1<<20/10)
	})
}

// TestNextLooksAtItsContext has a reader of a flood give up: Next says so although more is waiting.
func TestNextLooksAtItsContext(t *testing.T) {
	r := newReceiver(MinWindow, func([]byte) error { return nil })
	s := &Stream{in: r}
	r.deliver(Frame{Kind: FrameStdout, Body: []byte("x")})
	r.deliver(Frame{Seq: 1, Kind: FrameStdout, Body: []byte("y")})
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := s.Next(ctx)
	require.NoError(t, err)
	enough := errors.New("enough")
	cancel(enough)
	_, err = s.Next(ctx)
	require.ErrorIs(t, err, enough)
	f, err := s.Next(t.Context())
	require.NoError(t, err, "nothing is lost by that")
	require.Equal(t, "y", string(f.Body))
	r.fail(ErrClosed)
}
