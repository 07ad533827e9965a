package files

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// place is where a path of a request leads.
type place struct {
	given string // as the request has it, for messages
	path  string // as the system takes it: absolute, or relative to the root of a confined tree
}

// cage confines a tree: os.Root refuses every path and every link that leads out of it.
type cage struct {
	root  *os.Root
	names []string // the absolute names of the root: as it was configured, and the real one
	dir   string   // where relative paths begin, relative to the root
}

// errLeadsOut is why a path is refused in a confined tree.
var errLeadsOut = errors.New("leads out of the root")

// escapes recognises os.Root's refusal, which the package os does not export.
func escapes(err error) bool {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		err = pe.Err
	}
	return errors.Is(err, errLeadsOut) || err.Error() == "path escapes from parent"
}

func (c *cage) refusal(verb, given string) *bus.Error {
	return &bus.Error{
		Code: sandbusv1.Code_CODE_PERMISSION, Path: given,
		Message: verb + " " + printable(given) + ": leads out of " + printable(c.names[0]) + ", to which this worker is confined (rule: root)",
	}
}

// relative is a path as os.Root takes it. Errors: errLeadsOut.
func (c *cage) relative(given string) (string, error) {
	if given[0] != '/' {
		return c.dir + "/" + given, nil
	}
	for _, name := range c.names {
		rest, ok := strings.CutPrefix(given, name)
		if !ok || (rest != "" && rest[0] != '/' && name != "/") {
			continue
		}
		if rest = strings.TrimLeft(rest, "/"); rest == "" {
			return ".", nil
		}
		return rest, nil
	}
	return "", errLeadsOut
}

// place checks a path.
func (r *Root) place(given string) (place, error) {
	switch {
	case given == "":
		return place{}, bus.Errorf(sandbusv1.Code_CODE_INVALID, "the path is empty")
	case len(given) > MaxPath:
		return place{}, bus.Errorf(sandbusv1.Code_CODE_INVALID, "the path has %d bytes, the bound is %d", len(given), MaxPath)
	case strings.IndexByte(given, 0) >= 0:
		return place{}, bus.Errorf(sandbusv1.Code_CODE_INVALID, "path %.200q has a NUL byte", given)
	case r.cage != nil:
		rel, err := r.cage.relative(given)
		if err != nil {
			return place{}, r.cage.refusal("open", given)
		}
		return place{given, rel}, nil
	case given[0] == '/':
		return place{given, given}, nil
	}
	return place{given, r.dir + "/" + given}, nil
}

// placeOf is place for a request.
func (r *Root) placeOf(req pathRequest) (place, error) {
	return r.place(bus.FromText(req.GetPath(), req.GetPathRaw()))
}

// toRequest is what requests have in common that name a second path.
type toRequest interface {
	GetTo() string
	GetToRaw() []byte
}

func (r *Root) placeTo(req toRequest) (place, error) {
	return r.place(bus.FromText(req.GetTo(), req.GetToRaw()))
}

// split takes the last name off. Nothing is cleaned: ".." means the parent of what a link leads to.
func (p place) split() (dir place, name string) {
	path := strings.TrimRight(p.path, "/")
	i := strings.LastIndexByte(path, '/')
	switch {
	case i > 0:
		return place{p.given, path[:i]}, path[i+1:]
	case i == 0, path == "":
		return place{p.given, "/"}, strings.TrimPrefix(path, "/")
	}
	return place{p.given, "."}, path
}

// handle is an open file. The zero value is none.
type handle struct {
	fd   int
	file *os.File // holds fd open; nil when fd is ours
}

// nowhere stands for no handle.
var nowhere = handle{fd: -1}

func (h handle) close() {
	switch {
	case h.file != nil:
		_ = h.file.Close() // read only, or a directory
	case h.fd >= 0:
		_ = unix.Close(h.fd) // likewise
	}
}

// open opens what a path leads to, without waiting for it.
func (r *Root) open(p place, flags int) (handle, error) {
	// Without O_NONBLOCK a FIFO would block here, and a device might act on the open.
	flags |= unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	if r.cage != nil {
		f, err := r.cage.root.OpenFile(p.path, flags, 0)
		if err != nil {
			return nowhere, err
		}
		return handle{int(f.Fd()), f}, nil
	}
	h := nowhere
	err := ignoringEINTR(func() (err error) {
		h.fd, err = unix.Open(p.path, flags, 0)
		return err
	})
	return h, err
}

// openParent opens the directory in which a path's last name is. Errors: EISDIR when that name can only be a
// directory's.
func (r *Root) openParent(p place) (dir handle, name string, err error) {
	parent, name := p.split()
	if name == "" || name == "." || name == ".." {
		return nowhere, name, unix.EISDIR
	}
	dir, err = r.open(parent, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EACCES) && r.cage == nil { // may be written and not read
		dir, err = r.open(parent, unix.O_PATH|unix.O_DIRECTORY)
	}
	return dir, name, err
}

