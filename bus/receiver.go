package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Receiver is the receiving end of a stream. It hands out the frames in order, each once, and grants credit as they
// are taken. One goroutine may call Next at a time.
type Receiver struct {
	publish func([]byte) error
	base    uint64 // the window that the stream began with

	mu       sync.Mutex // guards the fields below
	window   uint64     // bytes that may be on their way or in queue
	granted  time.Time  // when credit was granted last because bytes were taken
	queue    []Frame    // in order, not yet taken
	bare     int        // frames in queue that use no credit
	expected uint64     // the next frame's number
	nakFor   uint64     // the frame that the last nak asked for, plus one
	received uint64     // bytes that used credit
	taken    uint64     // those of them that Next has handed out
	limit    uint64     // the credit that was granted last
	eof      bool       // an EOF frame has arrived
	ended    bool       // the end frame has arrived
	err      error
	heard    time.Time     // when the sender said something last
	wake     chan struct{} // has one element when the queue has changed
	timer    *time.Timer   // sends an ack that is due
	armed    bool
}

// newReceiver takes a stream whose sender began with a window of credit. publish hands an ack to the connection.
func newReceiver(window int64, publish func([]byte) error) *Receiver {
	r := &Receiver{
		publish: publish, base: uint64(window), window: uint64(window), limit: uint64(window),
		granted: time.Now(), heard: time.Now(), wake: make(chan struct{}, 1),
	}
	r.timer = time.AfterFunc(time.Hour, r.tick)
	r.timer.Stop()
	return r
}

// Next returns the next frame; the frame of kind FrameEnd is the last one. Its body is the caller's. What has
// arrived comes before any error: also behind the end of ctx, so that an op which is aborted can still take what was sent
// to it. Errors: the context's cause; ErrPeerSilent when the sender has said nothing for a minute (a live one sends
// keep-alives); *StreamError; or the error with which this side was stopped.
func (r *Receiver) Next(ctx context.Context) (Frame, error) {
	f, ok, err := r.pop()
	if ok || err != nil {
		return f, err
	}
	silence := time.NewTimer(peerSilence)
	defer silence.Stop()
	for {
		f, ok, err := r.pop()
		if ok || err != nil {
			return f, err
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return Frame{}, context.Cause(ctx)
		case <-silence.C:
			silence.Reset(r.checkSilence())
		}
	}
}

// checkSilence ends the stream when its sender has been silent for too long; else it says when to look again.
func (r *Receiver) checkSilence() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := peerSilence - time.Since(r.heard)
	if left <= 0 {
		r.failLocked(fmt.Errorf("%w: nothing came for %s", ErrPeerSilent, peerSilence))
		return peerSilence
	}
	return left
}

func (r *Receiver) pop() (Frame, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return Frame{}, false, r.err
	}
	f := r.queue[0]
	if _, broken := errors.AsType[*StreamError](r.err); broken && f.Kind == FrameEnd {
		return Frame{}, false, r.err // an end that something follows is none
	}
	r.queue[0] = Frame{}
	r.queue = r.queue[1:]
	if f.Kind.counts() {
		r.taken += uint64(len(f.Body))
	} else {
		r.bare--
	}
	if r.err == nil && !r.ended && r.taken+r.window >= r.limit+r.window/4 {
		r.adaptLocked()
		r.ackLocked(FrameAck)
	}
	return f, true, nil
}

// over says whether the end frame has arrived, or the stream was ended on this side.
func (r *Receiver) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended || r.err != nil
}

// complete says whether the end frame has arrived.
func (r *Receiver) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// The window follows the rate: it grows while a quarter of it is taken within growBelow, so that it is at most what
// arrives in four times that, and nothing beside the stream waits longer for it (protocol.md: latency beside a stream is
// window ÷ rate); and it shrinks again when that takes longer than shrinkAbove.
const (
	growBelow   = 4 * time.Millisecond
	shrinkAbove = 40 * time.Millisecond
)

func (r *Receiver) adaptLocked() {
	now := time.Now()
	switch took := now.Sub(r.granted); {
	case took < growBelow:
		r.window = min(2*r.window, MaxWindow)
	case took > shrinkAbove:
		r.window = max(r.window/2, r.base)
	}
	r.granted = now
}

