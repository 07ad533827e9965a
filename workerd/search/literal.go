package search

import (
	"bytes"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxLiterals is how many strings are looked for at once: each costs a pass over the text.
const maxLiterals = 16

// literals are strings of which every match of an expression contains one.
type literals struct {
	list []string
	fold bool // look for them without regard to the case of ASCII letters; they are lower case
}

// required finds the literals of an expression; none when it has none.
func required(re *syntax.Regexp) literals {
	a := analysis{}
	r := a.of(re)
	list := slices.Clone(better(r.exact, r.some))
	if len(list) == 0 {
		return literals{}
	}
	if a.fold {
		for i := range list {
			list[i] = strings.ToLower(list[i])
			if !isASCII(list[i]) { // which ToLower changes in other ways
				return literals{}
			}
		}
	}
	slices.Sort(list)
	return literals{list: slices.Compact(list), fold: a.fold}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// found is what is known of the matches of a part of an expression.
type found struct {
	exact []string // all that it can match; nil: not known
	some  []string // each match contains one of them; nil: not known
}

type analysis struct{ fold bool }

func (a *analysis) of(re *syntax.Regexp) found {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return found{exact: []string{""}}
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return found{exact: []string{string(re.Rune)}}
		}
		a.fold = true
		if s := foldable(re.Rune); s != "" {
			return found{some: []string{s}}
		}
		return found{}
	case syntax.OpCharClass:
		var out []string
		for i := 0; i+1 < len(re.Rune); i += 2 {
			for c := re.Rune[i]; c <= re.Rune[i+1]; c++ {
				if len(out) == 4 {
					return found{}
				}
				out = append(out, string(c))
			}
		}
		return found{exact: out}
	case syntax.OpCapture:
		return a.of(re.Sub[0])
	case syntax.OpQuest:
		if f := a.of(re.Sub[0]); f.exact != nil && len(f.exact) < maxLiterals {
			return found{exact: append(slices.Clone(f.exact), "")}
		}
		return found{}
	case syntax.OpPlus:
		f := a.of(re.Sub[0])
		return found{some: better(f.exact, f.some)}
	case syntax.OpRepeat:
		if re.Min == 0 {
			return found{}
		}
		f := a.of(re.Sub[0])
		return found{some: better(f.exact, f.some)}
	case syntax.OpConcat:
		return a.concat(re.Sub)
	case syntax.OpAlternate:
		return a.alternate(re.Sub)
	default:
		return found{}
	}
}

func (a *analysis) concat(subs []*syntax.Regexp) found {
	run := []string{""} // what the parts since the last unknown one can match together
	whole := true
	var best []string
	for _, sub := range subs {
		f := a.of(sub)
		best = better(best, better(f.exact, f.some))
		if f.exact != nil && len(run)*len(f.exact) <= maxLiterals {
			next := make([]string, 0, len(run)*len(f.exact))
			for _, head := range run {
				for _, tail := range f.exact {
					next = append(next, head+tail)
				}
			}
			run = next
			continue
		}
		whole = false
		best = better(best, run)
		run = []string{""}
	}
	f := found{some: better(best, run)}
	if whole {
		f.exact = run
	}
	return f
}

func (a *analysis) alternate(subs []*syntax.Regexp) found {
	out := found{exact: []string{}, some: []string{}}
	for _, sub := range subs {
		f := a.of(sub)
		if f.exact == nil || out.exact == nil {
			out.exact = nil
		} else {
			out.exact = append(out.exact, f.exact...)
		}
		s := better(f.exact, f.some)
		if s == nil || out.some == nil {
			out.some = nil
		} else {
			out.some = append(out.some, s...)
		}
	}
	if len(out.exact) > maxLiterals {
		out.exact = nil
	}
	if len(out.some) > maxLiterals {
		out.some = nil
	}
	return out
}

