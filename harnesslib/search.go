package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Scope says what of a tree a search looks at. Its zero value honours .gitignore files, in a git repository and
// outside, and leaves out .git and node_modules. Hidden files are looked at; symbolic links are not followed.
type Scope struct {
	// NoGitignore looks also at what .gitignore files exclude.
	NoGitignore bool
	// Ignore is rules in the syntax of .gitignore that win over the files', for the root of the search; they come behind
	// ".git" and "node_modules". At most 1,000.
	Ignore []string
	// NoDefaultIgnore makes Ignore the whole list.
	NoDefaultIgnore bool
	// MaxDepth is how many directories to go down, 1 to 200; zero means 200.
	MaxDepth int
}

func (s Scope) message() *sandbusv1.SearchScope {
	return &sandbusv1.SearchScope{
		NoGitignore: s.NoGitignore, Ignore: s.Ignore, NoDefaultIgnore: s.NoDefaultIgnore, MaxDepth: clampInt32(s.MaxDepth),
	}
}

// clampInt32 keeps a number on the side of a bound that it is on.
func clampInt32(n int) int32 { return int32(max(-1, min(n, 1<<31-1))) }

// Case says whether upper and lower case differ in a search.
type Case int

// The cases.
const (
	CaseSensitive   Case = iota // they differ
	CaseInsensitive             // they do not
	CaseSmart                   // they differ when the pattern has an upper-case letter
)

func (c Case) message() sandbusv1.CaseMode { return sandbusv1.CaseMode(c + 1) }

// Skipped counts what a search left out and not because a rule says so.
type Skipped struct {
	Unreadable  int64 // files and directories that could not be read
	Binary      int64 // files with a NUL in their first 8 KiB
	Special     int64 // FIFOs, sockets and devices
	Links       int64 // symbolic links
	TooDeep     int64 // directories below MaxDepth
	IgnoreFiles int64 // .gitignore files whose rules did not count: not readable, or over 4 MiB
	LongLines   int64 // lines over 16 MiB, of which only so much was searched

	FirstUnreadable string // the path of the first unreadable one; empty for none
}

func newSkipped(m *sandbusv1.SearchSkipped) Skipped {
	return Skipped{
		Unreadable: m.GetUnreadable(), Binary: m.GetBinary(), Special: m.GetSpecial(), Links: m.GetLinks(), TooDeep: m.GetTooDeep(),
		IgnoreFiles: m.GetIgnoreFiles(), LongLines: m.GetLongLines(),
		FirstUnreadable: bus.FromText(m.GetFirstUnreadable(), m.GetFirstUnreadableRaw()),
	}
}

// Entry is a file or directory that a search found.
type Entry struct {
	Path    string      // relative to the root, with "/" between names
	Type    fs.FileMode // type bits only; a link is described itself
	Size    int64       // with Details
	Perm    fs.FileMode // with Details: permission bits, setuid, setgid and sticky
	ModTime time.Time   // with Details
	Target  fs.FileMode // with Targets: what a link leads to, type bits only; fs.ModeIrregular when that is nothing
}

// Listing is what Walk and Glob found, in the order of a walk whose every directory is sorted by the bytes of its names.
type Listing struct {
	Entries []Entry
	More    bool // the limit, or the bound of 16 MiB of paths, cut the listing
	Limit   int  // the limit that held
	Skipped Skipped
}

// WalkOptions are of Walk. Its zero value lists the first 10,000 entries.
type WalkOptions struct {
	Scope   Scope
	Limit   int    // entries at most, 1 to 100,000; zero means 10,000
	After   string // go on behind this path, the last one of the listing before; empty means from the start
	Details bool   // ask for size, mode and time
	Targets bool   // ask what links lead to
}

// Walk lists a tree in one request. Errors: *fs.PathError, and those of the fabric (see the package's doc).
func (s *Sandbox) Walk(ctx context.Context, root string, opts WalkOptions) (*Listing, error) {
	req := &sandbusv1.WalkRequest{Scope: opts.Scope.message(), Limit: clampInt32(opts.Limit), Details: opts.Details, Targets: opts.Targets}
	req.Path, req.PathRaw = bus.ToText(root)
	req.After, req.AfterRaw = bus.ToText(opts.After)
	resp := &sandbusv1.WalkResponse{}
	if err := s.search(ctx, "walk", root, req, resp); err != nil {
		return nil, err
	}
	l := &Listing{More: resp.GetMore(), Limit: int(resp.GetLimit()), Skipped: newSkipped(resp.GetSkipped())}
	return l, l.add("walk", root, resp.GetEntries(), opts.Details)
}

