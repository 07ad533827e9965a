package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"sync"
)

// FS is a tree of a sandbox's files as io/fs has it. As with os.DirFS, a symbolic link may lead out of the tree; a
// worker that is confined refuses such links itself. Its methods may be used by several goroutines.
type FS struct {
	sb  *Sandbox
	ctx context.Context //nolint:containedctx // io/fs has no place for one
	dir string          // empty: the sandbox's directory
}

var (
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.StatFS     = (*FS)(nil)
	_ fs.ReadLinkFS = (*FS)(nil)
	_ fs.GlobFS     = (*FS)(nil)
	_ fs.SubFS      = (*FS)(nil)
)

// FS is the tree below the sandbox's directory. ctx ends all that is done with it.
func (s *Sandbox) FS(ctx context.Context) *FS { return &FS{sb: s, ctx: ctx} }

// DirFS is the tree below a directory, which need not exist yet.
func (s *Sandbox) DirFS(ctx context.Context, dir string) *FS { return &FS{sb: s, ctx: ctx, dir: dir} }

// resolve is a name of the tree as the sandbox has it.
func (f *FS) resolve(op, name string) (string, error) {
	switch {
	case !fs.ValidPath(name):
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	case f.dir == "":
		return name, nil
	case name == ".":
		return f.dir, nil
	}
	return path.Join(f.dir, name), nil
}

// named is an error about a name of the tree.
func named(op, name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: op, Path: name, Err: pe.Err}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// renamed describes a file by the name under which the tree was asked for it.
type renamed struct {
	fs.FileInfo
	name string
}

func (r renamed) Name() string   { return r.name }
func (r renamed) String() string { return fs.FormatFileInfo(r) }

// Open opens a file or directory; a file's first 256 KiB come with it, the rest as it is read. The file is also an
// io.ReaderAt and an io.Seeker.
func (f *FS) Open(name string) (fs.File, error) {
	at, err := f.resolve("open", name)
	if err != nil {
		return nil, err
	}
	results, err := f.sb.Batch(f.ctx, StatOp(at), ReadOp(at, 0, readAhead))
	if err == nil {
		err = results[0].Err
	}
	if err != nil {
		return nil, named("open", name, err)
	}
	info := renamed{results[0].Info, path.Base(name)}
	if info.IsDir() {
		return &openDir{fsys: f, name: name, at: at, info: info}, nil
	}
	of := &openFile{fsys: f, name: name, at: at, info: info, first: results[1].Data}
	if err := results[1].Err; err != nil && info.Mode().IsRegular() {
		return nil, named("open", name, err)
	}
	return of, nil
}

// readAhead is how many bytes a file fetches at once: what comes in one message.
const readAhead = 256 << 10

// openFile is an open file of the tree.
type openFile struct {
	fsys     *FS
	name, at string
	info     renamed
	first    []byte // the file's beginning

	mu     sync.Mutex // guards the fields below
	offset int64
	buf    []byte // of the file, from bufAt on
	bufAt  int64
	closed bool
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }

func (f *openFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	f.buf = nil
	return nil
}

func (f *openFile) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.readLocked(b, f.offset)
	f.offset += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// ReadAt is io.ReaderAt's.
func (f *openFile) ReadAt(b []byte, offset int64) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset < 0 {
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: fs.ErrInvalid}
	}
	for n < len(b) && err == nil {
		var k int
		k, err = f.readLocked(b[n:], offset+int64(n))
		n += k
	}
	return n, err
}

// readLocked reads from what is here, or fetches the next piece.
func (f *openFile) readLocked(b []byte, offset int64) (int, error) {
	if f.closed {
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: fs.ErrClosed}
	}
	if len(b) == 0 {
		return 0, nil
	}
	if offset < int64(len(f.first)) {
		return copy(b, f.first[offset:]), nil
	}
	if len(f.first) < readAhead && f.info.Mode().IsRegular() {
		return 0, io.EOF
	}
	if offset < f.bufAt || offset >= f.bufAt+int64(len(f.buf)) {
		data, err := f.fsys.sb.ReadRange(f.fsys.ctx, f.at, offset, readAhead)
		if err != nil {
			return 0, named("read", f.name, err)
		}
		if len(data) == 0 {
			return 0, io.EOF
		}
		f.buf, f.bufAt = data, offset
	}
	return copy(b, f.buf[offset-f.bufAt:]), nil
}

