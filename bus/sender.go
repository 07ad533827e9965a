package bus

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

// The clocks of a stream.
const (
	resendAfter    = 300 * time.Millisecond // how long acks may stand still before something is done about it
	maxResendAfter = 5 * time.Second        // it doubles up to this while they do
	patientAsks    = 4                      // questions without an answer before the oldest frame goes out again
	keepAliveEvery = 5 * time.Second        // a quiet stream says that it lives
	peerSilence    = 60 * time.Second       // no ack for this long ends the stream
	ackAfter       = 50 * time.Millisecond  // a receiver acknowledges no later than this
)

// Sender is the sending end of a stream: it numbers frames, keeps what is not acknowledged, and sends it again when
// it was lost (go-back-N).
//
// What was lost shows in acks that stand still, whatever else is heard or sent meanwhile. Then the receiver is asked, by a
// keep-alive behind all that was sent: it answers with a nak when something is missing, and the frames go out again. So a
// window that is slow on its way is not sent twice. When they stand still none the less, or nothing is heard any more, the
// oldest frame goes out again before each question.
//
// Credit is an absolute number: how many bytes of stdout, stderr and data the receiver has room for since the
// stream's start. It only grows, so that a lost or late ack does no harm. Both ends know the first value, the window.
// A Sender may be used by several goroutines; the frames of each go out in its order.
type Sender struct {
	publish func([]byte) error
	failed  func(error) // told, once, why the stream is over, unless it ended well; must only hand off; nil for nobody

	mu      sync.Mutex // guards the fields below
	frames  [][]byte   // payloads of the frames una … next-1
	una     uint64     // the first unacknowledged frame
	next    uint64     // the next frame's number
	sent    uint64     // bytes that used credit
	limit   uint64     // credit: sent may grow up to this
	ended   bool       // the end frame is in frames, or was
	err     error      // why the stream is over
	changed chan struct{}
	timer   *time.Timer
	backoff time.Duration
	lastAck time.Time // the last sign of the peer
	lastOut time.Time // the last frame that went out
	stood   time.Time // since when the acks stand still: the last one that moved, or what was done about it
	redone  uint64    // the frame from which a nak had us send again, plus one
	asked   bool      // a keep-alive has asked since then: what it brings is news
	asks    int       // keep-alives since the acks moved last
}

// newSender starts a stream with a window of credit. publish hands one payload to the connection; its errors count
// as a lost frame.
func newSender(window int64, publish func([]byte) error) *Sender {
	now := time.Now()
	s := &Sender{
		publish: publish, limit: uint64(window), changed: make(chan struct{}),
		backoff: resendAfter, lastAck: now, lastOut: now,
	}
	s.timer = time.AfterFunc(keepAliveEvery, s.tick)
	return s
}

// Write sends one frame. Bodies that use credit are cut into chunks and wait for it; ctx ends the waiting. The body
// may be used again after the return. Errors: the context's cause, ErrPeerSilent, ErrAborted, *StreamError.
func (s *Sender) Write(ctx context.Context, kind FrameKind, body []byte) error {
	if !kind.counts() {
		return s.send(kind, body)
	}
	for len(body) > 0 {
		chunk := body[:min(len(body), ChunkBytes)]
		if err := s.awaitCredit(ctx, len(chunk)); err != nil {
			return err
		}
		if err := s.send(kind, chunk); err != nil {
			return err
		}
		body = body[len(chunk):]
	}
	return nil
}

// Chunk is a frame of output in the making: its bytes are written where they leave from.
type Chunk struct{ payload []byte }

// NewChunk makes a chunk; WriteChunk takes it back.
func NewChunk() Chunk { return Chunk{newPayload(frameHeader + ChunkBytes)[:frameHeader+ChunkBytes]} }

// Bytes is room for ChunkBytes bytes.
func (c Chunk) Bytes() []byte { return c.payload[frameHeader:] }

// WriteChunk is Write of the first n bytes of a chunk, which is not to be used after it. n is above zero.
func (s *Sender) WriteChunk(ctx context.Context, kind FrameKind, c Chunk, n int) error {
	if err := s.awaitCredit(ctx, n); err != nil {
		return err
	}
	return s.sendPayload(kind, c.payload[:frameHeader+n])
}

