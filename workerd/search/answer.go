package search

import (
	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// answer is a response in the making.
type answer struct {
	g       *grep
	resp    *sandbusv1.GrepResponse
	bytes   int
	walked  skipped // by the walker
	skipped skipped // by the cores, and in the end the sum
}

// sum is what was left out in all. The first path that could not be read is the walker's or a core's.
func (a *answer) sum() skipped {
	s := a.skipped
	w := a.walked
	if s.first == "" || (w.first != "" && comparePaths(w.first, s.first) < 0) {
		s.first = w.first
	}
	s.unreadable += w.unreadable
	s.special += w.special
	s.links += w.links
	s.tooDeep += w.tooDeep
	s.ignoreFiles += w.ignoreFiles
	return s
}

// add takes one file's result; false: no more are wanted.
func (a *answer) add(rel string, r fileResult) bool {
	switch {
	case r.gone:
		return true
	case r.special:
		a.skipped.special++
		return true
	case r.binary:
		a.skipped.binary++
		return true
	case r.failed:
		a.skipped.addUnreadable(rel)
	}
	if r.matches > 0 && (a.full() || a.bytes > maxAnswerBytes) {
		a.resp.More, a.resp.Full = true, !a.full()
		return false
	}
	if !r.failed {
		a.resp.Searched++
	}
	a.skipped.longLines += r.longLines
	if r.matches == 0 {
		return true
	}
	f := &sandbusv1.GrepFile{Matches: int64(r.matches)}
	f.Path, f.PathRaw = bus.ToText(rel)
	a.bytes += len(rel)
	switch a.g.mode {
	case sandbusv1.GrepMode_GREP_MODE_FILES:
		f.Matches = 0
	case sandbusv1.GrepMode_GREP_MODE_COUNTS:
		a.resp.Matches += f.GetMatches()
	default:
		a.lines(f, r)
	}
	a.resp.Files = append(a.resp.Files, f)
	return !a.resp.GetMore()
}

// full says that the limit is reached: one more match is more than the answer holds.
func (a *answer) full() bool {
	switch a.g.mode {
	case sandbusv1.GrepMode_GREP_MODE_FILES, sandbusv1.GrepMode_GREP_MODE_COUNTS:
		return len(a.resp.GetFiles()) == a.g.limit
	default:
		return a.resp.GetMatches() == int64(a.g.limit)
	}
}

// lines takes as many of a file's lines as the answer still holds. Matches behind the limit stay where they are context.
func (a *answer) lines(f *sandbusv1.GrepFile, r fileResult) {
	left := int64(a.g.limit) - a.resp.GetMatches()
	f.Matches = 0
	last := int64(0) // the last match's number
	for _, l := range r.lines {
		if a.bytes > maxAnswerBytes {
			a.resp.More, a.resp.Full = true, true
			break
		}
		if !l.GetContext() {
			if f.GetMatches() < left {
				f.Matches++
				last = l.GetNumber()
			} else {
				a.resp.More = true
				l.Context, l.MatchStart, l.MatchEnd = true, 0, 0
			}
		}
		if f.GetMatches() == left && l.GetNumber() > last+int64(a.g.after) {
			if a.resp.GetMore() {
				break
			}
			continue // lines ahead of a match that is to come
		}
		f.Lines = append(f.Lines, l)
		a.bytes += len(l.GetText()) + len(l.GetTextRaw())
	}
	a.resp.Matches += f.GetMatches()
	a.resp.More = a.resp.GetMore() || r.more
	a.resp.Full = a.resp.GetFull() || r.full
}