// Seek is io.Seeker's.
func (f *openFile) Seek(offset int64, whence int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.info.Size()
	default:
		offset = -1
	}
	if offset < 0 {
		return 0, &fs.PathError{Op: "seek", Path: f.name, Err: fs.ErrInvalid}
	}
	f.offset = offset
	return offset, nil
}

// openDir is an open directory of the tree.
type openDir struct {
	fsys     *FS
	name, at string
	info     renamed

	mu   sync.Mutex // guards the fields below
	next func() (fs.DirEntry, error, bool)
	stop func()
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: errors.New("is a directory")}
}

func (d *openDir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
		d.stop = func() {}
		d.next = func() (fs.DirEntry, error, bool) { return nil, fs.ErrClosed, true }
	}
	return nil
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == nil {
		d.next, d.stop = iter.Pull2(d.fsys.sb.Entries(d.fsys.ctx, d.at))
	}
	entries := []fs.DirEntry{}
	for n <= 0 || len(entries) < n {
		e, err, ok := d.next()
		if err != nil {
			return entries, named("readdir", d.name, err)
		}
		if !ok {
			if n > 0 && len(entries) == 0 {
				return entries, io.EOF
			}
			return entries, nil
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// ReadDir returns a directory's entries, sorted by name.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	at, err := f.resolve("readdir", name)
	if err != nil {
		return nil, err
	}
	entries, err := f.sb.ReadDir(f.ctx, at)
	if err != nil {
		return nil, named("readdir", name, err)
	}
	return entries, nil
}

// ReadFile returns a file's content, as Sandbox.ReadFile does.
func (f *FS) ReadFile(name string) ([]byte, error) {
	at, err := f.resolve("read", name)
	if err != nil {
		return nil, err
	}
	data, err := f.sb.ReadFile(f.ctx, at)
	if err != nil {
		return nil, named("read", name, err)
	}
	return data, nil
}

// Stat describes what a name leads to.
func (f *FS) Stat(name string) (fs.FileInfo, error) { return f.stat("stat", name, f.sb.Stat) }

// Lstat is Stat that describes a symbolic link itself.
func (f *FS) Lstat(name string) (fs.FileInfo, error) { return f.stat("lstat", name, f.sb.Lstat) }

func (f *FS) stat(op, name string, stat func(context.Context, string) (fs.FileInfo, error)) (fs.FileInfo, error) {
	at, err := f.resolve(op, name)
	if err != nil {
		return nil, err
	}
	info, err := stat(f.ctx, at)
	if err != nil {
		return nil, named(op, name, err)
	}
	return renamed{info, path.Base(name)}, nil
}

// ReadLink returns the text of a symbolic link.
func (f *FS) ReadLink(name string) (string, error) {
	at, err := f.resolve("readlink", name)
	if err != nil {
		return "", err
	}
	link, err := f.sb.ReadLink(f.ctx, at)
	if err != nil {
		return "", named("readlink", name, err)
	}
	return link, nil
}

// Glob is fs.Glob, with a request for each directory that may hold matches.
func (f *FS) Glob(pattern string) ([]string, error) { return fs.Glob(withoutGlob{f}, pattern) }

// withoutGlob hides Glob from fs.Glob, which would call it.
type withoutGlob struct{ fsys *FS }

func (w withoutGlob) Open(name string) (fs.File, error)          { return w.fsys.Open(name) }
func (w withoutGlob) ReadDir(name string) ([]fs.DirEntry, error) { return w.fsys.ReadDir(name) }
func (w withoutGlob) Stat(name string) (fs.FileInfo, error)      { return w.fsys.Stat(name) }

// Sub is the tree below a directory.
func (f *FS) Sub(dir string) (fs.FS, error) {
	at, err := f.resolve("sub", dir)
	if err != nil {
		return nil, err
	}
	return &FS{sb: f.sb, ctx: f.ctx, dir: at}, nil
}

func (f *FS) String() string { return fmt.Sprintf("sandbox %s:%s", f.sb.ID(), f.dir) }
