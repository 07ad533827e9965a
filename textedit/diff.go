package textedit

import (
	"bytes"
	"fmt"
	"strings"
)

// Diff shows replacements as a unified diff without file names, with so many lines of context and at most about limit
// bytes of it; cut says that it is not whole. first is the first line that differs, from one. No library is needed to
// find what differs: the places say it.
func Diff(content []byte, places []Place, context, limit int) (diff string, cut bool, first int) {
	var b strings.Builder
	changes := changesOf(content, places)
	if len(changes) == 0 {
		return "", false, 0
	}
	shift := 0 // how many lines the new content is ahead
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].line-(changes[n-1].line+len(changes[n-1].old)) <= 2*context {
			n++
		}
		if b.Len() > limit {
			break
		}
		h := hunk{content: content, changes: changes[:n], context: context, shift: shift}
		h.write(&b, limit)
		if first == 0 {
			first = changes[0].line + shift
		}
		for _, c := range changes[:n] {
			shift += len(c.new) - len(c.old)
		}
		changes = changes[n:]
	}
	if b.Len() > limit {
		text := b.String()
		return strings.ToValidUTF8(text[:limit], ""), true, first
	}
	return b.String(), false, first
}

// change is a run of lines that others replace.
type change struct {
	start, end int // in the content, whole lines
	line       int // where it begins, from one
	old, new   []string
}

// changesOf makes whole lines of the places, in their order.
func changesOf(content []byte, places []Place) (changes []change) {
	line, counted := 1, 0
	order := inOrder(places)
	for i := 0; i < len(order); {
		start := bytes.LastIndexByte(content[:places[order[i]].Offset], '\n') + 1
		var text bytes.Buffer
		at, end := start, start
		for ; i < len(order); i++ {
			p := places[order[i]]
			if end > start && p.Offset >= end { // on other lines
				break
			}
			text.Write(content[at:p.Offset])
			text.WriteString(p.New)
			at = p.end()
			end = lineEnd(content, p, bytes.HasSuffix(text.Bytes(), newline) || text.Len() == 0)
		}
		text.Write(content[at:end])
		c := change{start: start, end: end, old: linesOf(content[start:end]), new: linesOf(text.Bytes())}
		line += bytes.Count(content[counted:start], newline)
		counted = start
		c.line = line
		if c.trim(); len(c.old)+len(c.new) > 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

// lineEnd is where the last line ends that a place touches. whole says that the replacement ends with a line.
func lineEnd(content []byte, p Place, whole bool) int {
	if whole && p.Length > 0 && content[p.end()-1] == '\n' {
		return p.end()
	}
	if i := bytes.IndexByte(content[p.end():], '\n'); i >= 0 {
		return p.end() + i + 1
	}
	return len(content)
}

func linesOf(b []byte) (lines []string) {
	for l := range bytes.Lines(b) {
		lines = append(lines, string(l))
	}
	return lines
}

// trim takes off the lines that are equal at both ends.
func (c *change) trim() {
	for len(c.old) > 0 && len(c.new) > 0 && c.old[0] == c.new[0] {
		c.start += len(c.old[0])
		c.line++
		c.old, c.new = c.old[1:], c.new[1:]
	}
	for len(c.old) > 0 && len(c.new) > 0 && c.old[len(c.old)-1] == c.new[len(c.new)-1] {
		c.end -= len(c.old[len(c.old)-1])
		c.old, c.new = c.old[:len(c.old)-1], c.new[:len(c.new)-1]
	}
}

// hunk is a run of changes that share context.
type hunk struct {
	content []byte
	changes []change
	context int
	shift   int
}

func (h *hunk) write(b *strings.Builder, limit int) {
	firstChange, lastChange := h.changes[0], h.changes[len(h.changes)-1]
	start := firstChange.start
	before := 0
	for before < h.context && start > 0 {
		start = bytes.LastIndexByte(h.content[:start-1], '\n') + 1
		before++
	}
	end := lastChange.end
	for range h.context {
		if i := bytes.IndexByte(h.content[end:], '\n'); i >= 0 {
			end += i + 1
		} else {
			end = len(h.content)
		}
	}
	var body strings.Builder
	oldLines, newLines, at := 0, 0, start
	same := func(to int) {
		for l := range bytes.Lines(h.content[at:to]) {
			writeLine(&body, ' ', string(l), limit)
			oldLines++
			newLines++
		}
	}
	for _, c := range h.changes {
		same(c.start)
		for _, l := range c.old {
			writeLine(&body, '-', l, limit)
		}
		for _, l := range c.new {
			writeLine(&body, '+', l, limit)
		}
		oldLines += len(c.old)
		newLines += len(c.new)
		at = c.end
	}
	same(end)
	oldStart := firstChange.line - before
	newStart := oldStart + h.shift
	if oldLines == 0 { // as diff(1): an empty range stands behind the line that it names
		oldStart--
	}
	if newLines == 0 {
		newStart--
	}
	_, _ = fmt.Fprintf(b, "@@ -%d,%d +%d,%d @@\n", oldStart, oldLines, newStart, newLines) // a Builder does not fail
	b.WriteString(body.String())
}

func writeLine(b *strings.Builder, mark byte, line string, limit int) {
	if b.Len() > limit {
		return
	}
	b.WriteByte(mark)
	text, ended := strings.CutSuffix(line, "\n")
	b.WriteString(strings.TrimSuffix(text, "\r"))
	b.WriteByte('\n')
	if !ended {
		b.WriteString("\\ No newline at end of file\n")
	}
}
