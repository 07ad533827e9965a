package search

import (
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// glob is a pattern for the paths below a root.
type glob struct {
	pattern string
	name    bool // for the base name
	fold    bool // the pattern is lower case, and so must the path be
}

// checkCase refuses a mode of a later version: its meaning is not to be guessed.
func checkCase(mode sandbusv1.CaseMode) error {
	if _, known := sandbusv1.CaseMode_name[int32(mode)]; !known {
		return invalid("case_mode %d: this worker knows 0 to %d", mode, len(sandbusv1.CaseMode_name)-1)
	}
	return nil
}

func newGlob(pattern string, mode sandbusv1.CaseMode) (glob, error) {
	g := glob{pattern: pattern}
	if err := checkCase(mode); err != nil {
		return g, err
	}
	switch {
	case pattern == "":
		return g, invalid("the pattern is empty, want one such as *.go")
	case len(pattern) > maxGlob:
		return g, invalid("the pattern has %d bytes, the bound is %d", len(pattern), maxGlob)
	case strings.IndexByte(pattern, 0) >= 0:
		return g, invalid("pattern %.200q has a NUL byte", pattern)
	case strings.Count(pattern, "{") > maxBraces:
		return g, invalid("pattern %.200q has %d braces, the bound is %d", pattern, strings.Count(pattern, "{"), maxBraces)
	case !doublestar.ValidatePattern(pattern):
		return g, invalid("pattern %.200q is malformed: want *, **, ?, [a-z] or {a,b} with its closing bracket, and \\ before a character that means itself", pattern)
	}
	switch {
	case !strings.Contains(pattern, "/"):
		g.name = true
	case pattern[0] == '/':
		g.pattern = pattern[1:]
	case !strings.HasPrefix(pattern, "**/"):
		g.pattern = "**/" + pattern
	}
	switch mode {
	case sandbusv1.CaseMode_CASE_MODE_INSENSITIVE:
		g.fold = true
	case sandbusv1.CaseMode_CASE_MODE_SMART:
		g.fold = !strings.ContainsFunc(pattern, unicode.IsUpper)
	default:
	}
	if g.fold {
		g.pattern = strings.ToLower(g.pattern)
	}
	return g, nil
}

func (g glob) match(name, rel string) bool {
	s := rel
	if g.name {
		s = name
	}
	if g.fold {
		s = strings.ToLower(s)
	}
	return doublestar.MatchUnvalidated(g.pattern, s)
}

// Glob answers fs.glob.
func (r *Root) Glob(ctx context.Context, req *sandbusv1.GlobRequest) (*sandbusv1.GlobResponse, error) {
	limit, err := bounded("limit", req.GetLimit(), defaultEntries, maxEntries)
	if err != nil {
		return nil, err
	}
	g, err := newGlob(bus.FromText(req.GetPattern(), req.GetPatternRaw()), req.GetCaseMode())
	if err != nil {
		return nil, err
	}
	l := listing{limit: limit, details: req.GetDetails(), keep: func(e entry) bool { return g.match(e.name, e.rel) }}
	s, err := r.list(ctx, "glob", bus.FromText(req.GetPath(), req.GetPathRaw()), req.GetScope(), "", &l)
	if err != nil {
		return nil, err
	}
	return &sandbusv1.GlobResponse{Entries: l.entries, More: l.more, Limit: int32(limit), Skipped: s.message()}, nil
}

// choice is a list of globs of which the last that matches counts; those with "!" leave out.
type choice struct {
	globs    []glob
	negative []bool
	standard bool // of a path that none matches
}

func newChoice(patterns []string) (*choice, error) {
	if len(patterns) > maxGlobs {
		return nil, invalid("globs: %d, the bound is %d", len(patterns), maxGlobs)
	}
	c := &choice{standard: true}
	for _, p := range patterns {
		p, negative := strings.CutPrefix(p, "!")
		g, err := newGlob(p, sandbusv1.CaseMode_CASE_MODE_SENSITIVE)
		if err != nil {
			return nil, err
		}
		c.globs, c.negative = append(c.globs, g), append(c.negative, negative)
		c.standard = c.standard && negative
	}
	return c, nil
}

func (c *choice) match(name, rel string) bool {
	for i, g := range slices.Backward(c.globs) {
		if g.match(name, rel) {
			return !c.negative[i]
		}
	}
	return c.standard
}