// GlobOptions are of Glob. Its zero value lists the first 10,000 entries.
type GlobOptions struct {
	Scope   Scope
	Case    Case
	Limit   int  // entries at most, 1 to 100,000; zero means 10,000
	Details bool // ask for size, mode and time
}

// Glob finds files and directories below root in one request. The pattern has *, ?, [a-z], {a,b} and **; without "/" it
// matches names, with "/" the path below the root, where a leading "**/" is implied unless it begins with "/" or "**/".
// What is ignored does not come back because the pattern names it. Errors: as Walk.
func (s *Sandbox) Glob(ctx context.Context, root, pattern string, opts GlobOptions) (*Listing, error) {
	req := &sandbusv1.GlobRequest{
		Scope: opts.Scope.message(), CaseMode: opts.Case.message(), Limit: clampInt32(opts.Limit), Details: opts.Details,
	}
	req.Path, req.PathRaw = bus.ToText(root)
	req.Pattern, req.PatternRaw = bus.ToText(pattern)
	resp := &sandbusv1.GlobResponse{}
	if err := s.search(ctx, "glob", root, req, resp); err != nil {
		return nil, err
	}
	l := &Listing{More: resp.GetMore(), Limit: int(resp.GetLimit()), Skipped: newSkipped(resp.GetSkipped())}
	return l, l.add("glob", root, resp.GetEntries(), opts.Details)
}

func (l *Listing) add(op, root string, entries []*sandbusv1.WalkEntry, details bool) error {
	for _, m := range entries {
		e := Entry{Path: bus.FromText(m.GetPath(), m.GetPathRaw()), Type: fileMode(m.GetType(), 0)}
		if err := checkBelow(op, root, e.Path); err != nil {
			return err
		}
		if e.Type == fs.ModeSymlink {
			e.Target = fileMode(m.GetTargetType(), 0)
		}
		if details {
			mode := fileMode(sandbusv1.FileType_FILE_TYPE_REGULAR, m.GetMode())
			e.Size, e.Perm, e.ModTime = m.GetSize(), mode, time.Unix(0, m.GetMtimeNs())
		}
		l.Entries = append(l.Entries, e)
	}
	return nil
}

// checkBelow refuses a path that an honest sandbox does not send: a caller may join it to one of its own.
func checkBelow(op, root, path string) error {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.IndexByte(part, 0) >= 0 {
			return &fs.PathError{Op: op, Path: root, Err: fmt.Errorf("the sandbox sent an entry named %q", path)}
		}
	}
	return nil
}

// GrepMode is what a grep reports.
type GrepMode int

// The modes.
const (
	GrepLines  GrepMode = iota // lines; the limit counts matching lines in all
	GrepFiles                  // files that match; the limit counts files
	GrepCounts                 // how many lines match in each file; the limit counts files
)

// GrepOptions are of Grep. Its zero value returns the first 1,000 matching lines.
type GrepOptions struct {
	Scope   Scope
	Fixed   bool // the pattern is a string of bytes, not an expression
	Case    Case
	Globs   []string // which files, as patterns of Glob; "!" before one leaves out, the last that matches counts. At most 100
	Before  int      // lines of context before each match, at most 100
	After   int      // lines of context behind each match, at most 100
	Mode    GrepMode
	Limit   int // 1 to 100,000; zero means 1,000
	MaxLine int // characters of a line, cut around its match, 1 to 65,536; zero means 2,000
}

// GrepLine is a line that matches, or one of its context.
type GrepLine struct {
	Number    int64  // from 1
	Text      string // without the newline; any bytes
	Context   bool
	Match     [2]int // where the first match begins and ends in Text; of a context line 0, 0
	CutBefore int64  // characters of the line that are left out before Text
	CutAfter  int64  // and behind it
}

// GrepFile is a file with matches.
type GrepFile struct {
	Path    string // relative to the root; its base name when the root is a file
	Lines   []GrepLine
	Matches int64 // matching lines: those in Lines, or with GrepCounts all of the file
}

// GrepResult is what Grep found, in the order of Walk.
type GrepResult struct {
	Files    []GrepFile
	Matches  int64 // the sum of the files'
	Searched int64 // files that were read
	More     bool  // there are more matches than the limit, or than 8 MiB of paths and text
	Full     bool  // it was the 8 MiB
	Limit    int   // the limit that held
	Skipped  Skipped
}

