package search

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/files"
	"github.com/sandbus/sandbus/workerd/search/gitignore"
)

// skipped counts what was left out and not because of a rule.
type skipped struct {
	unreadable, binary, special, links, tooDeep, ignoreFiles, longLines int64

	first string // the first unreadable path
}

func (s *skipped) addUnreadable(rel string) {
	if s.unreadable == 0 {
		s.first = rel
	}
	s.unreadable++
}

func (s *skipped) message() *sandbusv1.SearchSkipped {
	m := &sandbusv1.SearchSkipped{
		Unreadable: s.unreadable, Binary: s.binary, Special: s.special, Links: s.links, TooDeep: s.tooDeep,
		IgnoreFiles: s.ignoreFiles, LongLines: s.longLines,
	}
	m.FirstUnreadable, m.FirstUnreadableRaw = bus.ToText(s.first)
	return m
}

// dir is an open directory. It is closed when nobody needs its descriptor any more.
type dir struct {
	f     *os.File
	fd    int
	path  string // absolute
	level *level
	depth int
	refs  atomic.Int32
}

func newDir(f *os.File, path string) *dir {
	d := &dir{f: f, fd: int(f.Fd()), path: path}
	d.refs.Store(1)
	return d
}

func (d *dir) release() {
	if d.refs.Add(-1) == 0 {
		_ = d.f.Close() // read only
	}
}

// entry is a file or a directory on the way.
type entry struct {
	dir  *dir // valid until emit returns, or longer by a reference
	name string
	rel  string // relative to the root
	typ  sandbusv1.FileType
}

func (e entry) isDir() bool { return e.typ == sandbusv1.FileType_FILE_TYPE_DIRECTORY }

// walker goes through a tree in order.
type walker struct {
	ctx     context.Context //nolint:containedctx // the walk's own life
	root    *Root
	scope   scope
	skipped skipped
	base    int    // length of the root's absolute path with its slash
	after   string // go on behind this path; empty: from the start
	// emit gets what no rule leaves out. Its error ends the walk.
	emit func(entry) error
}

// errStop ends a walk early and is no failure.
var errStop = errors.New("enough was found")

// openDir opens the directory that a search begins with.
func (r *Root) openDir(abs string) (*dir, error) {
	f, err := r.open(abs, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return newDir(f, abs), nil
}

// walk goes through a root, which it closes.
func (w *walker) walk(root *dir) error {
	defer root.release()
	if w.scope.gitignore {
		// The rules of the directories above are those of the place where the root really is.
		if real, ok := w.root.real(root.path); ok {
			root.path = real
			root.level = w.ancestors(real)
		}
	}
	w.base = len(strings.TrimSuffix(root.path, "/")) + 1
	return w.visit(root)
}

func (w *walker) rel(path string) string {
	if len(path) < w.base {
		return "."
	}
	return path[w.base:]
}

func (w *walker) visit(d *dir) error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	entries, err := d.f.ReadDir(-1)
	if err != nil {
		w.skipped.addUnreadable(w.rel(d.path)) // and what could be read counts
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	if w.scope.gitignore {
		w.enter(d, entries)
	}
	prefix := strings.TrimSuffix(d.path, "/") + "/"
	for _, e := range entries {
		if err := w.entry(d, prefix, e); err != nil {
			return err
		}
	}
	return nil
}

// enter takes the directory's own rules into account.
func (w *walker) enter(d *dir, entries []fs.DirEntry) {
	find := func(name string) (int, bool) {
		return slices.BinarySearchFunc(entries, name, func(e fs.DirEntry, name string) int { return cmp.Compare(e.Name(), name) })
	}
	if _, found := find(".git"); found && d.depth > 0 {
		d.level = nil // another repository begins here
	}
	i, found := find(".gitignore")
	if !found {
		return
	}
	switch t := entries[i].Type(); {
	case t.IsRegular():
		fd, err := opened(d.fd, ".gitignore", unix.O_NOFOLLOW)
		var f *os.File
		if err == nil {
			f = os.NewFile(uintptr(fd), ".gitignore")
		}
		d.level = w.ignoreFile(f, err, d.path, d.level)
	case t&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0:
		w.skipped.ignoreFiles++
	}
}

func (w *walker) entry(d *dir, prefix string, de fs.DirEntry) error {
	path := prefix + de.Name()
	e := entry{dir: d, name: de.Name(), rel: path[w.base:], typ: typeOf(de.Type())}
	emit := true
	if w.after != "" && comparePaths(e.rel, w.after) <= 0 {
		if !e.isDir() || (e.rel != w.after && !strings.HasPrefix(w.after, e.rel+"/")) {
			return nil
		}
		emit = false
	}
	decision := w.scope.list.Match(e.rel, e.isDir())
	if decision == gitignore.None {
		decision = d.level.decide(path, e.isDir())
	}
	if decision == gitignore.Ignore {
		return nil
	}
	if emit {
		if err := w.emit(e); err != nil {
			return err
		}
	}
	if !e.isDir() {
		return nil
	}
	if d.depth+1 >= w.scope.depth {
		w.skipped.tooDeep++
		return nil
	}
	fd, err := opened(d.fd, e.name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		if err != unix.ENOENT { //nolint:errorlint // unix returns the bare number; vanished meanwhile is no fault
			w.skipped.addUnreadable(e.rel)
		}
		return nil
	}
	child := newDir(os.NewFile(uintptr(fd), path), path)
	defer child.release()
	child.level, child.depth = d.level, d.depth+1
	return w.visit(child)
}

// comparePaths is the order of the walk: that of the names, one directory after the other.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			switch {
			case a[i] == '/':
				return -1
			case b[i] == '/':
				return 1
			}
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

