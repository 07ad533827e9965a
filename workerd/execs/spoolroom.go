package execs

import (
	"math"
	"os"
	"sync"
)

// spoolRoom is what the files with full output take on disk together. When it is full, the oldest files of execs that
// have ended go.
type spoolRoom struct {
	mu   sync.Mutex // guards the fields below
	left int64
	old  []spoolFile // of execs that have ended, in the order of their ends
}

type spoolFile struct {
	path  string
	bytes int64
}

// newSpoolRoom makes room for a number of bytes; zero means no bound.
func newSpoolRoom(bytes int64) *spoolRoom {
	if bytes == 0 {
		bytes = math.MaxInt64
	}
	return &spoolRoom{left: bytes}
}

// take returns for how many of n bytes there is room, and takes it.
func (r *spoolRoom) take(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.left < n && len(r.old) > 0 {
		f := r.old[0]
		r.old = r.old[1:]
		_ = os.Remove(f.path) // deleted already: then there is room, too
		r.left += f.bytes
	}
	n = min(n, r.left)
	r.left -= n
	return n
}

// give returns room that was taken and not used.
func (r *spoolRoom) give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += n
}

// ended notes a file that is complete.
func (r *spoolRoom) ended(path string, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.old = append(r.old, spoolFile{path, bytes})
}
