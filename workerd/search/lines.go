package search

import (
	"bytes"
	"context"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// binaryProbe is where a NUL makes a file binary.
	binaryProbe = 8 << 10
	// windowBytes is how much of a file is looked at together; most files fit.
	windowBytes = 256 << 10
	// maxLineBytes bounds the part of a line that is searched, and with it the memory of one core.
	maxLineBytes = 16 << 20
)

// fileResult is what was found in one file.
type fileResult struct {
	lines     []*sandbusv1.GrepLine
	matches   int
	bytes     int  // of the lines' text
	more      bool // there are matches that are not in lines
	full      bool // because of maxAnswerBytes
	binary    bool
	failed    bool // could not be read
	gone      bool // has vanished
	special   bool // is not what the directory said it is
	longLines int64
}

// scanner searches one file after the other. It is for one goroutine.
type scanner struct {
	g   *grep
	m   *matcher
	buf []byte

	// The rest is of one file.
	res  fileResult
	line int64 // number of the line at at
	at   int   // a place in the window up to which lines were counted
	left int   // lines of context that are still to come
	last int64 // number of the last line that was kept
	tail []*sandbusv1.GrepLine
}

func newScanner(g *grep) *scanner {
	return &scanner{g: g, m: newMatcher(g.pattern), buf: make([]byte, windowBytes)}
}

// file searches an open file.
func (s *scanner) file(ctx context.Context, fd int) fileResult {
	s.res, s.line, s.left, s.last, s.tail = fileResult{}, 1, 0, 0, nil
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileResult{failed: true}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileResult{special: true}
	}
	r := reader{ctx: ctx, fd: fd, size: st.Size}
	fill := 0
	for first := true; ; first = false {
		n, eof, err := r.fill(s.buf[fill:])
		if err != nil {
			s.res.failed = true
			return s.res
		}
		fill += n
		if first && bytes.IndexByte(s.buf[:min(fill, binaryProbe)], 0) >= 0 {
			return fileResult{binary: true}
		}
		end := fill
		if !eof {
			if end = s.window(&r, fill); end == 0 {
				continue
			}
		}
		if !s.scan(s.buf[:end], eof) || eof || ctx.Err() != nil {
			break
		}
		fill = copy(s.buf, s.buf[end:fill])
	}
	if len(s.buf) > 4*windowBytes {
		s.buf = make([]byte, windowBytes) // one file's long line is not every file's memory
	}
	return s.res
}

// window is how many of the first fill bytes are whole lines; zero: read on, in a larger buffer.
func (s *scanner) window(r *reader, fill int) int {
	if end := bytes.LastIndexByte(s.buf[:fill], '\n') + 1; end > 0 {
		return end
	}
	if len(s.buf) < maxLineBytes {
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
		return 0
	}
	s.res.longLines++
	s.buf[fill-1] = '\n' // the line ends here
	r.skipping = true
	return fill
}

// reader reads a regular file.
type reader struct {
	ctx      context.Context //nolint:containedctx // for the length of one file
	fd       int
	size     int64 // as it was when the file was opened
	got      int64
	skipping bool // up to the next newline
}

// fill reads until buf is full or the file is over, or the search.
func (r *reader) fill(buf []byte) (n int, eof bool, err error) {
	for n < len(buf) {
		var k int
		err = ignoringEINTR(func() (err error) {
			k, err = unix.Read(r.fd, buf[n:])
			return err
		})
		if err != nil {
			return n, false, err
		}
		r.got += int64(k)
		// Files of /proc say that they are empty. What is added to a file while it is searched is left for the next time:
		// somebody may write as fast as this reads.
		over := k == 0 || r.ctx.Err() != nil || (r.size > 0 && r.got >= r.size)
		if r.skipping {
			i := bytes.IndexByte(buf[n:n+k], '\n')
			if i < 0 {
				k = 0
			} else {
				r.skipping = false
				k = copy(buf[n:], buf[n+i+1:n+k])
			}
		}
		n += k
		if over {
			return n, true, nil
		}
	}
	return n, false, nil
}

// scan searches whole lines; false: the rest of the file is not wanted. final: there is no rest.
func (s *scanner) scan(text []byte, final bool) bool {
	s.at = 0
	s.m.reset(text)
	pos := 0
	for {
		h, ok := s.m.next(pos)
		if !ok {
			break
		}
		switch s.g.mode {
		case sandbusv1.GrepMode_GREP_MODE_FILES:
			s.res.matches = 1
			return false
		case sandbusv1.GrepMode_GREP_MODE_COUNTS:
			s.res.matches++
			pos = h.end + 1
			continue
		default:
		}
		pos = s.behind(text, pos, h.line)
		if s.res.matches > 0 && (s.res.matches == s.g.limit || s.res.bytes > maxAnswerBytes) {
			s.res.more, s.res.full = true, s.res.bytes > maxAnswerBytes
			s.behind(text, pos, len(text)) // perhaps fewer than asked for, when the window ends here
			return false
		}
		s.ahead(text, pos, h.line)
		s.keep(s.cut(text[h.line:h.end], s.number(text, h.line), h.from-h.line, h.to-h.line))
		s.res.matches++
		s.left = s.g.after
		pos = h.end + 1
	}
	if s.g.mode == sandbusv1.GrepMode_GREP_MODE_LINES {
		pos = s.behind(text, pos, len(text))
		if !final {
			s.remember(text, pos)
			s.number(text, len(text))
		}
	}
	return true
}

