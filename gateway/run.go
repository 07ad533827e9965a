package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib/transport"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

const (
	// runWindow is how many bytes of output may wait for the slowest reader of a run before the command is held back.
	runWindow = 256 << 10
	// runKept is how many bytes of output a run keeps while it runs, for callers that join.
	runKept = 1 << 20
	// endKept is how many bytes of output are kept with a run's end, and keptRuns and keptFor how many ends for how long.
	endKept  = 16 << 10
	keptRuns = 4096
	keptFor  = 10 * time.Minute
)

// runKey is what names a run: req_id is unique within a caller at best.
type runKey struct {
	harness, sandbox string
	req              uint64
}

// fingerprint is the content of a request.
func fingerprint(e *sandboxv1.Exec) [sha256.Size]byte {
	h := sha256.New()
	var head [14]byte
	binary.BigEndian.PutUint64(head[:], uint64(len(e.GetCommand())))
	binary.BigEndian.PutUint32(head[8:], e.GetTimeoutS())
	if e.GetStreaming() {
		head[12] = 1
	}
	_, _ = h.Write(head[:]) // a hash never fails
	_, _ = h.Write([]byte(e.GetCommand()))
	_, _ = h.Write(e.GetStdin())
	return [sha256.Size]byte(h.Sum(nil))
}

// execID is the name of a run at the hub: the same at every replica, for the same request of the same caller.
func (k runKey) execID(content [sha256.Size]byte) string {
	return k.execPrefix() + hex.EncodeToString(content[:16])
}

// execPrefix is what the exec ids of a run begin with, whatever its content.
func (k runKey) execPrefix() string {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(nil, k.req), k.harness+"."+k.sandbox...))
	return "gw-" + hex.EncodeToString(sum[:8]) + "-"
}

// run is one command on its way, with what it has printed.
type run struct {
	key     runKey
	content [sha256.Size]byte
	cancel  context.CancelCauseFunc

	mu      sync.Mutex // guards the fields below
	events  []*sandboxv1.ExecEvent
	first   int   // the number of events[0]
	start   int64 // bytes of output before it
	total   int64 // bytes of output so far
	fast    bool  // the fast tier has served it
	readers map[*reader]bool
	served  int64 // bytes that the reader which left last had got
	linger  *time.Timer
	ended   bool
	err     error // why there is no last event, once ended
	at      time.Time
	changed chan struct{}
}

// reader is one stream that a run's events go to.
type reader struct {
	next  int   // the number of its next event
	taken int64 // bytes of output that it has got
}

// The causes with which a run ends early.
var (
	errAborted    = errors.New("the caller asked for an abort")
	errCallerGone = errors.New("the caller's stream has ended, and nobody came back for the run")
)

func newRun(key runKey, content [sha256.Size]byte, cancel context.CancelCauseFunc) *run {
	return &run{key: key, content: content, cancel: cancel, readers: map[*reader]bool{}, changed: make(chan struct{})}
}

func (r *run) wakeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// join makes a reader that begins at the start; ok is false when the start is no longer kept.
func (r *run) join() (rd *reader, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first > 0 && !r.ended {
		return nil, false
	}
	if r.linger != nil {
		r.linger.Stop()
	}
	rd = &reader{next: r.first, taken: r.start}
	r.readers[rd] = true
	return rd, true
}

// leave ends a reader. When it was the last of a run that goes on, the run is aborted unless somebody joins in time.
func (r *run) leave(rd *reader, rejoin time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, rd)
	if len(r.readers) > 0 || r.ended {
		r.trimLocked()
		r.wakeLocked()
		return
	}
	r.served = rd.taken
	r.linger = time.AfterFunc(rejoin, func() {
		r.mu.Lock()
		left := len(r.readers) == 0
		r.mu.Unlock()
		if left {
			r.cancel(errCallerGone)
		}
	})
}

// slowestLocked is how many bytes the slowest reader has got.
func (r *run) slowestLocked() int64 {
	if len(r.readers) == 0 {
		return r.served
	}
	slowest := r.total
	for rd := range r.readers {
		slowest = min(slowest, rd.taken)
	}
	return slowest
}

