package textedit

import (
	"bytes"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// span is a passage of the content.
type span struct{ start, end int }

// matcher finds passages of one content. What it derives from the content is made when it is first needed.
type matcher struct {
	content []byte
	exact   bool

	crlf   int    // 1 when the content has CRLF, -1 when not, 0 when nobody has looked
	unixed []byte // the content with LF for CRLF
	breaks []int32

	folded           []byte // the content's lines as fuzzy matching sees them
	foldedAt, lineAt []int32
}

func (m *matcher) hasCRLF() bool {
	if m.crlf == 0 {
		m.crlf = -1
		if bytes.Contains(m.content, []byte("\r\n")) {
			m.crlf = 1
		}
	}
	return m.crlf > 0
}

// find returns up to MaxCount places of a text.
func (m *matcher) find(old string) (found []span, fuzzy bool) {
	switch {
	case strings.Contains(old, "\r") || !strings.Contains(old, "\n") || !m.hasCRLF():
		for _, at := range indexes(m.content, old) {
			found = append(found, span{at, at + len(old)})
		}
	default:
		m.normalizeEndings()
		for _, at := range indexes(m.unixed, old) {
			found = append(found, span{m.fromUnixed(at), m.fromUnixed(at + len(old))})
		}
	}
	if len(found) > 0 || m.exact {
		return found, false
	}
	return m.findFuzzy(old), true
}

// indexes is where text is in content, overlapping matches too.
func indexes(content []byte, text string) (at []int) {
	sep := []byte(text)
	for from := 0; len(at) < MaxCount; {
		i := bytes.Index(content[from:], sep)
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + 1
	}
	return at
}

func (m *matcher) normalizeEndings() {
	if m.unixed != nil {
		return
	}
	m.unixed = make([]byte, 0, len(m.content))
	rest := m.content
	for {
		i := bytes.Index(rest, []byte("\r\n"))
		if i < 0 {
			m.unixed = append(m.unixed, rest...)
			return
		}
		m.unixed = append(m.unixed, rest[:i]...)
		m.breaks = append(m.breaks, int32(len(m.unixed))) // the content has at most 2 GiB: its users bound it far lower
		m.unixed = append(m.unixed, '\n')
		rest = rest[i+2:]
	}
}

// fromUnixed is the offset in the content of an offset in unixed: of a line feed the one of its CR.
func (m *matcher) fromUnixed(at int) int {
	return at + sort.Search(len(m.breaks), func(i int) bool { return int(m.breaks[i]) >= at })
}

// findFuzzy compares folded lines.
func (m *matcher) findFuzzy(old string) (found []span) {
	var want []byte
	rest := []byte(old)
	for {
		line, behind, more := bytes.Cut(rest, newline)
		want = appendFolded(want, line)
		if !more {
			break
		}
		want = append(want, '\n')
		rest = behind
	}
	if len(bytes.TrimSpace(want)) == 0 {
		return nil
	}
	m.foldLines()
	for _, at := range indexes(m.folded, string(want)) {
		start, ok := m.fromFolded(at, false)
		if !ok {
			continue
		}
		if end, ok := m.fromFolded(at+len(want), true); ok {
			found = append(found, span{start, end})
		}
	}
	return found
}

func (m *matcher) foldLines() {
	if m.folded != nil {
		return
	}
	m.folded = make([]byte, 0, len(m.content)+1)
	for rest, at := m.content, 0; ; {
		m.foldedAt = append(m.foldedAt, int32(len(m.folded)))
		m.lineAt = append(m.lineAt, int32(at))
		line, behind, more := bytes.Cut(rest, newline)
		m.folded = appendFolded(m.folded, line)
		if !more {
			return
		}
		m.folded = append(m.folded, '\n')
		at += len(line) + 1
		rest = behind
	}
}

// fromFolded is the offset in the content of an offset in folded; ok is false when it is inside of what one character
// of the content became.
func (m *matcher) fromFolded(at int, end bool) (offset int, ok bool) {
	line := sort.Search(len(m.foldedAt), func(i int) bool { return int(m.foldedAt[i]) > at }) - 1
	start, within := int(m.lineAt[line]), at-int(m.foldedAt[line])
	if within == 0 {
		return start, true
	}
	raw, _, _ := bytes.Cut(m.content[start:], newline)
	out := 0
	for seg := range segments(raw) {
		if out == within && !end {
			return start + seg.at, true
		}
		out += len(seg.folded)
		if out == within && end {
			return start + seg.at + seg.length, true
		}
		if out > within {
			return 0, false
		}
	}
	return start + len(raw), out == within // a match that begins with the line's end
}

// appendFolded adds a line as fuzzy matching sees it.
func appendFolded(to, line []byte) []byte {
	begin := len(to)
	if isASCII(line) {
		to = append(to, line...)
	} else {
		for seg := range segments(line) {
			to = append(to, seg.folded...)
		}
	}
	return to[:begin+len(bytes.TrimRightFunc(to[begin:], unicode.IsSpace))]
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// segment is a piece of a line that is folded as a whole.
type segment struct {
	at, length int
	folded     []byte
}

// segments yields a line's pieces; what is folded is valid until the next one.
func segments(line []byte) func(yield func(segment) bool) {
	return func(yield func(segment) bool) {
		var normal, buf []byte
		for at := 0; at < len(line); {
			n := norm.NFKC.NextBoundary(line[at:], true)
			normal = norm.NFKC.Append(normal[:0], line[at:at+n]...)
			buf = buf[:0]
			for rest := normal; len(rest) > 0; {
				r, k := utf8.DecodeRune(rest)
				if plain := plainRune(r); plain != 0 {
					buf = append(buf, plain)
				} else {
					buf = append(buf, rest[:k]...) // also a byte that is no UTF-8
				}
				rest = rest[k:]
			}
			if !yield(segment{at, n, buf}) {
				return
			}
			at += n
		}
	}
}

// plainRune is the ASCII form of a typographic character; zero for all else.
func plainRune(r rune) byte {
	switch {
	case r < utf8.RuneSelf:
		return 0
	case r >= 0x2018 && r <= 0x201b:
		return '\''
	case r >= 0x201c && r <= 0x201f:
		return '"'
	case r >= 0x2010 && r <= 0x2015, r == 0x2212:
		return '-'
	case r == 0xa0, r >= 0x2000 && r <= 0x200a, r == 0x202f, r == 0x205f, r == 0x3000:
		return ' '
	}
	return 0
}