// number is the number of the line that begins at pos.
func (s *scanner) number(text []byte, pos int) int64 {
	s.line += int64(bytes.Count(text[s.at:pos], []byte{'\n'}))
	s.at = pos
	return s.line
}

func (s *scanner) keep(l *sandbusv1.GrepLine) {
	s.res.lines = append(s.res.lines, l)
	s.res.bytes += len(l.GetText()) + len(l.GetTextRaw())
	s.last = l.GetNumber()
}

// behind keeps the lines from pos to end that are context of a match before them, and returns where it stopped.
func (s *scanner) behind(text []byte, pos, end int) int {
	for ; s.left > 0 && pos < end; s.left-- {
		stop := lineEnd(text, pos)
		s.keep(s.context(text[pos:stop], s.number(text, pos)))
		pos = stop + 1
	}
	return min(pos, end)
}

// ahead keeps the lines before a match that are its context; none of those before pos.
func (s *scanner) ahead(text []byte, pos, line int) {
	if s.g.before == 0 {
		return
	}
	start, n := line, 0
	for start > pos && n < s.g.before {
		start = bytes.LastIndexByte(text[pos:start-1], '\n') + 1 + pos
		n++
	}
	if start == 0 { // the window begins here
		for _, l := range s.tail[max(0, len(s.tail)-(s.g.before-n)):] {
			if l.GetNumber() > s.last {
				s.keep(l)
			}
		}
	}
	for start < line {
		stop := lineEnd(text, start)
		s.keep(s.context(text[start:stop], s.number(text, start)))
		start = stop + 1
	}
}

// remember holds the last lines of a window from pos on, which may be context of a match in the next.
func (s *scanner) remember(text []byte, pos int) {
	if s.g.before == 0 {
		return
	}
	start, n := len(text), 0
	for start > pos && n < s.g.before {
		start = bytes.LastIndexByte(text[pos:start-1], '\n') + 1 + pos
		n++
	}
	var tail []*sandbusv1.GrepLine
	if start == 0 {
		tail = s.tail[max(0, len(s.tail)-(s.g.before-n)):]
	}
	for start < len(text) {
		stop := lineEnd(text, start)
		tail = append(tail, s.context(text[start:stop], s.number(text, start)))
		start = stop + 1
	}
	s.tail = tail
}

func lineEnd(text []byte, pos int) int {
	if i := bytes.IndexByte(text[pos:], '\n'); i >= 0 {
		return pos + i
	}
	return len(text)
}

func (s *scanner) context(line []byte, number int64) *sandbusv1.GrepLine {
	l := s.cut(line, number, 0, 0)
	l.Context = true
	return l
}

// cut makes the message for a line, of which it takes as many characters around from as a message may have.
func (s *scanner) cut(line []byte, number int64, from, to int) *sandbusv1.GrepLine {
	start, end := around(line, from, to, s.g.maxLine)
	l := &sandbusv1.GrepLine{
		Number: number, MatchStart: int32(min(max(from, start), end) - start), MatchEnd: int32(min(max(to, start), end) - start),
	}
	if start > 0 {
		l.CutBefore = int64(utf8.RuneCount(line[:start]))
	}
	if end < len(line) {
		l.CutAfter = int64(utf8.RuneCount(line[end:]))
	}
	l.Text, l.TextRaw = bus.ToText(string(line[start:end]))
	return l
}

// around is a part of a line of at most limit characters with what stands at from in its middle.
func around(line []byte, from, to, limit int) (start, end int) {
	if len(line) <= limit || utf8.RuneCount(line) <= limit {
		return 0, len(line)
	}
	room := limit - min(limit, utf8.RuneCount(line[from:min(to, from+limit*utf8.UTFMax)])) // beside the match
	start, end = from, from
	for n := 0; n < room/2 && start > 0; n++ {
		_, size := utf8.DecodeLastRune(line[:start])
		start -= size
	}
	left := limit - utf8.RuneCount(line[start:from])
	for ; left > 0 && end < len(line); left-- {
		_, size := utf8.DecodeRune(line[end:])
		end += size
	}
	for ; left > 0 && start > 0; left-- { // the line ends early
		_, size := utf8.DecodeLastRune(line[:start])
		start -= size
	}
	return start, end
}