// better is the list that is cheaper to look for: a single string of some length before several, else the one whose
// shortest string is longer and so rarer. A list with an empty string says nothing.
func better(a, b []string) []string {
	la, lb := shortest(a), shortest(b)
	oneA, oneB := len(a) == 1 && la >= 3, len(b) == 1 && lb >= 3
	switch {
	case la == 0 && lb == 0:
		return nil
	case oneA != oneB:
		if oneA {
			return a
		}
		return b
	case la > lb || (la == lb && len(a) <= len(b)):
		return a
	}
	return b
}

func shortest(list []string) int {
	if len(list) == 0 {
		return 0
	}
	n := len(list[0])
	for _, s := range list {
		n = min(n, len(s))
	}
	return n
}

// foldable is the longest part of a literal that folds within ASCII: k and s have relatives outside (U+212A, U+017F).
func foldable(runes []rune) string {
	var best, run []byte
	for _, r := range runes {
		if r >= utf8.RuneSelf || strings.ContainsRune("kKsS", r) {
			run = nil
			continue
		}
		run = append(run, byte(r))
		if len(run) > len(best) {
			best = run
		}
	}
	return strings.ToLower(string(best))
}

// finder looks for the next of several literals in one text.
type finder struct {
	lits   []literal
	text   []byte
	places []int // of each literal the next one, len(text) for none
}

// literal is a string with the byte in it that is rarest.
type literal struct {
	s     []byte
	fold  bool
	pivot int
}

func newFinder(l literals) *finder {
	f := &finder{}
	for _, s := range l.list {
		f.lits = append(f.lits, literal{s: []byte(s), fold: l.fold, pivot: rarest(s)})
	}
	f.places = make([]int, len(f.lits))
	return f
}

// reset begins a new text.
func (f *finder) reset(text []byte) {
	f.text = text
	for i := range f.places {
		f.places[i] = -1
	}
}

// next is the place of the first literal at or behind pos, below zero for none, and its length.
func (f *finder) next(pos int) (place, length int) {
	place = len(f.text)
	for i := range f.lits {
		if f.places[i] < pos {
			f.places[i] = f.lits[i].index(f.text, pos)
		}
		if f.places[i] < place {
			place, length = f.places[i], len(f.lits[i].s)
		}
	}
	if place == len(f.text) {
		return -1, 0
	}
	return place, length
}

// index is the place of the literal at or behind pos, len(text) for none.
func (l *literal) index(text []byte, pos int) int {
	if !l.fold {
		if i := bytes.Index(text[pos:], l.s); i >= 0 {
			return pos + i
		}
		return len(text)
	}
	low := l.s[l.pivot]
	up := low
	if 'a' <= low && low <= 'z' {
		up = low - 'a' + 'A'
	}
	last := len(text) - (len(l.s) - l.pivot) // of the pivot
	at := [2]int{-1, -1}
	from := pos + l.pivot
	for from <= last {
		for k, c := range [2]byte{low, up} {
			if at[k] < from {
				if i := bytes.IndexByte(text[from:last+1], c); i >= 0 {
					at[k] = from + i
				} else {
					at[k] = len(text)
				}
			}
		}
		p := min(at[0], at[1])
		if p == len(text) {
			return len(text)
		}
		if equalFold(text[p-l.pivot:p-l.pivot+len(l.s)], l.s) {
			return p - l.pivot
		}
		from = p + 1
	}
	return len(text)
}

// equalFold compares with a lower-case text, by ASCII.
func equalFold(text, lower []byte) bool {
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// common are bytes by how often source text has them, from the most frequent; others are rarer.
const common = " \tetaonirslcdumpfghy_b.(),v=\"w:/kx-1*0{}2;[]'jqz"

// rarest is the place of the byte that is least frequent in source text.
func rarest(s string) int {
	best, rank := 0, -1
	for i := range len(s) {
		r := strings.IndexByte(common, s[i])
		if r < 0 {
			r = len(common)
		}
		if r > rank {
			best, rank = i, r
		}
	}
	return best
}
