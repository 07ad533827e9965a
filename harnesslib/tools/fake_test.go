package tools

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"sync"

	"github.com/sandbus/sandbus/harnesslib"
)

// fakeFiles is a Resolver, Reader and Writer over a map of absolute paths.
type fakeFiles struct {
	mu    sync.Mutex // guards the fields below
	files map[string][]byte
	dirs  map[string]bool
	modes map[string]fs.FileMode
	alike map[string]string // what ResolvePath finds for a path
	asked []string          // paths that were to be resolved
}

func newFakeFiles(files map[string]string) *fakeFiles {
	f := &fakeFiles{files: map[string][]byte{}, dirs: map[string]bool{"/": true, "/tmp": true}, modes: map[string]fs.FileMode{}, alike: map[string]string{}}
	for name, text := range files {
		f.files[name] = []byte(text)
	}
	return f
}

func (f *fakeFiles) ResolvePath(_ context.Context, path, dir string, _ bool) (harnesslib.Resolved, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, path)
	if to, ok := f.alike[path]; ok {
		path = to
	} else if path[0] != '/' {
		path = dir + "/" + path
	}
	data, ok := f.files[path]
	return harnesslib.Resolved{Path: path, Exists: ok, Size: int64(len(data))}, nil
}

func (f *fakeFiles) CopyFrom(_ context.Context, name string, w io.Writer) error {
	f.mu.Lock()
	data, ok := f.files[name]
	f.mu.Unlock()
	if !ok {
		return &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	for len(data) > 0 { // in pieces that end anywhere
		n := min(len(data), 777)
		if _, err := w.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (f *fakeFiles) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return f.WriteFile(ctx, name, data, perm)
}

func (f *fakeFiles) WriteFile(_ context.Context, name string, data []byte, perm fs.FileMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir := name[:bytes.LastIndexByte([]byte(name), '/')]
	if dir != "" && !f.dirs[dir] {
		return &fs.PathError{Op: "write", Path: name, Err: fs.ErrNotExist}
	}
	f.files[name], f.modes[name] = data, perm
	return nil
}

func (f *fakeFiles) MkdirAll(_ context.Context, name string, _ fs.FileMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirs[name] = true
	return nil
}

func (f *fakeFiles) tools(cfg Config) *Tools {
	cfg.Resolver, cfg.Reader, cfg.Writer = f, f, f
	return New(cfg)
}

// fakeEditor notes what it is asked and answers with done and err.
type fakeEditor struct {
	path  string
	edits []Replacement
	done  Edited
	err   error
}

func (e *fakeEditor) Edit(_ context.Context, path string, edits []Replacement) (Edited, error) {
	e.path, e.edits = path, edits
	return e.done, e.err
}

// fakeShell is a function.
type fakeShell func(context.Context, Command) error

func (f fakeShell) Run(ctx context.Context, c Command) error { return f(ctx, c) }

// fakeSearcher answers with what it has, and notes the options.
type fakeSearcher struct {
	listing *harnesslib.Listing
	result  *harnesslib.GrepResult
	err     error
	walk    []harnesslib.WalkOptions
	glob    harnesslib.GlobOptions
	grep    harnesslib.GrepOptions
}

func (s *fakeSearcher) Walk(_ context.Context, _ string, o harnesslib.WalkOptions) (*harnesslib.Listing, error) {
	s.walk = append(s.walk, o)
	return s.listing, s.err
}

func (s *fakeSearcher) Glob(_ context.Context, _, _ string, o harnesslib.GlobOptions) (*harnesslib.Listing, error) {
	s.glob = o
	return s.listing, s.err
}

func (s *fakeSearcher) Grep(_ context.Context, _, _ string, o harnesslib.GrepOptions) (*harnesslib.GrepResult, error) {
	s.grep = o
	return s.result, s.err
}
