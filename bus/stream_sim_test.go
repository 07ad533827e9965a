package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// link carries payloads one way, badly: it drops, repeats and delays them, and is cut for a while. Order holds but across
// a cut: what was on its way then may arrive, late, behind what is sent afterwards.
type link struct {
	rng  *rand.Rand
	loss float64
	to   func([]byte)
	end  <-chan struct{} // ends the deliveries

	mu    sync.Mutex // guards the fields below
	queue []delivery
	run   bool      // somebody delivers
	last  time.Time // when the latest delivery is due
	cut   bool
	dead  bool // for good, and silently
}

type delivery struct {
	due     time.Time
	payload []byte
}

func (l *link) send(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return ErrPublish
	}
	copies := 1
	switch p := l.rng.Float64(); {
	case l.dead || p < l.loss:
		copies = 0
	case p < l.loss*1.2:
		copies = 2
	}
	payload := append([]byte{}, b...)
	for range copies {
		due := later(l.last, time.Now().Add(time.Duration(l.rng.IntN(3000))*time.Microsecond))
		l.last = due
		l.queue = append(l.queue, delivery{due, payload})
	}
	if !l.run && len(l.queue) > 0 {
		l.run = true
		go l.deliver()
	}
	return nil
}

// deliver takes the queue in its order until it is empty.
func (l *link) deliver() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.run = false
			l.mu.Unlock()
			return
		}
		d := l.queue[0]
		l.queue = l.queue[1:]
		l.mu.Unlock()
		if !sleep(l.end, time.Until(d.due)) {
			return
		}
		l.to(d.payload)
	}
}

// sleep waits by the bubble's clock; false says that the run is over.
func sleep(end <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-end:
		return false
	}
}

// setCut cuts and mends the link. What was on its way at the cut arrives up to 2 s later, in part.
func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if !cut {
		return
	}
	stale := l.queue
	l.queue, l.last = nil, time.Time{}
	for _, d := range stale {
		if l.rng.IntN(2) == 0 {
			time.AfterFunc(time.Duration(l.rng.IntN(2000))*time.Millisecond, func() { l.to(d.payload) })
		}
	}
}

// simSeedVar names the one seed to run.
const simSeedVar = "SANDBUS_SIM_SEED"

// TestStreamSimulation sends bytes over a bad link, for thousands of seeds: they arrive once, in order, with one end, or
// both sides hear of an error that has a name; nobody waits for ever, and no more than a window is ever held.
func TestStreamSimulation(t *testing.T) {
	first, seeds := uint64(0), uint64(10_000)
	if testing.Short() || raceEnabled {
		seeds = 1000 // the detector takes ten times as long
	}
	if v := os.Getenv(simSeedVar); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		require.NoError(t, err, simSeedVar)
		first, seeds = seed, 1
	}
	ends := map[string]int{}
	seed := first
	defer func() { // also when the bubble has panicked because all of its goroutines wait
		if seed < first+seeds {
			fmt.Printf("seed %d; again: %s=%d go test ./bus -run '^TestStreamSimulation$'\n", seed, simSeedVar, seed)
		}
	}()
	for ; seed < first+seeds; seed++ {
		synctest.Test(t, func(t *testing.T) { ends[simulate(t, seed)]++ })
		if t.Failed() {
			return
		}
	}
	t.Log(ends)
	if seeds > 1 {
		for _, end := range []string{"whole", "the sender dies", "the receiver dies", "the sender gives up", "the receiver gives up"} {
			require.Positive(t, ends[end], end)
		}
	}
}

// simulation is one run.
type simulation struct {
	rng         *rand.Rand
	data        []byte
	forth, back *link
	sender      *Sender
	receiver    *Receiver
	fate        string
	at          int // the byte at which fate strikes
}

// errGivenUp is the cause with which a side of a simulation gives up.
var errGivenUp = errors.New("given up")

func newSimulation(seed uint64, end <-chan struct{}) *simulation {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &simulation{rng: rng, fate: "whole"}
	size := rng.IntN(20_000)
	if seed%10 == 0 {
		size = rng.IntN(400_000) // several windows
	}
	s.data = make([]byte, size)
	for i := range s.data {
		s.data[i] = byte(rng.Uint32())
	}
	if seed%5 == 0 {
		s.fate = []string{"the sender dies", "the receiver dies", "the sender gives up", "the receiver gives up"}[rng.IntN(4)]
		s.at = rng.IntN(size + 1)
	}
	loss := rng.Float64() * 0.2
	s.forth = &link{rng: rand.New(rand.NewPCG(seed, 2)), loss: loss, end: end}
	s.back = &link{rng: rand.New(rand.NewPCG(seed, 3)), loss: loss, end: end}
	s.sender = newSender(MinWindow, s.forth.send)
	s.receiver = newReceiver(MinWindow, s.back.send)
	s.forth.to = func(b []byte) {
		if f, err := ParseFrame(b); err == nil {
			s.receiver.deliver(f)
		} else {
			s.receiver.fail(err)
		}
	}
	s.back.to = func(b []byte) {
		if f, err := ParseFrame(b); err == nil {
			s.sender.deliver(f)
		} else {
			s.sender.stop(err)
		}
	}
	return s
}

