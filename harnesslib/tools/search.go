package tools

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/sandbus/sandbus/harnesslib"
)

// FindParams are of Find.
type FindParams struct {
	Pattern string `json:"pattern"`         // a glob: without "/" it matches names, with "/" the path below the root
	Path    string `json:"path,omitempty"`  // the root; empty means the session's directory
	Limit   int    `json:"limit,omitempty"` // results at most; zero means 1,000
}

// FindResult is what Find found.
type FindResult struct {
	Text     string
	Paths    []string // those that are shown, relative to the root, with "/" behind directories
	LimitCut bool     // there are more results than the limit
	BytesCut bool     // MaxBytes cut the text
	Skipped  harnesslib.Skipped
}

const findLimit = 1000

// Find finds files and directories by name. Case counts when the pattern has an upper-case letter.
func (t *Tools) Find(ctx context.Context, p FindParams) (*FindResult, error) {
	if t.cfg.Searcher == nil {
		return nil, lacks("find")
	}
	limit, err := count("find", "limit", p.Limit, findLimit)
	if err != nil {
		return nil, err
	}
	root := cmp.Or(p.Path, ".")
	var l *harnesslib.Listing
	err = t.onFile(ctx, root, func(path string) (err error) {
		l, err = t.cfg.Searcher.Glob(ctx, path, p.Pattern, harnesslib.GlobOptions{Case: harnesslib.CaseSmart, Limit: limit})
		return err
	})
	if err != nil {
		return nil, fail(ctx, "find", root, err)
	}
	r := &FindResult{LimitCut: l.More, Skipped: l.Skipped}
	lines := make([]string, len(l.Entries))
	for i, e := range l.Entries {
		lines[i] = printable(e.Path)
		if e.Type.IsDir() {
			lines[i] += "/"
		}
	}
	text, kept, all := head(lines, len(lines))
	r.Paths, r.BytesCut = lines[:kept], !all
	if len(lines) == 0 {
		text = "No files found matching pattern"
	}
	var notices []string
	if r.BytesCut {
		notices = append(notices, fmt.Sprintf("%s limit reached: showing %d results. Refine the pattern or the path", FormatSize(MaxBytes), kept))
	} else if r.LimitCut {
		notices = append(notices, fmt.Sprintf("%d results limit reached. Use limit=%d for more, or refine the pattern", limit, nextLimit(limit, 0)))
	}
	r.Text = footer(text, append(notices, skippedNotice(l.Skipped)...))
	return r, nil
}

// GrepParams are of Grep.
type GrepParams struct {
	Pattern    string `json:"pattern"`        // a regular expression in RE2 syntax
	Path       string `json:"path,omitempty"` // a file or a directory; empty means the session's directory
	Glob       string `json:"glob,omitempty"` // which files, as of Find with case; empty means all
	IgnoreCase bool   `json:"ignoreCase,omitempty"`
	Literal    bool   `json:"literal,omitempty"` // the pattern is no expression
	Context    int    `json:"context,omitempty"` // lines before and behind each match
	Limit      int    `json:"limit,omitempty"`   // matches in all at most; zero means 100
}

// GrepResult is what Grep found.
type GrepResult struct {
	Text     string
	Matches  int  // in the text
	LimitCut bool // there are more matches than the limit
	BytesCut bool // MaxBytes cut the text
	LinesCut int  // how many lines are shown in part
	Skipped  harnesslib.Skipped
}

const (
	grepLimit = 100
	// grepLine is how many characters of a line are shown.
	grepLine = 500
)

// Grep finds lines.
func (t *Tools) Grep(ctx context.Context, p GrepParams) (*GrepResult, error) {
	if t.cfg.Searcher == nil {
		return nil, lacks("grep")
	}
	limit, err := count("grep", "limit", p.Limit, grepLimit)
	if err != nil {
		return nil, err
	}
	around, err := count("grep", "context", p.Context, 0)
	if err != nil {
		return nil, err
	}
	opts := harnesslib.GrepOptions{Fixed: p.Literal, Before: around, After: around, Limit: limit, MaxLine: grepLine}
	if p.IgnoreCase {
		opts.Case = harnesslib.CaseInsensitive
	}
	if p.Glob != "" {
		opts.Globs = []string{p.Glob}
	}
	root := cmp.Or(p.Path, ".")
	var found *harnesslib.GrepResult
	err = t.onFile(ctx, root, func(path string) (err error) {
		found, err = t.cfg.Searcher.Grep(ctx, path, p.Pattern, opts)
		return err
	})
	if err != nil {
		return nil, fail(ctx, "grep", root, err)
	}
	return grepResult(found, limit), nil
}

func grepResult(found *harnesslib.GrepResult, limit int) *GrepResult {
	r := &GrepResult{LimitCut: found.More && !found.Full, Skipped: found.Skipped}
	var lines []string
	var matches, cuts []bool
	for _, f := range found.Files {
		name := printable(f.Path)
		for _, l := range f.Lines {
			sep := ":"
			if l.Context {
				sep = "-"
			}
			text := strings.TrimSuffix(strings.ToValidUTF8(l.Text, "\uFFFD"), "\r")
			if l.CutBefore > 0 {
				text = fmt.Sprintf("[%d characters left out]…%s", l.CutBefore, text)
			}
			if l.CutAfter > 0 {
				text = fmt.Sprintf("%s…[%d characters left out]", text, l.CutAfter)
			}
			lines = append(lines, fmt.Sprintf("%s%s%d%s %s", name, sep, l.Number, sep, text))
			matches = append(matches, !l.Context)
			cuts = append(cuts, l.CutBefore+l.CutAfter > 0)
		}
	}
	text, kept, all := head(lines, len(lines))
	r.BytesCut = !all || found.Full
	for i := range kept {
		if matches[i] {
			r.Matches++
		}
		if cuts[i] {
			r.LinesCut++
		}
	}
	if len(lines) == 0 {
		text = "No matches found"
	}
	var notices []string
	if r.BytesCut {
		notices = append(notices, fmt.Sprintf("%s limit reached: showing %d matches. Refine the pattern or the path", FormatSize(MaxBytes), r.Matches))
	} else if r.LimitCut {
		notices = append(notices, fmt.Sprintf("%d matches limit reached. Use limit=%d for more, or refine the pattern", limit, nextLimit(limit, 0)))
	}
	if r.LinesCut > 0 {
		notices = append(notices, fmt.Sprintf("%d lines cut to %d characters. Use read to see them whole", r.LinesCut, grepLine))
	}
	r.Text = footer(text, append(notices, skippedNotice(found.Skipped)...))
	return r
}
