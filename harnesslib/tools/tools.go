package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandbus/sandbus/harnesslib"
)

const (
	// MaxLines is how many lines a tool's text has at most.
	MaxLines = 2000
	// MaxBytes is how many bytes a tool's text has at most, without footers.
	MaxBytes = 50 << 10
)

// Resolver finds the file that a written path means: one leading "@" dropped, exotic spaces folded, "~" for the home of
// the sandbox's user, and unless exact after a miss a name that only looks the same. *harnesslib.Sandbox is one.
type Resolver interface {
	ResolvePath(ctx context.Context, path, dir string, exact bool) (harnesslib.Resolved, error)
}

// Reader gives the content of a regular file. Whatever else a path leads to is an error. *harnesslib.Sandbox is one.
type Reader interface {
	CopyFrom(ctx context.Context, name string, w io.Writer) error
}

// Writer makes files: each write replaces the whole content atomically. *harnesslib.Sandbox is one.
type Writer interface {
	WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error
	CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error
	MkdirAll(ctx context.Context, name string, perm fs.FileMode) error
}

// Searcher looks into trees. *harnesslib.Sandbox is one.
type Searcher interface {
	Walk(ctx context.Context, root string, opts harnesslib.WalkOptions) (*harnesslib.Listing, error)
	Glob(ctx context.Context, root, pattern string, opts harnesslib.GlobOptions) (*harnesslib.Listing, error)
	Grep(ctx context.Context, root, pattern string, opts harnesslib.GrepOptions) (*harnesslib.GrepResult, error)
}

// Config says what the tools stand on. A part that is nil is one that the sandbox lacks: its tools refuse.
type Config struct {
	Resolver Resolver
	Reader   Reader
	Writer   Writer
	Searcher Searcher
	Editor   Editor
	Shell    Shell
	// Dir is the session's directory, where relative paths and commands begin; empty means the sandbox's.
	Dir string
	// Env is added to the environment of bash's commands, NAME=value each.
	Env []string
	// SpillDir is the sandbox's directory for outputs that bash cuts; empty means /tmp.
	SpillDir string
	// SpillBytes is how much of an output is kept there; zero means 64 MiB, below zero means nothing.
	SpillBytes int64
}

// Tools are the seven tools. Use New or For.
type Tools struct{ cfg Config }

// New makes tools over their parts.
func New(cfg Config) *Tools {
	if cfg.SpillDir == "" {
		cfg.SpillDir = "/tmp"
	}
	if cfg.SpillBytes == 0 {
		cfg.SpillBytes = 64 << 20
	}
	return &Tools{cfg}
}

// For fills the parts of a configuration that are nil from a sandbox.
func For(sb *harnesslib.Sandbox, cfg Config) *Tools {
	if cfg.Resolver == nil {
		cfg.Resolver = sb
	}
	if cfg.Reader == nil {
		cfg.Reader = sb
	}
	if cfg.Writer == nil {
		cfg.Writer = sb
	}
	if cfg.Searcher == nil {
		cfg.Searcher = sb
	}
	if cfg.Editor == nil {
		cfg.Editor = editor{sb}
	}
	if cfg.Shell == nil {
		cfg.Shell = shell{sb}
	}
	return New(cfg)
}

// lacks is the error of a tool whose part the sandbox does not have.
func lacks(tool string) error { return fmt.Errorf("%s: this sandbox has no such tool", tool) }

// ErrAborted is what a tool's error wraps when the caller's context ended it.
var ErrAborted = errors.New("operation aborted")

// ToolError is a tool's failure in words for the model.
type ToolError struct {
	Text string
	Err  error // the cause; nil when the tool itself refused
}

func (e *ToolError) Error() string { return e.Text }
func (e *ToolError) Unwrap() error { return e.Err }

func refuse(format string, args ...any) error { return &ToolError{Text: fmt.Sprintf(format, args...)} }

// fail puts an error into words: aborted, or the path as it was given and the reason.
func fail(ctx context.Context, tool, path string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &ToolError{Text: "Operation aborted", Err: fmt.Errorf("%w: %w", ErrAborted, context.Cause(ctx))}
	}
	if te, ok := errors.AsType[*ToolError](err); ok {
		return te
	}
	reason := err.Error()
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pe.Err.Error()
		if errors.Is(err, fs.ErrInvalid) { // about a value that is not the path
			return &ToolError{Text: tool + ": " + reason, Err: err}
		}
	}
	return &ToolError{Text: fmt.Sprintf("%s %s: %s", tool, printable(path), reason), Err: err}
}

