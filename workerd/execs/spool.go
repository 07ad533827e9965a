package execs

import (
	"os"
	"sync"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// spool is the file with an exec's full output. A nil spool is none.
type spool struct {
	mu      sync.Mutex // guards the fields below
	file    *os.File
	path    string
	room    int64
	omitted int64
	err     error
}

// newSpool makes the file, with mode 0600. A directory that takes none is no reason not to run: the end says so.
func newSpool(dir string, limit int64) *spool {
	f, err := os.CreateTemp(dir, "exec-*.log")
	s := &spool{file: f, room: limit, err: err}
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
	n := min(int64(len(b)), s.room)
	k, err := s.file.Write(b[:n])
	s.err = err
	s.room -= int64(k)
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
	}
	end.SpoolPath, end.SpoolOmitted = s.path, s.omitted
	if s.err != nil {
		end.SpoolError = s.err.Error()
	}
}
