package tools

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/sandbus/sandbus/harnesslib"
)

// LsParams are of Ls.
type LsParams struct {
	Path  string `json:"path,omitempty"`  // a directory; empty means the session's
	Limit int    `json:"limit,omitempty"` // entries at most; zero means 500
}

// LsResult is a directory's content.
type LsResult struct {
	Text       string
	Names      []string // those that are shown, with "/" behind directories
	Total      int      // entries that there are
	LimitCut   bool     // the limit of entries cut the text
	BytesCut   bool     // MaxBytes cut the text
	BrokenLink []string // the names of links that lead nowhere
}

const (
	lsLimit = 500
	// walkPage is how many entries one request asks for.
	walkPage = 100_000
	// maxLs bounds a directory that is listed, in entries: it is sorted in memory, and the sandbox is not trusted.
	maxLs = 1_000_000
)

// Ls lists a directory, sorted without regard to case, dotfiles included, "/" behind directories and links to such.
func (t *Tools) Ls(ctx context.Context, p LsParams) (*LsResult, error) {
	if t.cfg.Searcher == nil {
		return nil, lacks("ls")
	}
	limit, err := count("ls", "limit", p.Limit, lsLimit)
	if err != nil {
		return nil, err
	}
	path := cmp.Or(p.Path, ".")
	var entries []harnesslib.Entry
	err = t.onFile(ctx, path, func(path string) error {
		entries = nil
		opts := harnesslib.WalkOptions{
			Scope: harnesslib.Scope{NoGitignore: true, NoDefaultIgnore: true, MaxDepth: 1}, Limit: walkPage, Targets: true,
		}
		for {
			l, err := t.cfg.Searcher.Walk(ctx, path, opts)
			if err != nil {
				return err
			}
			entries = append(entries, l.Entries...)
			if !l.More || len(l.Entries) == 0 {
				return nil
			}
			if len(entries) >= maxLs {
				return refuse("ls %s: has more than %d entries. Use find with a pattern", printable(p.Path), maxLs)
			}
			opts.After = l.Entries[len(l.Entries)-1].Path
		}
	})
	if err != nil {
		return nil, fail(ctx, "ls", path, err)
	}
	return lsResult(entries, limit), nil
}

func lsResult(entries []harnesslib.Entry, limit int) *LsResult {
	type key struct {
		low   string
		entry harnesslib.Entry
	}
	keys := make([]key, len(entries))
	for i, e := range entries {
		keys[i] = key{strings.ToLower(e.Path), e}
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(cmp.Compare(a.low, b.low), cmp.Compare(a.entry.Path, b.entry.Path)) })
	r := &LsResult{Total: len(entries)}
	if len(entries) == 0 {
		r.Text = "(empty directory)"
		return r
	}
	lines := make([]string, 0, min(limit, len(keys)))
	for _, k := range keys[:min(limit, len(keys))] {
		line := printable(k.entry.Path)
		switch {
		case k.entry.Type.IsDir() || (k.entry.Type == fs.ModeSymlink && k.entry.Target.IsDir()):
			line += "/"
		case k.entry.Type == fs.ModeSymlink && k.entry.Target == fs.ModeIrregular:
			line += " (broken link)"
			r.BrokenLink = append(r.BrokenLink, k.entry.Path)
		}
		lines = append(lines, line)
	}
	text, kept, _ := head(lines, len(lines))
	r.Names = lines[:kept]
	r.BytesCut = kept < len(lines)
	r.LimitCut = !r.BytesCut && len(keys) > limit
	var notices []string
	switch {
	case r.BytesCut:
		notices = append(notices, fmt.Sprintf("Showing %d of %d entries (%s limit). List a part with find", kept, r.Total, FormatSize(MaxBytes)))
	case r.LimitCut:
		notices = append(notices, fmt.Sprintf("Showing %d of %d entries. Use limit=%d for more", kept, r.Total, nextLimit(limit, r.Total)))
	}
	r.Text = footer(text, notices)
	return r
}

// nextLimit is twice the limit, or all.
func nextLimit(limit, total int) int {
	if total > 0 {
		return min(2*limit, total)
	}
	return 2 * limit
}