// put adds output as soon as the slowest reader has room for it. Output of a run that is to end, and for which there is
// no room, is dropped.
func (r *run) put(ctx context.Context, data []byte, s sandboxv1.Stream) {
	for len(data) > 0 {
		n := min(len(data), maxChunk)
		for {
			r.mu.Lock()
			if r.total-r.slowestLocked() < runWindow {
				r.addLocked(append([]byte(nil), data[:n]...), s)
				r.mu.Unlock()
				break
			}
			changed := r.changed
			r.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
		data = data[n:]
	}
}

// add adds output that is in memory already, without waiting; it belongs to the run from then on.
func (r *run) add(data []byte, s sandboxv1.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(data) > 0 {
		n := min(len(data), maxChunk)
		r.addLocked(data[:n], s)
		data = data[n:]
	}
}

func (r *run) addLocked(data []byte, s sandboxv1.Stream) {
	chunk := &sandboxv1.Chunk{ReqId: r.key.req, Data: data, Stream: s}
	r.events = append(r.events, &sandboxv1.ExecEvent{Event: &sandboxv1.ExecEvent_Chunk{Chunk: chunk}})
	r.total += int64(len(data))
	r.wakeLocked()
}

// finish ends a run: with its last event, or with an error when nobody knows how it ended.
func (r *run) finish(last *sandboxv1.ExecEvent, fast bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fast = fast
	if r.linger != nil {
		r.linger.Stop()
	}
	if last != nil {
		r.events = append(r.events, last)
	}
	r.ended, r.err, r.at = true, err, time.Now()
	r.trimLocked()
	r.wakeLocked()
}

// trimLocked lets go of what everybody has got and nobody who joins needs: while the run goes on, of the oldest output;
// after its end, of all or nothing.
func (r *run) trimLocked() {
	slowest := r.slowestLocked()
	if r.ended {
		if n := len(r.events) - 1; n > 0 && r.total-r.start > endKept && (slowest == r.total || len(r.readers) == 0) {
			r.events, r.first, r.start = r.events[n:], r.first+n, r.total
		}
		return
	}
	for len(r.events) > 0 && r.total-r.start > runKept {
		size := int64(len(r.events[0].GetChunk().GetData()))
		if r.start+size > slowest {
			return
		}
		r.events[0] = nil
		r.events, r.first, r.start = r.events[1:], r.first+1, r.start+size
	}
}

// tier is what has served the run.
func (r *run) tier() transport.Tier {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fast {
		return transport.TierFast
	}
	return transport.TierStream
}

// take waits for a reader's next event. over says that there are no more.
func (r *run) take(ctx context.Context, rd *reader) (ev *sandboxv1.ExecEvent, over bool, err error) {
	for {
		r.mu.Lock()
		if i := rd.next - r.first; i < len(r.events) {
			ev := r.events[i]
			r.mu.Unlock()
			return ev, false, nil
		}
		ended, err, changed := r.ended, r.err, r.changed
		r.mu.Unlock()
		if ended {
			return nil, true, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// got says that a reader has passed on the event that take gave it.
func (r *run) got(rd *reader, ev *sandboxv1.ExecEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rd.next++
	rd.taken += int64(len(ev.GetChunk().GetData()))
	r.trimLocked()
	r.wakeLocked()
}

// hasEnded says whether the run has ended.
func (r *run) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// runs are those that run, and the latest that have ended.
type runs struct {
	mu    sync.Mutex // guards the fields below; a run's own lock is taken under it
	all   map[runKey]*run
	order []*run // those that have ended, the oldest first
}

func newRuns() *runs { return &runs{all: map[runKey]*run{}} }

// errOtherContent says that a req_id names another run that goes on.
var errOtherContent = errors.New("req_id names a run with other content that has not ended")

// enter returns the run of a request, and whether it is a new one, which the caller must start and then end.
func (t *runs) enter(key runKey, content [sha256.Size]byte, cancel context.CancelCauseFunc) (r *run, fresh bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	if old := t.all[key]; old != nil {
		if old.content == content {
			return old, false, nil
		}
		if !old.hasEnded() {
			return nil, false, errOtherContent
		}
	}
	r = newRun(key, content, cancel)
	t.all[key] = r
	return r, true, nil
}

// forgetLocked drops ends that are old or too many.
func (t *runs) forgetLocked() {
	for len(t.order) > 0 && (len(t.order) > keptRuns || time.Since(t.order[0].at) > keptFor) {
		if t.all[t.order[0].key] == t.order[0] {
			delete(t.all, t.order[0].key)
		}
		t.order = t.order[1:]
	}
}

// end takes note of a run that has ended. One of which nobody knows how it ended is forgotten: a repeated request may
// find it at the hub.
func (t *runs) end(r *run, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.all[r.key] != r: // another one has its name
	case known:
		t.order = append(t.order, r)
	default:
		delete(t.all, r.key)
	}
}

// find returns the run of a key, nil for none.
func (t *runs) find(key runKey) *run {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[key]
}
