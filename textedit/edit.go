package textedit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Edit replaces one passage.
type Edit struct {
	Old, New string
	// Bytes says that Old is meant as bytes; otherwise a match on a line that is not UTF-8 is refused, because whoever
	// wrote Old cannot have seen that line as it is.
	Bytes bool
}

// Reason is why an edit cannot be made.
type Reason int

// The reasons.
const (
	Empty     Reason = iota + 1 // Old has no byte
	NoMatch                     // Old is not in the content
	Ambiguous                   // Old is in the content more than once
	Overlap                     // the passage shares bytes with another edit's
	Identical                   // the replacement equals the passage
	NotUTF8                     // the passage's line is not UTF-8, and Old is text
)

// Fault is why one edit cannot be made.
type Fault struct {
	Index       int // of the edit, from zero
	Reason      Reason
	Count       int    // of Ambiguous: how many matches, counted up to MaxCount
	Lines       []int  // of Ambiguous: where the first ones begin, from one
	Other       int    // of Overlap: the index of the other edit
	Closest     string // of NoMatch: the passage that is most like Old; empty when none is
	ClosestLine int    // the line on which Closest begins, from one
}

const (
	// MaxCount is where the counting of matches ends.
	MaxCount = 1000
	maxLines = 10
)

// String says for people what is wrong.
func (f *Fault) String() string {
	switch f.Reason {
	case Empty:
		return fmt.Sprintf("edit %d: the old text is empty", f.Index+1)
	case NoMatch:
		s := fmt.Sprintf("edit %d: the old text is not in the file", f.Index+1)
		if f.Closest != "" {
			s += fmt.Sprintf("; the closest passage begins on line %d:\n%s", f.ClosestLine, f.Closest)
		}
		return s
	case Ambiguous:
		count := fmt.Sprint(f.Count)
		if f.Count >= MaxCount {
			count = "at least " + count
		}
		where := strings.Trim(fmt.Sprint(f.Lines), "[]")
		return fmt.Sprintf("edit %d: the old text is in the file %s times (lines %s): give more of its surroundings",
			f.Index+1, count, strings.ReplaceAll(where, " ", ", "))
	case Overlap:
		return fmt.Sprintf("edit %d: its passage overlaps that of edit %d: make one edit of both", f.Index+1, f.Other+1)
	case Identical:
		return fmt.Sprintf("edit %d: the new text is what is there already", f.Index+1)
	case NotUTF8:
		return fmt.Sprintf("edit %d: the passage's line is not UTF-8: give the old text as bytes", f.Index+1)
	}
	return fmt.Sprintf("edit %d: reason %d", f.Index+1, f.Reason)
}

// Place is a replacement in the content as it was.
type Place struct {
	Offset int    // of the passage, in bytes
	Length int    // of the passage, in bytes
	New    string // what comes in its place, with the content's line endings
	Line   int    // where the passage begins, from one
	Fuzzy  bool   // the passage is not exactly Old
}

func (p Place) end() int { return p.Offset + p.Length }

// Apply makes the edits. It returns the new content and where each edit was made, in the order of the edits; or the
// edits that cannot be made, and then nothing else. exact turns fuzzy matching off.
func Apply(content []byte, edits []Edit, exact bool) ([]byte, []Place, []Fault) {
	m := &matcher{content: content, exact: exact}
	places := make([]Place, len(edits))
	var faults []Fault
	for i, e := range edits {
		p, f := m.locate(e)
		if f != nil {
			f.Index = i
			faults = append(faults, *f)
			continue
		}
		places[i] = p
	}
	if len(faults) > 0 {
		return nil, nil, faults
	}
	order := inOrder(places)
	size := len(content)
	for i, at := range order {
		size += len(places[at].New) - places[at].Length
		if i > 0 && places[order[i-1]].end() > places[at].Offset {
			first, second := min(order[i-1], at), max(order[i-1], at)
			faults = append(faults, Fault{Index: second, Reason: Overlap, Other: first})
		}
	}
	if len(faults) > 0 {
		return nil, nil, faults
	}
	out := make([]byte, 0, size)
	done, line := 0, 1
	for _, at := range order {
		p := &places[at]
		line += bytes.Count(content[done:p.Offset], newline)
		p.Line = line
		line += bytes.Count(content[p.Offset:p.end()], newline)
		out = append(out, content[done:p.Offset]...)
		out = append(out, p.New...)
		done = p.end()
	}
	return append(out, content[done:]...), places, nil
}

