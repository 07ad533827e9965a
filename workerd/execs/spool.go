package execs

import (
	"os"
	"sync"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// spool is the file with an exec's full output. A nil spool is none.
type spool struct {
	total *spoolRoom

	mu      sync.Mutex // guards the fields below
	written int64
	file    *os.File
	path    string
	room    int64
	omitted int64
	err     error
}

// newSpool makes the file, with mode 0600. A directory that takes none is no reason not to run: the end says so.
func newSpool(dir string, limit int64, total *spoolRoom) *spool {
	f, err := os.CreateTemp(dir, "exec-*.log")
	s := &spool{total: total, file: f, room: limit, err: err}
	if err == nil {
		s.path = f.Name()
	}
	return s
}

func (s *spool) write(b []byte) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.omitted += int64(len(b))
		return
	}
	want := min(int64(len(b)), s.room)
	n := s.total.take(want)
	if n < want {
		s.room = n // what follows a gap would look as if it belonged there
	}
	k, err := s.file.Write(b[:n])
	s.err = err
	s.total.give(n - int64(k))
	s.room -= int64(k)
	s.written += int64(k)
	s.omitted += int64(len(b) - k)
}

// close completes the exec's end with what is to be known of the file.
func (s *spool) close(end *sandbusv1.StreamEnd) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		if err := s.file.Close(); s.err == nil {
			s.err = err
		}
		s.total.ended(s.path, s.written)
	}
	end.SpoolPath, end.SpoolOmitted = s.path, s.omitted
	if s.err != nil {
		end.SpoolError = s.err.Error()
	}
}