// at is a plain path below the session's directory.
func (t *Tools) at(path string) string {
	if strings.HasPrefix(path, "/") || t.cfg.Dir == "" {
		return path
	}
	return strings.TrimSuffix(t.cfg.Dir, "/") + "/" + path
}

// isPlain says that there is nothing in a path to be resolved, unless it is not there.
func isPlain(path string) bool {
	if path == "" || path[0] == '@' || path[0] == '~' {
		return false
	}
	for i := range len(path) {
		if path[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// onFile does an operation on the file that a path means. Not finding it leads to a second try with a name that looks
// the same.
func (t *Tools) onFile(ctx context.Context, path string, op func(path string) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if path == "" {
		return refuse("the path is empty")
	}
	if isPlain(path) {
		err := op(t.at(path))
		if !errors.Is(err, fs.ErrNotExist) || t.cfg.Resolver == nil {
			return err
		}
		r, rerr := t.cfg.Resolver.ResolvePath(ctx, path, t.cfg.Dir, false)
		if rerr != nil || !r.Exists {
			return err
		}
		return op(r.Path)
	}
	r, err := t.resolve(ctx, path, false)
	if err != nil {
		return err
	}
	return op(r)
}

func (t *Tools) resolve(ctx context.Context, path string, exact bool) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if path == "" {
		return "", refuse("the path is empty")
	}
	if t.cfg.Resolver == nil || (exact && isPlain(path)) {
		return t.at(path), nil
	}
	r, err := t.cfg.Resolver.ResolvePath(ctx, path, t.cfg.Dir, exact)
	return r.Path, err
}

// count is a limit of a call: zero means the default.
func count(tool, name string, n, standard int) (int, error) {
	if n < 0 {
		return 0, refuse("%s: %s %d: want 1 or more, or none for %d", tool, name, n, standard)
	}
	if n == 0 {
		return standard, nil
	}
	return n, nil
}

// FormatSize prints a size as the tools do: "50.0KB".
func FormatSize(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%dB", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1fKB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1fMB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1fGB", float64(n)/(1<<30))
}

// printable is a name as it is, or quoted when it would break the line or is not UTF-8.
func printable(name string) string {
	for _, c := range name {
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return strconv.Quote(name)
		}
	}
	return name
}

// head keeps whole lines from the start of a list, within the limits; ok is false when that is not all.
func head(lines []string, maxLines int) (text string, kept int, ok bool) {
	size := 0
	for kept < len(lines) && kept < maxLines {
		n := len(lines[kept])
		if kept > 0 {
			n++
		}
		if size+n > MaxBytes {
			break
		}
		size += n
		kept++
	}
	return strings.Join(lines[:kept], "\n"), kept, kept == len(lines)
}

// footer joins notices behind a text.
func footer(text string, notices []string) string {
	if len(notices) == 0 {
		return text
	}
	if text != "" {
		text += "\n\n"
	}
	return text + "[" + strings.Join(notices, ". ") + "]"
}

// skippedNotice says what a search left out.
func skippedNotice(s harnesslib.Skipped) []string {
	var out []string
	add := func(n int64, one, many string) {
		if n == 1 {
			out = append(out, "1 "+one)
		} else if n > 1 {
			out = append(out, fmt.Sprintf("%d %s", n, many))
		}
	}
	add(s.Unreadable, "unreadable entry skipped: "+printable(s.FirstUnreadable), "unreadable entries skipped, first: "+printable(s.FirstUnreadable))
	add(s.Binary, "binary file skipped", "binary files skipped")
	add(s.Special, "FIFO, socket or device skipped", "FIFOs, sockets or devices skipped")
	add(s.TooDeep, "directory is too deep and was not searched", "directories are too deep and were not searched")
	add(s.IgnoreFiles, ".gitignore file was not readable", ".gitignore files were not readable")
	add(s.LongLines, "line is over 16 MB and was searched only so far", "lines are over 16 MB and were searched only so far")
	return out
}
