package bus

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// link carries payloads one way, badly: it drops, repeats and delays them, and is cut for a while.
type link struct {
	rng  *rand.Rand
	loss float64
	to   func([]byte)

	mu   sync.Mutex // guards the fields below
	last time.Time  // when the latest delivery is due: order holds but across a cut
	cut  bool
}

func (l *link) send(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return ErrPublish
	}
	copies := 1
	switch p := l.rng.Float64(); {
	case p < l.loss:
		copies = 0
	case p < l.loss*1.2:
		copies = 2
	}
	payload := append([]byte{}, b...)
	for range copies {
		due := time.Now().Add(time.Duration(l.rng.IntN(3000)) * time.Microsecond)
		if due.Before(l.last) {
			due = l.last
		}
		l.last = due
		time.AfterFunc(time.Until(due), func() { l.to(payload) })
	}
	return nil
}

func (l *link) setCut(cut bool) {
	l.mu.Lock()
	l.cut = cut
	l.mu.Unlock()
}

// TestStreamSimulation sends bytes over a bad link and checks that they arrive, once, in order, with one end, and that
// no more than a window is ever held.
func TestStreamSimulation(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { simulate(t, uint64(seed)) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func simulate(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	window := int64(MinWindow)
	var s *Sender
	var r *Receiver
	loss := rng.Float64() * 0.2
	forth := &link{rng: rand.New(rand.NewPCG(seed, 2)), loss: loss}
	back := &link{rng: rand.New(rand.NewPCG(seed, 3)), loss: loss}
	s = newSender(window, forth.send)
	r = newReceiver(window, back.send)
	forth.to = func(b []byte) {
		f, err := ParseFrame(b)
		require.NoError(t, err)
		r.deliver(f)
	}
	back.to = func(b []byte) {
		f, err := ParseFrame(b)
		require.NoError(t, err)
		s.deliver(f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	data := make([]byte, rng.IntN(1<<20))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(60_000))
			if !assertNoError(t, s.Write(ctx, FrameStdout, rest[:n])) {
				return
			}
			rest = rest[n:]
		}
		assertNoError(t, s.End(ctx, []byte("bye")))
	})
	wg.Go(func() { // cuts of both ways
		for range 3 {
			time.Sleep(time.Duration(seed%7) * 200 * time.Millisecond) //nolint:forbidigo // the bubble's clock
			forth.setCut(true)
			back.setCut(true)
			time.Sleep(time.Duration(seed%5) * time.Second) //nolint:forbidigo // likewise
			forth.setCut(false)
			back.setCut(false)
		}
	})
	var got []byte
	for {
		f, err := r.Next(ctx)
		require.NoError(t, err)
		if f.Kind == FrameEnd {
			require.Equal(t, "bye", string(f.Body))
			break
		}
		got = append(got, f.Body...)
		r.mu.Lock()
		require.LessOrEqual(t, r.received-r.taken, uint64(MaxWindow))
		require.LessOrEqual(t, r.received, r.limit)
		r.mu.Unlock()
	}
	wg.Wait()
	require.True(t, string(data) == string(got), "%d bytes sent, %d came, or they differ", len(data), len(got))
	r.fail(ErrClosed)
}

func assertNoError(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func TestSenderOfASilentPeerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		s := newSender(MinWindow, func([]byte) error { sent++; return nil })
		var told []error
		s.failed = func(err error) { told = append(told, err) }
		begin := time.Now()
		err := s.End(t.Context(), nil)
		require.ErrorIs(t, err, ErrPeerSilent)
		require.InDelta(t, peerSilence.Seconds(), time.Since(begin).Seconds(), 6)
		require.Less(t, sent, 40, "it backs off")
		require.Len(t, told, 1)
		require.ErrorIs(t, told[0], ErrPeerSilent)
	})
}

func TestSenderWaitsForCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bytes int
		s := newSender(MinWindow, func(b []byte) error {
			if FrameKind(b[8]).counts() {
				bytes += len(b) - frameHeader
			}
			return nil
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("enough"))
		defer cancel()
		err := s.Write(ctx, FrameStdout, make([]byte, 2*MinWindow))
		require.EqualError(t, err, "enough")
		require.Equal(t, MinWindow, bytes)
		s.stop(ErrClosed)
	})
}

func TestSenderRefusesWhatWasNeverSent(t *testing.T) {
	s := newSender(MinWindow, func([]byte) error { return nil })
	s.deliver(mustParse(t, ackFrame(FrameAck, 1, MinWindow)))
	var se *StreamError
	require.ErrorAs(t, s.Write(t.Context(), FrameStdout, []byte("x")), &se)
}

func mustParse(t *testing.T, b []byte) Frame {
	t.Helper()
	f, err := ParseFrame(b)
	require.NoError(t, err)
	return f
}

// TestReceiverNamesTheBrokenRule has a sender break each rule; the stream ends with an error, and what came before is
// still handed out.
func TestReceiverNamesTheBrokenRule(t *testing.T) {
	out := func(seq uint64, n int) Frame { return Frame{Seq: seq, Kind: FrameStdout, Body: make([]byte, n)} }
	for name, frames := range map[string][]Frame{
		"no credit":         {out(0, MaxFrameBody), out(1, 1)},
		"far ahead":         {out(1<<40, 1)},
		"behind the end":    {{Seq: 0, Kind: FrameEnd}, out(1, 1)},
		"two ends":          {{Seq: 0, Kind: FrameEnd}, {Seq: 1, Kind: FrameEnd}},
		"started late":      {out(0, 1), {Seq: 1, Kind: FrameStarted}},
		"no bytes":          {out(0, 0)},
		"skips past an end": {{Seq: 0, Kind: FrameEnd}, out(5, 1)},
		"behind the EOF":    {{Seq: 0, Kind: FrameEOF}, out(1, 1)},
		"two EOFs":          {{Seq: 0, Kind: FrameEOF}, {Seq: 1, Kind: FrameEOF}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(MinWindow, func([]byte) error { return nil })
			for _, f := range frames {
				r.deliver(f)
			}
			var err error
			for err == nil {
				_, err = r.Next(t.Context())
			}
			var se *StreamError
			require.ErrorAs(t, err, &se)
			require.NotEmpty(t, se.Rule)
		})
	}
	r := newReceiver(MinWindow, func([]byte) error { return nil })
	for i := range uint64(maxBareFrames + 1) {
		r.deliver(Frame{Seq: i, Kind: FrameGap, Body: make([]byte, 8)})
	}
	require.Error(t, r.err, "frames without bytes are bounded too")
}

// TestEOFIsNotTheEnd has the end frame follow, and bytes only before it.
func TestEOFIsNotTheEnd(t *testing.T) {
	r := newReceiver(MinWindow, func([]byte) error { return nil })
	var want []FrameKind
	for i, f := range []Frame{{Kind: FrameStarted}, {Kind: FrameData, Body: []byte("x")}, {Kind: FrameEOF}, {Kind: FrameEnd}} {
		f.Seq = uint64(i)
		r.deliver(mustParse(t, f.Append(nil)))
		want = append(want, f.Kind)
	}
	var got []FrameKind
	for range want {
		f, err := r.Next(t.Context())
		require.NoError(t, err)
		got = append(got, f.Kind)
	}
	require.Equal(t, want, got)
	_, err := ParseFrame(Frame{Kind: FrameEOF, Body: []byte("x")}.Append(nil))
	var se *StreamError
	require.ErrorAs(t, err, &se, "it has no body")
}

func TestReceiverAsksOnceForAGap(t *testing.T) {
	var kinds []FrameKind
	r := newReceiver(MinWindow, func(b []byte) error { kinds = append(kinds, FrameKind(b[8])); return nil })
	for _, seq := range []uint64{2, 3, 4} {
		r.deliver(Frame{Seq: seq, Kind: FrameStdout, Body: []byte("x")})
	}
	require.Equal(t, []FrameKind{FrameNak}, kinds)
	r.fail(ErrClosed)
}
