package command

import "bytes"

// The marks of one command, each behind its secret.
const (
	markBegin = '<' // nothing before it is the command's
	markEnd   = '=' // nothing of the command's own behind it; a line with its status follows
	markFree  = '>' // nobody holds the output any more
)

// maxStatus is the longest line behind an end mark, in bytes, with its newline.
const maxStatus = 64

// scanner finds the marks in one output of a shell. Its bytes may come in pieces that end anywhere.
type scanner struct {
	secret  []byte
	pending []byte // may be the beginning of a mark
	began   bool
	ended   bool
	freed   bool
	status  string // behind the end mark
	stray   int64  // bytes before the begin mark
	broken  bool   // an end mark without its line
}

// feed takes bytes and hands on those that are output.
func (s *scanner) feed(b []byte, emit func([]byte)) {
	if len(s.pending) > 0 {
		b = append(s.pending, b...)
		s.pending = nil
	}
	for !s.freed && !s.broken {
		i := bytes.Index(b, s.secret)
		if i < 0 {
			keep := partial(b, s.secret)
			s.output(b[:len(b)-keep], emit)
			s.pending = bytes.Clone(b[len(b)-keep:])
			return
		}
		s.output(b[:i], emit)
		n := s.mark(b[i+len(s.secret):])
		if n == 0 { // not all of it is there
			s.pending = bytes.Clone(b[i:])
			return
		}
		b = b[i+len(s.secret)+n:]
	}
}

// mark takes what stands behind the secret, and says how long it is; zero when it is not all there.
func (s *scanner) mark(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case markBegin:
		s.began = true
	case markFree:
		s.freed = true
	case markEnd:
		line, _, whole := bytes.Cut(b[1:], []byte("\n"))
		if !whole && len(b) <= maxStatus {
			return 0
		}
		if !whole {
			s.broken = true
			return len(b)
		}
		s.ended, s.status = true, string(line)
		return 2 + len(line)
	default:
		s.broken = true
	}
	return 1
}

func (s *scanner) output(b []byte, emit func([]byte)) {
	switch {
	case len(b) == 0:
	case !s.began:
		s.stray += int64(len(b))
	default:
		emit(b)
	}
}

// rest hands on what was held back, when no more will come.
func (s *scanner) rest(emit func([]byte)) {
	if !s.freed && !s.broken {
		s.output(s.pending, emit)
	}
	s.pending = nil
}

// partial says how many bytes at the end of b may be the beginning of a mark.
func partial(b, secret []byte) int {
	for n := min(len(b), len(secret)-1); n > 0; n-- {
		if bytes.HasSuffix(b, secret[:n]) {
			return n
		}
	}
	return 0
}