// strike does what fate has in store when n bytes were sent, or taken.
func (s *simulation) strike(side string, n int, giveUp context.CancelCauseFunc) {
	if n < s.at {
		return
	}
	switch s.fate {
	case "the " + side + " dies":
		for _, l := range []*link{s.forth, s.back} {
			l.mu.Lock()
			l.dead = true
			l.mu.Unlock()
		}
	case "the " + side + " gives up":
		giveUp(errGivenUp)
	}
}

// write sends the data in pieces, some of them behind a pause, and the end.
func (s *simulation) write(ctx context.Context) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	rng := rand.New(rand.NewPCG(uint64(s.at), 4))
	most := 1 + rng.IntN(60_000)
	pauses := rng.IntN(3)
	for rest := s.data; len(rest) > 0; {
		s.strike("sender", len(s.data)-len(rest), giveUp)
		n := min(len(rest), 1+rng.IntN(most))
		if err := s.sender.Write(ctx, FrameStdout, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
		if pauses > 0 && rng.IntN(20) == 0 {
			sleep(ctx.Done(), time.Duration(rng.IntN(400))*time.Millisecond)
		}
	}
	s.strike("sender", len(s.data), giveUp)
	return s.sender.End(ctx, []byte("bye"))
}

// read takes what comes, now and then after a pause.
func (s *simulation) read(ctx context.Context) (got []byte, ends int, err error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	rng := rand.New(rand.NewPCG(uint64(s.at), 5))
	slow := rng.IntN(4) == 0
	for ends == 0 {
		s.strike("receiver", len(got), giveUp)
		f, err := s.receiver.Next(ctx)
		if err != nil {
			return got, ends, err
		}
		if f.Kind == FrameEnd {
			ends++
			continue
		}
		got = append(got, f.Body...)
		s.receiver.mu.Lock()
		held, limit := s.receiver.received-s.receiver.taken, s.receiver.limit-s.receiver.taken
		s.receiver.mu.Unlock()
		if held > MaxWindow || held > limit {
			return got, ends, fmt.Errorf("%d bytes are held on a credit of %d", held, limit)
		}
		s.sender.mu.Lock()
		kept := 0
		for _, b := range s.sender.frames {
			kept += len(b) - frameHeader
		}
		s.sender.mu.Unlock()
		if kept > MaxWindow {
			return got, ends, fmt.Errorf("the sender keeps %d bytes", kept)
		}
		if slow && rng.IntN(10) == 0 {
			sleep(ctx.Done(), time.Duration(rng.IntN(2000))*time.Millisecond)
		}
	}
	// Whatever comes late is not a second end.
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errGivenUp)
	defer cancel()
	if f, err := s.receiver.Next(ctx); err == nil {
		return got, ends + 1, fmt.Errorf("a frame of kind %d follows the end", f.Kind)
	}
	return got, ends, nil
}

// disturb cuts both ways a few times.
func (s *simulation) disturb(end <-chan struct{}, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 6))
	for range rng.IntN(4) {
		if !sleep(end, time.Duration(rng.IntN(1500))*time.Millisecond) {
			return
		}
		s.forth.setCut(true)
		s.back.setCut(true)
		sleep(end, time.Duration(rng.IntN(5))*time.Second)
		s.forth.setCut(false)
		s.back.setCut(false)
		if rng.IntN(2) == 0 {
			s.sender.resend() // as those do that are told of a reconnect
		}
	}
}

// simulate runs one seed and says how it was to end.
func simulate(t *testing.T, seed uint64) string {
	t.Helper()
	over := make(chan struct{})
	s := newSimulation(seed, over)
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errors.New("it hangs"))
	defer cancel()
	var wg sync.WaitGroup
	var wrote error
	wg.Go(func() {
		if wrote = s.write(ctx); wrote != nil {
			s.sender.stop(wrote) // as the end of an op does
		}
	})
	var disturbance sync.WaitGroup
	disturbance.Go(func() { s.disturb(over, seed) })
	got, ends, read := s.read(ctx)
	if read != nil && s.fate != "whole" {
		if !errors.Is(read, ErrPeerSilent) { // whoever dies says nothing more; the other end finds out by itself
			s.forth.mu.Lock()
			s.back.mu.Lock()
			s.forth.dead, s.back.dead = true, true
			s.back.mu.Unlock()
			s.forth.mu.Unlock()
		}
		s.receiver.fail(ErrClosed)
	}
	wg.Wait()
	close(over)
	disturbance.Wait()
	s.receiver.fail(ErrClosed)
	s.sender.stop(ErrClosed)
	s.check(t, got, ends, read, wrote)
	require.Less(t, time.Since(begin), 10*time.Minute)
	return s.fate
}

// check holds the results against what may be.
func (s *simulation) check(t *testing.T, got []byte, ends int, read, wrote error) {
	t.Helper()
	require.True(t, bytes.HasPrefix(s.data, got), "%d bytes sent, %d came, or they differ", len(s.data), len(got))
	if s.fate == "whole" {
		require.NoError(t, wrote)
		require.NoError(t, read)
	}
	if read == nil { // the end was taken
		require.Equal(t, 1, ends)
		require.Len(t, got, len(s.data))
	} else {
		require.True(t, errors.Is(read, ErrPeerSilent) || errors.Is(read, errGivenUp), "reader: %v", read)
	}
	if wrote != nil {
		require.True(t, errors.Is(wrote, ErrPeerSilent) || errors.Is(wrote, errGivenUp), "writer: %v", wrote)
	}
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