// deliver takes a frame from the connection. It does not block.
func (r *Receiver) deliver(f Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	r.heard = time.Now()
	switch {
	case f.Kind == FrameKeepAlive:
		if f.Seq > r.expected { // it asks, behind all that was sent: whatever became of the nak for this gap, say it again
			r.nakFor = 0
			r.nakLocked()
		} else {
			r.ackLocked(FrameAck)
		}
	case f.Seq < r.expected: // sent again: our ack was lost, or is on its way
		r.armLocked()
	case f.Seq > r.expected:
		if r.ended {
			r.failLocked(&StreamError{Rule: fmt.Sprintf("frame %d follows the end frame %d", f.Seq, r.expected-1)})
			return
		}
		if f.Seq-r.expected > r.window+1024 { // each frame has a byte of credit or is one of a few
			r.failLocked(&StreamError{Rule: fmt.Sprintf("frame %d came when %d was expected", f.Seq, r.expected)})
			return
		}
		r.nakLocked()
	default:
		r.acceptLocked(f)
	}
}

func (r *Receiver) acceptLocked(f Frame) {
	if r.ended {
		r.failLocked(&StreamError{Rule: fmt.Sprintf("frame %d follows the end frame", f.Seq)})
		return
	}
	if r.eof && (f.Kind.counts() || f.Kind == FrameEOF) {
		r.failLocked(&StreamError{Rule: fmt.Sprintf("frame %d, of kind %d, follows the EOF frame", f.Seq, f.Kind)})
		return
	}
	if f.Kind.counts() {
		if len(f.Body) == 0 {
			r.failLocked(&StreamError{Rule: fmt.Sprintf("frame %d carries no bytes", f.Seq)})
			return
		}
		r.received += uint64(len(f.Body))
		if r.received > r.limit {
			r.failLocked(&StreamError{Rule: fmt.Sprintf("%d bytes came on a credit of %d", r.received, r.limit)})
			return
		}
	} else if f.Kind == FrameStarted && f.Seq != 0 {
		r.failLocked(&StreamError{Rule: fmt.Sprintf("a started frame is the first, this one is number %d", f.Seq)})
		return
	} else if r.bare++; r.bare > maxBareFrames {
		r.failLocked(&StreamError{Rule: fmt.Sprintf("more than %d frames without bytes are not taken", maxBareFrames)})
		return
	}
	r.expected++
	r.eof = r.eof || f.Kind == FrameEOF
	r.queue = append(r.queue, f)
	if f.Kind == FrameEnd {
		r.ended = true
		r.ackLocked(FrameAck)
	} else {
		r.armLocked()
	}
	r.wakeLocked()
}

// maxBareFrames bounds the frames that use no credit and are not yet taken.
const maxBareFrames = 1024

func (r *Receiver) wakeLocked() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// armLocked sees to it that an ack goes out soon.
func (r *Receiver) armLocked() {
	if !r.armed && r.err == nil {
		r.armed = true
		r.timer.Reset(ackAfter)
	}
}

func (r *Receiver) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.armed && r.err == nil {
		r.ackLocked(FrameAck)
	}
}

// ackLocked says what has arrived and grants credit for what was taken.
func (r *Receiver) ackLocked(kind FrameKind) {
	r.armed = false
	r.timer.Stop()
	r.limit = max(r.limit, r.taken+r.window)           // what was granted stays granted
	_ = r.publish(ackFrame(kind, r.expected, r.limit)) // lost: the sender asks again
}

// nakLocked asks once for each gap to have it filled.
func (r *Receiver) nakLocked() {
	if r.nakFor == r.expected+1 {
		r.armLocked()
		return
	}
	r.nakFor = r.expected + 1
	r.ackLocked(FrameNak)
}

// fail ends the stream on this side; Next returns what has arrived, then err.
func (r *Receiver) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(err)
}

func (r *Receiver) failLocked(err error) {
	if r.err == nil {
		r.err = err
	}
	r.armed = false
	r.timer.Stop()
	r.wakeLocked()
}
