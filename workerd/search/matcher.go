package search

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// pattern is what a grep looks for. It may be used by many goroutines.
type pattern struct {
	lits  literals
	exact bool           // there is one literal, and where it is, there is a match
	re    *regexp.Regexp // nil when exact
}

func newPattern(req *sandbusv1.GrepRequest) (*pattern, error) {
	text := bus.FromText(req.GetPattern(), req.GetPatternRaw())
	if len(text) > maxPattern {
		return nil, invalid("the pattern has %d bytes, the bound is %d", len(text), maxPattern)
	}
	if strings.Contains(text, "\n") {
		return nil, invalid("the pattern has a newline at offset %d: lines are searched one by one", strings.IndexByte(text, '\n'))
	}
	fold := foldsCase(text, req.GetFixed(), req.GetCaseMode())
	expr := text
	if req.GetFixed() {
		if !fold && text != "" {
			return &pattern{lits: literals{list: []string{text}}, exact: true}, nil
		}
		expr = regexp.QuoteMeta(text)
	}
	if !utf8.ValidString(text) {
		return nil, invalid("pattern %.200q is not UTF-8: then it must be fixed and case-sensitive", text)
	}
	flags := syntax.Perl
	tree, err := syntax.Parse(expr, flags)
	if err != nil {
		return nil, syntaxError(text, err)
	}
	if fold {
		expr = "(?i)" + expr
		if tree, err = syntax.Parse(expr, flags); err != nil {
			return nil, syntaxError(text, err)
		}
	}
	if hasNewline(tree) {
		return nil, invalid("pattern %.200q has a newline: lines are searched one by one", text)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, syntaxError(text, err)
	}
	p := &pattern{lits: required(tree), re: re}
	if prefix, complete := re.LiteralPrefix(); complete && prefix != "" && !fold {
		return &pattern{lits: literals{list: []string{prefix}}, exact: true}, nil
	}
	return p, nil
}

// hasNewline says that an expression asks for a newline; a class that merely contains it is no fault.
func hasNewline(re *syntax.Regexp) bool {
	return re.Op == syntax.OpLiteral && slices.Contains(re.Rune, '\n') || slices.ContainsFunc(re.Sub, hasNewline)
}

func foldsCase(text string, fixed bool, mode sandbusv1.CaseMode) bool {
	switch mode {
	case sandbusv1.CaseMode_CASE_MODE_INSENSITIVE:
		return true
	case sandbusv1.CaseMode_CASE_MODE_SMART:
		if !fixed {
			text = escapes.ReplaceAllString(text, "")
		}
		return !strings.ContainsFunc(text, unicode.IsUpper)
	default:
		return false
	}
}

// escapes are parts of an expression whose letters are not meant as letters.
var escapes = regexp.MustCompile(`\\[pP](\{[^}]*\}|.)|\\x(\{[^}]*\}|..)|\\.|\(\?P?<[^>]*>|\[\[:\^?[a-z]+:\]`)

// syntaxError says where an expression is wrong.
func syntaxError(pattern string, err error) error {
	var se *syntax.Error
	if !errors.As(err, &se) {
		return invalid("pattern %.200q: %v", pattern, err)
	}
	where := ""
	if i := strings.Index(pattern, se.Expr); i >= 0 && se.Expr != "" && se.Expr != pattern {
		where = fmt.Sprintf(" at offset %d", i)
	}
	return invalid("pattern %.200q: %s: %.200q%s; the syntax is RE2's, and a fixed string needs none", pattern, se.Code, se.Expr, where)
}

// matcher looks for a pattern in one text after the other. It is for one goroutine.
type matcher struct {
	p    *pattern
	find *finder // nil: there is no literal
	dfa  *dfa    // nil: there is no expression, or it is too large
	text []byte
}

func newMatcher(p *pattern) *matcher {
	m := &matcher{p: p}
	if len(p.lits.list) > 0 {
		m.find = newFinder(p.lits)
	}
	if p.re != nil {
		m.dfa = newDFA(p.re.String())
	}
	return m
}

func (m *matcher) reset(text []byte) {
	m.text = text
	if m.find != nil {
		m.find.reset(text)
	}
}

// hit is a line with a match, as offsets in the text. The line has no newline.
type hit struct{ line, end, from, to int }

// next finds the first line that matches, at or behind pos, which is the start of a line.
func (m *matcher) next(pos int) (hit, bool) {
	for pos < len(m.text) {
		at, n := pos, 0
		switch {
		case m.find != nil:
			at, n = m.find.next(pos)
		case m.dfa != nil:
			at = m.dfa.find(m.text, pos)
		}
		if at < 0 {
			return hit{}, false
		}
		h := hit{line: pos + bytes.LastIndexByte(m.text[pos:at], '\n') + 1, from: at, to: at + n}
		h.end = lineEnd(m.text, at)
		if m.p.exact {
			return h, true
		}
		if m.find != nil && m.dfa != nil && h.end > h.line && m.dfa.find(m.text[h.line:h.end], 0) < 0 {
			pos = h.end + 1
			continue
		}
		if loc := m.p.re.FindIndex(m.text[h.line:h.end]); loc != nil {
			h.from, h.to = h.line+loc[0], h.line+loc[1]
			return h, true
		}
		pos = h.end + 1
	}
	return hit{}, false
}
