package proc

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// IdleGrace is how long the pipes must be quiet, after the leader's end, before a process that still holds them is
	// waited for no longer. Each chunk starts it anew. worker.md says 100 ms; but case C02 wants a line that comes 300 ms
	// after the leader's end, and C01 an end within 500 ms: this is between them, with room for a slow machine.
	IdleGrace = 400 * time.Millisecond
	// DrainCap ends the waiting for a holder that does not fall silent.
	DrainCap = 5 * time.Second

	readBytes = 64 << 10
)

// Drain reads the output pipes of one command. Add the pipes, call LeaderEnded when the leader process has ended, then
// Wait.
type Drain struct {
	wg    sync.WaitGroup
	pipes []*os.File
	ended atomic.Int64 // when the leader ended, in nanoseconds since epoch; zero before
	last  atomic.Int64 // when the last chunk came, likewise
	first atomic.Int64 // when the first chunk came, likewise
	held  atomic.Bool
	busy  atomic.Int32 // how many chunks are being taken
}

// epoch makes monotonic times fit into an atomic.
var epoch = time.Now()

func sinceEpoch() int64 { return int64(time.Since(epoch)) }

// buffers are reused: a fast exec needs two for a moment.
var buffers = sync.Pool{New: func() any { b := make([]byte, readBytes); return &b }}

// Add reads a pipe and gives each chunk to take, until end of file. take may block, which holds the writer back; it
// must not keep the chunk; when it returns false, what follows is read and thrown away. The Drain closes the pipe.
func (d *Drain) Add(pipe *os.File, take func([]byte) bool) {
	d.pipes = append(d.pipes, pipe)
	d.wg.Go(func() {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		defer func() { _ = pipe.Close() }() // read only: nothing to lose
		for {
			n, err := pipe.Read(*buf)
			if n > 0 {
				d.chunk((*buf)[:n], &take)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if d.rearm(pipe) {
					continue
				}
				d.rest(pipe, *buf, &take)
				return
			}
			if err != nil { // io.EOF, or a pipe that is broken: there is no more
				return
			}
			if d.ended.Load() != 0 {
				d.rearm(pipe)
			}
		}
	})
}

func (d *Drain) chunk(b []byte, take *func([]byte) bool) {
	now := sinceEpoch()
	d.first.CompareAndSwap(0, now)
	d.last.Store(now)
	d.busy.Add(1)
	if *take != nil && !(*take)(b) {
		*take = nil
	}
	d.busy.Add(-1)
	d.last.Store(sinceEpoch()) // take may have waited for credit: the holder had no chance to write
}

// rearm sets the pipe's deadline from what is known now; false means that it is over.
func (d *Drain) rearm(pipe *os.File) bool {
	now, ended := sinceEpoch(), d.ended.Load()
	until := min(max(d.last.Load(), ended)+int64(IdleGrace), ended+int64(DrainCap))
	if until <= now {
		return false
	}
	return pipe.SetReadDeadline(epoch.Add(time.Duration(until))) == nil
}

// rest takes what is in a pipe that is still held, without waiting: the leader's last words may be there.
func (d *Drain) rest(pipe *os.File, buf []byte, take *func([]byte) bool) {
	d.held.Store(true)
	if pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	for limit := 1 << 20; limit > 0; limit -= len(buf) { // a pipe holds at most that; a holder may go on writing
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, err = unix.Read(int(fd), buf)
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		d.chunk(buf[:n], take)
	}
}

// LeaderEnded starts the grace.
func (d *Drain) LeaderEnded() {
	now := sinceEpoch()
	d.ended.Store(now)
	for _, p := range d.pipes {
		_ = p.SetReadDeadline(epoch.Add(time.Duration(now) + IdleGrace)) // fails when it is closed: at end of file
	}
}

// Wait returns when all pipes are closed, and says whether a process still held one.
func (d *Drain) Wait() (held bool) {
	d.wg.Wait()
	return d.held.Load()
}

// Quiet is how long no output has come, counted from start at most. A command that is held back is not quiet.
func (d *Drain) Quiet(start time.Time) time.Duration {
	if d.busy.Load() > 0 {
		return 0
	}
	last := max(d.last.Load(), int64(start.Sub(epoch)))
	return time.Duration(sinceEpoch() - last)
}

// FirstByte is when the first output came, or the zero time.
func (d *Drain) FirstByte() time.Time {
	if n := d.first.Load(); n != 0 {
		return epoch.Add(time.Duration(n))
	}
	return time.Time{}
}
