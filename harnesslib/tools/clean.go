package tools

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// tail keeps the end of an output as a model shall see it: without ANSI sequences, without the lines that a carriage
// return overwrites, as UTF-8. It holds little more than MaxBytes, whatever comes. There are libraries that strip
// sequences from a text; none takes it in pieces that end anywhere.
type tail struct {
	state escState
	cr    bool     // a carriage return came: what follows overwrites the line, unless it is a newline
	line  []byte   // the present line, or its end
	cut   bool     // the beginning of the present line is gone
	lines []string // the last whole lines
	size  int      // of lines, with newlines
	total int      // lines that there were, the present one not counted
}

// escState is where in a sequence of ECMA-48 the output is.
type escState int

const (
	plain        escState = iota
	escape                // behind ESC
	intermediate          // behind ESC and a byte of 0x20 to 0x2f
	csi                   // in ESC [ … up to a byte of 0x40 to 0x7e
	str                   // in a string (OSC, DCS, SOS, PM, APC) up to BEL or ESC \
	strEscape             // behind ESC in a string
)

func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if t.state == plain && !t.cr { // the usual: text up to the next byte that means something
			i := bytes.IndexFunc(b, func(c rune) bool { return c < ' ' || c == 0x7f })
			if i < 0 {
				i = len(b)
			}
			t.put(b[:i])
			if b = b[i:]; len(b) == 0 {
				break
			}
		}
		t.step(b[0])
		b = b[1:]
	}
	return n, nil
}

func (t *tail) step(c byte) {
	switch t.state {
	case escape:
		switch {
		case c == '[':
			t.state = csi
		case strings.IndexByte("]PX^_", c) >= 0:
			t.state = str
		case c >= 0x20 && c <= 0x2f:
			t.state = intermediate
		default:
			t.state = plain
		}
		return
	case intermediate:
		if c < 0x20 || c > 0x2f {
			t.state = plain
		}
		return
	case csi:
		if c >= 0x40 && c <= 0x7e {
			t.state = plain
		} else if c == '\n' { // no sequence has one: it was none
			t.state = plain
			t.step(c)
		}
		return
	case str:
		switch c {
		case 0x07:
			t.state = plain
		case 0x1b:
			t.state = strEscape
		case '\n': // as above
			t.state = plain
			t.step(c)
		}
		return
	case strEscape:
		t.state = str
		if c == '\\' {
			t.state = plain
		}
		return
	case plain:
	}
	switch {
	case c == '\n':
		t.endLine()
	case c == '\r':
		t.cr = true
	case c == 0x1b:
		t.state = escape
	case c == '\t' || (c >= ' ' && c != 0x7f):
		t.put([]byte{c})
	}
}

func (t *tail) put(b []byte) {
	if len(b) == 0 {
		return
	}
	if t.cr {
		t.line, t.cr, t.cut = t.line[:0], false, false
	}
	t.line = append(t.line, b...)
	if len(t.line) > 4*MaxBytes {
		t.line = append(t.line[:0], t.line[len(t.line)-MaxBytes-utf8.UTFMax:]...)
		t.cut = true
	}
}

func (t *tail) endLine() {
	t.total++
	t.keep(t.text())
	t.line, t.cr, t.cut = t.line[:0], false, false
}

// text is the present line as UTF-8, or as much of its end as is shown.
func (t *tail) text() string {
	b := t.line
	if len(b) > MaxBytes+utf8.UTFMax {
		b = b[len(b)-MaxBytes-utf8.UTFMax:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func (t *tail) keep(line string) {
	t.lines = append(t.lines, line)
	t.size += len(line) + 1
	// The first line that does not fit is kept, too: without it there would be no telling that something was cut.
	for len(t.lines) > MaxLines+1 || (len(t.lines) > 1 && t.size-len(t.lines[0])-1 > 2*MaxBytes) {
		t.size -= len(t.lines[0]) + 1
		t.lines = t.lines[1:]
	}
}

// view is the end of an output within the limits.
type view struct {
	text      string
	total     int  // lines in all
	shown     int  // lines in text
	lastBytes int  // when of the last line only the end is shown: how many bytes; else zero
	byBytes   bool // MaxBytes cut it, not MaxLines
}

func (v view) isCut() bool { return v.shown < v.total || v.lastBytes > 0 }

// view is the end as it is now. A final newline is no further line.
func (t *tail) view() view {
	lines, total := t.lines, t.total
	cut := false
	if len(t.line) > 0 {
		lines, total, cut = append(slices.Clip(lines), t.text()), total+1, t.cut
	}
	v := view{total: total}
	size, from := 0, len(lines)
	for from > 0 && v.shown < MaxLines {
		n := len(lines[from-1])
		if v.shown > 0 {
			n++
		}
		if size+n > MaxBytes || (cut && v.shown == 0) {
			v.byBytes = true
			break
		}
		size, from, v.shown = size+n, from-1, v.shown+1
	}
	if v.shown == 0 && len(lines) > 0 { // the last line alone is too long
		last := lines[len(lines)-1]
		at := max(0, len(last)-MaxBytes)
		for at < len(last) && !utf8.RuneStart(last[at]) {
			at++
		}
		v.text, v.shown, v.lastBytes = last[at:], 1, len(last)-at
		return v
	}
	v.text = strings.Join(lines[from:], "\n")
	return v
}