// WriteGap says that n bytes are left out here. Errors: as Write.
func (s *Sender) WriteGap(n int64) error {
	return s.send(FrameGap, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// awaitCredit takes n bytes of credit.
func (s *Sender) awaitCredit(ctx context.Context, n int) error {
	for {
		if ctx.Err() != nil { // also where there is credit: a caller that has given up does not mean to go on
			return context.Cause(ctx)
		}
		s.mu.Lock()
		if s.err != nil {
			defer s.mu.Unlock()
			return s.err
		}
		if s.sent+uint64(n) <= s.limit {
			s.sent += uint64(n)
			s.mu.Unlock()
			return nil
		}
		changed := s.changed
		s.armLocked(s.backoff)
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Sender) send(kind FrameKind, body []byte) error {
	payload := newPayload(frameHeader + len(body))[:frameHeader+len(body)]
	copy(payload[frameHeader:], body)
	return s.sendPayload(kind, payload)
}

// sendPayload numbers a frame whose body is in its place, and keeps it until it is acknowledged.
func (s *Sender) sendPayload(kind FrameKind, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.ended {
		return &StreamError{Rule: "nothing follows the end frame"}
	}
	binary.BigEndian.PutUint64(payload, s.next)
	payload[8] = byte(kind)
	s.frames = append(s.frames, payload)
	s.next++
	s.ended = kind == FrameEnd
	s.lastOut = time.Now()
	if s.next-s.una == 1 {
		s.stood, s.asks = s.lastOut, 0
		s.armLocked(s.backoff)
	}
	// Under the lock, so that the order on the wire is the order of the numbers. It writes into the client's buffer and
	// does not wait for the peer.
	_ = s.publish(payload) // lost: the resend takes care of it
	return nil
}

// End sends the end frame and waits until the receiver has acknowledged it. Errors: as Write.
func (s *Sender) End(ctx context.Context, body []byte) error {
	if err := s.send(FrameEnd, body); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		done, err, changed := s.una == s.next, s.err, s.changed
		s.mu.Unlock()
		if done || err != nil {
			s.stop(nil)
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			s.stop(context.Cause(ctx))
			return context.Cause(ctx)
		}
	}
}

// stop ends the stream on this side: everything that waits fails with err.
func (s *Sender) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

func (s *Sender) failLocked(err error) {
	if s.err == nil && err != nil {
		s.err = err
		if s.failed != nil {
			s.failed(err)
		}
	}
	s.frames = nil
	s.timer.Stop()
	s.wakeLocked()
}

func (s *Sender) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Sender) armLocked(d time.Duration) {
	if s.err == nil {
		s.timer.Reset(d)
	}
}

// deliver takes an ack or nak from the peer.
func (s *Sender) deliver(f Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if f.Seq > s.next {
		s.failLocked(&StreamError{Rule: fmt.Sprintf("frame %d was acknowledged, %d is the next to be sent", f.Seq, s.next)})
		return
	}
	s.lastAck = time.Now()
	moved := false
	if f.Seq > s.una {
		s.stood, s.asks = s.lastAck, 0
		n := f.Seq - s.una
		for i, payload := range s.frames[:n] {
			recycle(payload)
			s.frames[i] = nil
		}
		s.frames = s.frames[n:]
		s.una = f.Seq
		moved = true
	}
	if limit := f.number(); limit > s.limit {
		if limit > s.sent+MaxWindow {
			limit = s.sent + MaxWindow // bounds what we keep for a peer that claims more
		}
		s.limit = max(limit, s.limit)
		moved = true
	}
	if f.Kind == FrameNak && f.Seq == s.una && (s.redone != s.una+1 || s.asked) {
		s.resendLocked()
		s.redone, s.asked = s.una+1, false // further naks for this gap were sent before it was filled
	}
	if moved {
		s.backoff = resendAfter
		s.wakeLocked()
	}
	switch {
	case s.una == s.next:
		s.backoff = resendAfter
		s.armLocked(keepAliveEvery)
	case moved: // else the clock runs on: acks that say nothing new do not wind it up
		s.armLocked(s.backoff)
	}
}

// payloads are reused for frames of output: a fast stream would fill the heap with them. nats.go has copied or written a
// payload when Publish returns.
var payloads = sync.Pool{New: func() any { b := make([]byte, 0, frameHeader+ChunkBytes); return &b }}

func newPayload(n int) []byte {
	if n < ChunkBytes/4 || n > frameHeader+ChunkBytes {
		return make([]byte, 0, n)
	}
	return (*payloads.Get().(*[]byte))[:0]
}

func recycle(payload []byte) {
	if cap(payload) == frameHeader+ChunkBytes {
		payload = payload[:0]
		payloads.Put(&payload)
	}
}

// resend sends what is unacknowledged again, now.
func (s *Sender) resend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.resendLocked()
	}
}

// ask has the receiver say what it misses.
func (s *Sender) ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.askLocked(time.Now())
	}
}

// resendLocked sends all unacknowledged frames again.
func (s *Sender) resendLocked() {
	s.lastOut = time.Now()
	s.stood = s.lastOut
	for _, payload := range s.frames {
		if s.publish(payload) != nil {
			return
		}
	}
}

// tick runs when the stream has been quiet for a while.
func (s *Sender) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	now := time.Now()
	if now.Sub(s.lastAck) >= peerSilence {
		s.failLocked(fmt.Errorf("%w: no acknowledgement for %s", ErrPeerSilent, peerSilence))
		return
	}
	since := later(s.lastAck, s.lastOut)
	if s.una < s.next {
		since = s.stood
	}
	if left := s.backoff - now.Sub(since); left > 0 {
		s.armLocked(left)
		return
	}
	if s.una < s.next && (s.asks > 0 && s.lastAck.After(s.stood) || s.asks >= patientAsks) {
		_ = s.publish(s.frames[0]) // lost: it is sent again
	}
	s.askLocked(now)
	s.backoff = min(2*s.backoff, maxResendAfter)
	s.armLocked(s.backoff)
}

// askLocked asks for an ack: it tells what is missing, shows that the peer lives, and repairs a lost grant of credit.
func (s *Sender) askLocked(now time.Time) {
	s.lastOut, s.stood, s.asked = now, now, true
	s.asks++
	_ = s.publish(Frame{Seq: s.next, Kind: FrameKeepAlive}.Append(nil)) // lost: it is asked again
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// ackFrame is the payload of an ack or nak.
func ackFrame(kind FrameKind, expected, limit uint64) []byte {
	body := binary.BigEndian.AppendUint64(nil, limit)
	return Frame{Seq: expected, Kind: kind, Body: body}.Append(make([]byte, 0, frameHeader+len(body)))
}