var newline = []byte{'\n'}

// inOrder lists the indexes of places by their offsets.
func inOrder(places []Place) []int {
	order := make([]int, len(places))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return places[a].Offset - places[b].Offset })
	return order
}

const bom = "\xef\xbb\xbf"

// locate finds the passage of an edit.
func (m *matcher) locate(e Edit) (Place, *Fault) {
	old, replacement := e.Old, e.New
	if strings.HasPrefix(old, bom) && bytes.HasPrefix(m.content, []byte(bom)) { // it stays
		old, replacement = old[len(bom):], strings.TrimPrefix(replacement, bom)
	}
	if old == "" {
		return Place{}, &Fault{Reason: Empty}
	}
	found, fuzzy := m.find(old)
	switch {
	case len(found) == 0:
		f := &Fault{Reason: NoMatch}
		f.Closest, f.ClosestLine = m.closest(old)
		return Place{}, f
	case len(found) > 1:
		f := &Fault{Reason: Ambiguous, Count: len(found)}
		for _, s := range found[:min(len(found), maxLines)] {
			f.Lines = append(f.Lines, 1+bytes.Count(m.content[:s.start], newline))
		}
		return Place{}, f
	}
	s := found[0]
	p := Place{Offset: s.start, Length: s.end - s.start, New: m.withEndings(replacement, s, fuzzy), Fuzzy: fuzzy}
	if p.New == string(m.content[s.start:s.end]) {
		return Place{}, &Fault{Reason: Identical}
	}
	if !e.Bytes && !utf8.Valid(m.lines(s)) {
		return Place{}, &Fault{Reason: NotUTF8}
	}
	return p, nil
}

// lines are the whole lines that a passage touches.
func (m *matcher) lines(s span) []byte {
	start := bytes.LastIndexByte(m.content[:s.start], '\n') + 1
	end := s.end
	if i := bytes.IndexByte(m.content[s.end:], '\n'); i >= 0 {
		end += i
	} else {
		end = len(m.content)
	}
	return m.content[start:end]
}

// withEndings gives each line feed of a replacement the line ending that the content has there: the passage's own
// endings one after the other, then its last; for a passage within a line the next ending behind it, else the last
// before it.
func (m *matcher) withEndings(text string, s span, fuzzy bool) string {
	if fuzzy {
		text = strings.ReplaceAll(text, "\r\n", "\n")
	}
	if !m.hasCRLF() || strings.Contains(text, "\r") || !strings.Contains(text, "\n") {
		return text
	}
	var b strings.Builder
	rest := m.content[s.start:s.end]
	crlf := false
	if i := bytes.IndexByte(m.content[s.end:], '\n'); i >= 0 {
		crlf = s.end+i > 0 && m.content[s.end+i-1] == '\r'
	} else if i := bytes.LastIndexByte(m.content[:s.start], '\n'); i >= 0 {
		crlf = i > 0 && m.content[i-1] == '\r'
	}
	for line := range strings.SplitAfterSeq(text, "\n") {
		body, ok := strings.CutSuffix(line, "\n")
		b.WriteString(body)
		if !ok {
			break
		}
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			crlf = i > 0 && rest[i-1] == '\r'
			rest = rest[i+1:]
		}
		if crlf {
			b.WriteByte('\r')
		}
		b.WriteByte('\n')
	}
	return b.String()
}
