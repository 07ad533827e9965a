package execs

import (
	"context"
	"sync"
	"time"
)

// Stream says which of a command's outputs bytes came from.
type Stream uint8

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Log is the output of one exec: a head that is kept for good, and a ring of the latest bytes. Offsets count the bytes of
// both streams since the start.
type Log struct {
	mu      sync.Mutex // guards the fields below
	head    int64      // how many of the first bytes are kept
	tail    int64      // how many of the last bytes are kept
	buf     []byte     // the head, then the ring; it grows as it is needed
	end     int64      // offset behind the last byte
	runs    []run      // which stream the bytes belong to, in order; the first covers the oldest byte of the ring or earlier
	headers []run      // the same for the head
	totals  [2]int64   // bytes of each stream
	readers map[*Reader]struct{}
	closed  bool
	changed chan struct{} // closed and replaced at each change
}

// run is a stretch of bytes of one stream, up to an offset.
type run struct {
	stream Stream
	upTo   int64
}

// NewLog keeps the first head and the last tail bytes; tail is above zero.
func NewLog(head, tail int64) *Log {
	return &Log{head: head, tail: tail, readers: map[*Reader]struct{}{}, changed: make(chan struct{})}
}

// Write adds a command's output. It waits while there are readers and one that counts (see roomLocked) has not yet read
// what would be overwritten. The end of ctx ends the waiting; then the bytes are added all the same, and readers get gaps.
func (l *Log) Write(ctx context.Context, stream Stream, b []byte) {
	for len(b) > 0 {
		l.mu.Lock()
		n := int64(len(b))
		if room, limited := l.roomLocked(); limited && room < n {
			if n = room; n == 0 {
				changed := l.changed
				l.mu.Unlock()
				look := time.NewTimer(stallAfter) // somebody may have stopped meanwhile
				select {
				case <-changed:
					look.Stop()
					continue
				case <-look.C:
					continue
				case <-ctx.Done():
					look.Stop()
				}
				l.mu.Lock()
				n = int64(len(b))
			}
		}
		l.addLocked(stream, b[:n])
		l.mu.Unlock()
		b = b[n:]
	}
}

// stallAfter is how long a reader may take nothing before it holds the command back no longer, if another one reads on.
const stallAfter = time.Second

// roomLocked is how many bytes may be added without overtaking a reader that counts: the slowest of those that take what
// is there, or, when none does, the fastest. limited is false when nobody reads.
func (l *Log) roomLocked() (room int64, limited bool) {
	slowest, fastest := int64(-1), int64(-1)
	for r := range l.readers {
		if r.patient {
			continue
		}
		fastest = max(fastest, r.offset)
		if r.offset >= l.end || time.Since(r.moved) < stallAfter {
			if slowest < 0 || r.offset < slowest {
				slowest = r.offset
			}
		}
	}
	if fastest < 0 {
		return 0, false
	}
	if slowest < 0 {
		slowest = fastest
	}
	return max(0, l.tail-max(0, l.end-max(slowest, min(l.head, l.end)))), true
}

func (l *Log) addLocked(stream Stream, b []byte) {
	l.totals[stream] += int64(len(b))
	if l.end < l.head {
		n := min(int64(len(b)), l.head-l.end)
		l.buf = append(l.buf, b[:n]...)
		l.end += n
		l.headers = addRun(l.headers, stream, l.end)
		b = b[n:]
	}
	if len(b) > 0 {
		if over := int64(len(b)) - l.tail; over > 0 { // only its last part will be there
			l.end += over
			b = b[over:]
		}
		for len(b) > 0 {
			at := (l.end - l.head) % l.tail
			n := min(int64(len(b)), l.tail-at)
			if need := l.head + at + n; int64(len(l.buf)) < need {
				l.buf = append(l.buf, make([]byte, need-int64(len(l.buf)))...)
			}
			copy(l.buf[l.head+at:], b[:n])
			l.end += n
			b = b[n:]
		}
		l.runs = addRun(l.runs, stream, l.end)
		l.forgetLocked()
	}
	l.wakeLocked()
}