// Grep finds lines in a file or in the files below a directory, in one request. The pattern is in RE2 syntax, for one
// line. The end of ctx ends the search in the sandbox, too. Errors: as Walk; a pattern that is none is fs.ErrInvalid.
func (s *Sandbox) Grep(ctx context.Context, root, pattern string, opts GrepOptions) (*GrepResult, error) {
	req := &sandbusv1.GrepRequest{
		Scope: opts.Scope.message(), Fixed: opts.Fixed, CaseMode: opts.Case.message(), Globs: opts.Globs,
		Before: clampInt32(opts.Before), After: clampInt32(opts.After), Mode: sandbusv1.GrepMode(opts.Mode + 1),
		Limit: clampInt32(opts.Limit), MaxLine: clampInt32(opts.MaxLine),
	}
	req.Path, req.PathRaw = bus.ToText(root)
	req.Pattern, req.PatternRaw = bus.ToText(pattern)
	resp := &sandbusv1.GrepResponse{}
	if err := s.search(ctx, "grep", root, req, resp); err != nil {
		return nil, err
	}
	return grepResult(root, resp)
}

// grepResult reads an answer.
func grepResult(root string, resp *sandbusv1.GrepResponse) (*GrepResult, error) {
	out := &GrepResult{
		Matches: resp.GetMatches(), Searched: resp.GetSearched(), More: resp.GetMore(), Full: resp.GetFull(), Limit: int(resp.GetLimit()),
		Skipped: newSkipped(resp.GetSkipped()),
	}
	for _, m := range resp.GetFiles() {
		f := GrepFile{Path: bus.FromText(m.GetPath(), m.GetPathRaw()), Matches: m.GetMatches()}
		if err := checkBelow("grep", root, f.Path); err != nil {
			return nil, err
		}
		for _, l := range m.GetLines() {
			text := bus.FromText(l.GetText(), l.GetTextRaw())
			from := max(0, min(int(l.GetMatchStart()), len(text)))
			f.Lines = append(f.Lines, GrepLine{
				Number: l.GetNumber(), Text: text, Context: l.GetContext(),
				Match:     [2]int{from, max(from, min(int(l.GetMatchEnd()), len(text)))},
				CutBefore: l.GetCutBefore(), CutAfter: l.GetCutAfter(),
			})
		}
		out.Files = append(out.Files, f)
	}
	return out, nil
}

// Resolved is the file that a written path means.
type Resolved struct {
	Path   string      // absolute
	Exists bool        // links followed; a broken link is something
	Type   fs.FileMode // type bits only, links followed; of a broken link fs.ModeSymlink
	Size   int64       // in bytes
}

// ResolvePath finds the file that a person or a model means by a path: one leading "@" is dropped, exotic spaces are plain
// ones, a leading "~" is the home of the sandbox's user, and a relative path begins at dir (empty: the sandbox's
// directory). When that does not exist, each name on the way may also be one that differs only in Unicode normalisation,
// in kind of quotation mark or space. With exact no such name is looked for: for a file that is to be made. Errors: as
// Walk.
func (s *Sandbox) ResolvePath(ctx context.Context, path, dir string, exact bool) (Resolved, error) {
	req := &sandbusv1.ResolveRequest{Exact: exact}
	req.Path, req.PathRaw = bus.ToText(path)
	req.Dir, req.DirRaw = bus.ToText(dir)
	resp := &sandbusv1.ResolveResponse{}
	if err := s.search(ctx, "resolve", path, req, resp); err != nil {
		return Resolved{}, err
	}
	return Resolved{
		Path: bus.FromText(resp.GetPath(), resp.GetPathRaw()), Exists: resp.GetExists(), Type: fileMode(resp.GetType(), 0),
		Size: resp.GetSize(),
	}, nil
}

// search makes one request that ends in the sandbox when ctx does.
func (s *Sandbox) search(ctx context.Context, verb, path string, req proto.Message, resp interface {
	proto.Message
	GetError() *sandbusv1.Error
},
) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // an answer might be faster than the abort
	}
	op := bus.NewOpID()
	err := s.do(ctx, func(t bus.Target) error {
		call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { s.abort(call, t, op, context.Cause(ctx), cancel) })()
		return s.hub.caller.Request(call, t, "fs."+verb, op, req, resp)
	})
	if _, gone := errors.AsType[*HubGoneError](err); err != nil && ctx.Err() != nil && !gone {
		return context.Cause(ctx)
	}
	return pathError(verb, path, err)
}