func typeOf(m fs.FileMode) sandbusv1.FileType {
	switch {
	case m.IsRegular():
		return sandbusv1.FileType_FILE_TYPE_REGULAR
	case m.IsDir():
		return sandbusv1.FileType_FILE_TYPE_DIRECTORY
	case m&fs.ModeSymlink != 0:
		return sandbusv1.FileType_FILE_TYPE_SYMLINK
	case m&fs.ModeNamedPipe != 0:
		return sandbusv1.FileType_FILE_TYPE_FIFO
	case m&fs.ModeSocket != 0:
		return sandbusv1.FileType_FILE_TYPE_SOCKET
	case m&fs.ModeCharDevice != 0:
		return sandbusv1.FileType_FILE_TYPE_CHAR_DEVICE
	case m&fs.ModeDevice != 0:
		return sandbusv1.FileType_FILE_TYPE_BLOCK_DEVICE
	}
	return sandbusv1.FileType_FILE_TYPE_UNSPECIFIED
}

// Walk answers fs.walk.
func (r *Root) Walk(ctx context.Context, req *sandbusv1.WalkRequest) (*sandbusv1.WalkResponse, error) {
	limit, err := bounded("limit", req.GetLimit(), defaultEntries, maxEntries)
	if err != nil {
		return nil, err
	}
	resp := &sandbusv1.WalkResponse{Limit: int32(limit)}
	l := listing{limit: limit, details: req.GetDetails(), targets: req.GetTargets(), keep: func(entry) bool { return true }}
	after := bus.FromText(req.GetAfter(), req.GetAfterRaw())
	s, err := r.list(ctx, "walk", bus.FromText(req.GetPath(), req.GetPathRaw()), req.GetScope(), after, &l)
	if err != nil {
		return nil, err
	}
	resp.Entries, resp.More, resp.Skipped = l.entries, l.more, s.message()
	return resp, nil
}

// listing collects entries up to a limit.
type listing struct {
	limit   int
	details bool
	targets bool
	keep    func(entry) bool
	root    *Root
	path    string // of the walk's root, absolute
	entries []*sandbusv1.WalkEntry
	bytes   int // of their paths
	more    bool
}

func (r *Root) list(ctx context.Context, verb, given string, m *sandbusv1.SearchScope, after string, l *listing) (*skipped, error) {
	if err := checkPath(given); err != nil {
		return nil, err
	}
	s, err := newScope(m)
	if err != nil {
		return nil, err
	}
	root, err := r.openDir(r.abs(given))
	if err != nil {
		return nil, r.wrap(ctx, verb, given, err)
	}
	l.root, l.path = r, root.path
	w := &walker{ctx: ctx, root: r, scope: s, after: after, emit: l.add}
	if err := w.walk(root); err != nil && !errors.Is(err, errStop) {
		return nil, r.wrap(ctx, verb, given, err)
	}
	return &w.skipped, nil
}

func (l *listing) add(e entry) error {
	if !l.keep(e) {
		return nil
	}
	if len(l.entries) == l.limit || l.bytes > maxPathBytes {
		l.more = true
		return errStop
	}
	out := &sandbusv1.WalkEntry{Type: e.typ}
	out.Path, out.PathRaw = bus.ToText(e.rel)
	if l.details {
		var st unix.Stat_t
		if err := unix.Fstatat(e.dir.fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil //nolint:nilerr // vanished meanwhile
		}
		out.Size, out.Mode, out.MtimeNs = st.Size, st.Mode&0o7777, st.Mtim.Nano()
	}
	if l.targets && e.typ == sandbusv1.FileType_FILE_TYPE_SYMLINK {
		if mode, _, err := l.root.look(strings.TrimSuffix(l.path, "/")+"/"+e.rel, true); err == nil {
			out.TargetType = files.TypeOf(mode)
		}
	}
	l.entries = append(l.entries, out)
	l.bytes += len(e.rel)
	return nil
}