func addRun(runs []run, stream Stream, upTo int64) []run {
	if n := len(runs); n > 0 && runs[n-1].stream == stream {
		runs[n-1].upTo = upTo
		return runs
	}
	return append(runs, run{stream, upTo})
}

// forgetLocked drops the runs of bytes that are overwritten.
func (l *Log) forgetLocked() {
	oldest := l.oldestLocked()
	i := 0
	for i < len(l.runs) && l.runs[i].upTo <= oldest {
		i++
	}
	if i > 64 || i == len(l.runs) { // not for each byte
		l.runs = append(l.runs[:0], l.runs[i:]...)
	}
}

// oldestLocked is the offset of the oldest byte in the ring.
func (l *Log) oldestLocked() int64 { return max(l.head, l.end-l.tail) }

func (l *Log) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Close says that there will be no more output.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.wakeLocked()
	}
}

// Totals is how many bytes each stream had.
func (l *Log) Totals() (stdout, stderr int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.totals[Stdout], l.totals[Stderr]
}

// Readers is how many readers there are.
func (l *Log) Readers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.readers)
}

// Reader reads a log at its own pace. It is for one goroutine.
type Reader struct {
	log     *Log
	patient bool  // behind the head it waits for the end, and holds nobody back
	offset  int64 // what it has read; changed under the log's lock
	moved   time.Time
}

// Read opens a reader at an offset. A patient one gets the head, and then, when the command has ended, the tail.
func (l *Log) Read(offset int64, patient bool) *Reader {
	r := &Reader{log: l, offset: offset, patient: patient, moved: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = struct{}{}
	return r
}

// Close takes the reader away: it holds nobody back any more.
func (r *Reader) Close() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	delete(r.log.readers, r)
	r.log.wakeLocked()
}

// Part is what Next found.
type Part struct {
	Stream Stream
	Bytes  int   // bytes that were copied
	Gap    int64 // bytes that are no longer there; then Bytes is zero
	End    bool  // there is nothing more, or will be none
}

// Next copies what is there behind the reader's offset, of one stream, into buf, or waits for it unless follow is false.
// Errors: the context's.
func (r *Reader) Next(ctx context.Context, buf []byte, follow bool) (Part, error) {
	for {
		p, changed := r.next(buf)
		if p != (Part{}) {
			return p, nil
		}
		if !follow {
			return Part{End: true}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Part{}, context.Cause(ctx)
		}
	}
}

// Ready is how many bytes are there behind the reader's offset, and whether there will be no more.
func (r *Reader) Ready() (n int64, closed bool, changed <-chan struct{}) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end - r.offset, l.closed, l.changed
}

func (r *Reader) next(buf []byte) (Part, <-chan struct{}) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.offset >= l.end {
		return Part{End: l.closed}, l.changed
	}
	if r.offset >= l.head {
		if r.patient && !l.closed {
			return Part{}, l.changed
		}
		if oldest := l.oldestLocked(); r.offset < oldest {
			gap := oldest - r.offset
			r.offset, r.moved = oldest, time.Now()
			return Part{Gap: gap}, l.changed
		}
	}
	p := l.copyLocked(r.offset, buf)
	r.offset += int64(p.Bytes)
	r.moved = time.Now()
	if !r.patient {
		l.wakeLocked() // there is room
	}
	return p, l.changed
}

// copyLocked copies bytes of one stream from an offset that is there.
func (l *Log) copyLocked(offset int64, buf []byte) Part {
	runs, limit := l.runs, l.end
	if offset < l.head {
		runs, limit = l.headers, min(l.end, l.head)
	}
	i := 0
	for runs[i].upTo <= offset {
		i++
	}
	n := min(int64(len(buf)), min(runs[i].upTo, limit)-offset)
	if offset < l.head {
		return Part{Stream: runs[i].stream, Bytes: copy(buf, l.buf[offset:offset+n])}
	}
	at := (offset - l.head) % l.tail
	n = min(n, l.tail-at)
	return Part{Stream: runs[i].stream, Bytes: copy(buf, l.buf[l.head+at:l.head+at+n])}
}