// at is a path for the system calls that do not follow a link in its last name: without confinement the path itself,
// which saves opening its directory.
func (r *Root) at(p place) (dir handle, fd int, name string, err error) {
	if r.cage == nil {
		return nowhere, unix.AT_FDCWD, p.path, nil
	}
	dir, name, err = r.openParent(p)
	return dir, dir.fd, name, err
}

// stat describes what a path leads to.
func (r *Root) stat(p place, noFollow bool, st *unix.Stat_t) error {
	if r.cage == nil {
		flags := 0
		if noFollow {
			flags = unix.AT_SYMLINK_NOFOLLOW
		}
		return ignoringEINTR(func() error { return unix.Fstatat(unix.AT_FDCWD, p.path, st, flags) })
	}
	stat := r.cage.root.Stat
	if noFollow {
		stat = r.cage.root.Lstat
	}
	fi, err := stat(p.path)
	if err != nil {
		return err
	}
	sys, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return unix.EOPNOTSUPP
	}
	*st = unix.Stat_t{
		Dev: sys.Dev, Ino: sys.Ino, Nlink: sys.Nlink, Mode: sys.Mode, Uid: sys.Uid, Gid: sys.Gid, Size: sys.Size,
		Mtim: unix.Timespec(sys.Mtim),
	}
	return nil
}

// readlinkAt is a link's text.
func readlinkAt(fd int, name string) (string, error) {
	buf := make([]byte, MaxPath+1)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// readlink is the text of the link at a path.
func (r *Root) readlink(p place) (string, error) {
	dir, fd, name, err := r.at(p)
	if err != nil {
		if errors.Is(err, unix.EISDIR) {
			return "", unix.EINVAL
		}
		return "", err
	}
	defer dir.close()
	return readlinkAt(fd, name)
}

// follow is where a link at a path leads.
func (r *Root) follow(p place, link string) (place, error) {
	switch {
	case link == "":
		return p, unix.ENOENT
	case link[0] != '/':
		i := strings.LastIndexByte(p.path, '/')
		return place{p.given, p.path[:i+1] + link}, nil
	case r.cage != nil:
		return p, errLeadsOut // as os.Root: an absolute link is none of this tree
	}
	return place{p.given, link}, nil
}

// target is the file that a change is about: a name in an open directory, so that what happens to the path meanwhile
// does not matter.
type target struct {
	place  place
	dir    handle
	name   string
	st     unix.Stat_t
	exists bool
}

// target follows links to the file that a path leads to, which need not exist. The caller closes it.
func (r *Root) target(p place) (*target, error) {
	if strings.HasSuffix(p.path, "/") {
		return nil, unix.EISDIR
	}
	for range 40 { // as many as the kernel follows (path_resolution(7))
		dir, name, err := r.openParent(p)
		if err != nil {
			return nil, err
		}
		t := &target{place: p, dir: dir, name: name}
		if err := t.look(); err != nil {
			t.close()
			return nil, err
		}
		if !t.exists || t.st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return t, nil
		}
		link, err := readlinkAt(dir.fd, name)
		t.close()
		if err != nil {
			return nil, err
		}
		if p, err = r.follow(p, link); err != nil {
			return nil, err
		}
		if strings.HasSuffix(p.path, "/") {
			return nil, unix.EISDIR
		}
	}
	return nil, unix.ELOOP
}

// targetMakingParents is target for a file whose directory may be missing.
func (r *Root) targetMakingParents(p place, parents bool) (*target, error) {
	t, err := r.target(p)
	if !parents || !errors.Is(err, unix.ENOENT) {
		return t, err
	}
	dir, _ := p.split()
	if err := r.mkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return r.target(p)
}

func (t *target) close() { t.dir.close() }

// look asks again what is there.
func (t *target) look() error {
	err := ignoringEINTR(func() error { return unix.Fstatat(t.dir.fd, t.name, &t.st, unix.AT_SYMLINK_NOFOLLOW) })
	if errors.Is(err, unix.ENOENT) {
		t.exists = false
		return nil
	}
	t.exists = err == nil
	return err
}

// regular refuses a target that is there and no regular file.
func (t *target) regular() error {
	if !t.exists {
		return nil
	}
	return regular(t.place.given, t.st.Mode)
}

// open opens the file itself.
func (t *target) open(flags int, mode uint32) (int, error) {
	fd := -1
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Openat(t.dir.fd, t.name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, mode)
		return err
	})
	return fd, err
}
