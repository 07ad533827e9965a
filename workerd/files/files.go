package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Root is a sandbox's file tree as the worker sees it. Its methods may be used by several goroutines.
type Root struct {
	dir      string // where relative paths begin; absolute
	cage     *cage  // nil: paths lead anywhere
	readOnly bool
	locks    locks
	uploads  uploads
}

// Config says what of the file system is served.
type Config struct {
	// Dir is where relative paths begin. Must be absolute, and below Root when that is set.
	Dir string
	// Root is the directory to which all paths are confined; empty means that they are not. Must be absolute.
	Root string
	// ReadOnly refuses all that changes files.
	ReadOnly bool
}

// New serves paths without confinement; relative ones begin at dir, which must be absolute.
func New(dir string) *Root { return &Root{dir: dir} }

// Open serves paths as the configuration says. Errors: Root is no directory that can be opened, Dir is not below it.
func Open(cfg Config) (*Root, error) {
	r := New(cfg.Dir)
	r.readOnly = cfg.ReadOnly
	if cfg.Root == "" {
		return r, nil
	}
	root, err := os.OpenRoot(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("root %q: %w", cfg.Root, err)
	}
	c := &cage{root: root, names: []string{filepath.Clean(cfg.Root)}, dir: "."}
	if real, err := filepath.EvalSymlinks(cfg.Root); err == nil && real != c.names[0] {
		c.names = append(c.names, real)
	}
	if c.dir, err = c.relative(cfg.Dir); err == nil {
		_, err = root.Stat(c.dir)
	}
	if err != nil {
		_ = root.Close() // nothing was changed
		return nil, fmt.Errorf("directory %q: want one below the root %q: %w", cfg.Dir, cfg.Root, err)
	}
	r.cage = c
	return r, nil
}

// Close lets go of the confined root. No method may be called afterwards.
func (r *Root) Close() error {
	if r.cage == nil {
		return nil
	}
	return r.cage.root.Close()
}

// MaxPath is the longest path, in bytes (PATH_MAX with its NUL).
const MaxPath = 4095

// pathRequest is what all requests have in common that name a path.
type pathRequest interface {
	GetPath() string
	GetPathRaw() []byte
}

// resolve checks the path of a request. It returns the path as it was given, for messages, and an absolute one for the
// system. In a confined tree that one is only good for what follows no link.
func (r *Root) resolve(req pathRequest) (given, abs string, err error) {
	p, err := r.placeOf(req)
	if err != nil {
		return "", "", err
	}
	if r.cage == nil {
		return p.given, p.path, nil
	}
	if _, err := r.cage.root.Stat(p.path); err != nil {
		return "", "", r.wrap("open", p, err)
	}
	return p.given, r.cage.names[len(r.cage.names)-1] + "/" + p.path, nil
}

// changing is placeOf for what changes files.
func (r *Root) changing(verb string, req pathRequest) (place, error) {
	p, err := r.placeOf(req)
	if err == nil && r.readOnly {
		err = &bus.Error{
			Code: sandbusv1.Code_CODE_PERMISSION, Errno: int32(unix.EROFS), Path: p.given,
			Message: verb + " " + printable(p.given) + ": this worker's files are read-only (rule: read-only)",
		}
	}
	return p, err
}

// wrap gives an error its code.
func (r *Root) wrap(verb string, p place, err error) error {
	if err != nil && r.cage != nil && escapes(err) {
		return r.cage.refusal(verb, p.given)
	}
	return wrap(verb, p.given, err)
}

// wrap gives a system error its code.
func wrap(verb, given string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*bus.Error](err); ok {
		return err
	}
	e := &bus.Error{Code: sandbusv1.Code_CODE_IO, Path: given}
	if errors.Is(err, bus.ErrAborted) {
		e.Code = sandbusv1.Code_CODE_ABORTED
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e.Errno = int32(errno)
		if c, ok := codes[errno]; ok {
			e.Code = c
		}
	}
	reason := err.Error()
	if e.Errno != 0 {
		reason = errno.Error()
	}
	switch e.Code {
	case sandbusv1.Code_CODE_NOT_FOUND:
		reason = "not found"
	case sandbusv1.Code_CODE_EXISTS:
		reason = "exists already"
	default:
	}
	e.Message = fmt.Sprintf("%s %s: %s", verb, printable(given), reason)
	return e
}

// printable is a path as a message shows it: as it is, unless that could not be read.
func printable(path string) string {
	for _, c := range path {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			return fmt.Sprintf("%q", path)
		}
	}
	return path
}

var codes = map[syscall.Errno]sandbusv1.Code{
	unix.ENOENT:    sandbusv1.Code_CODE_NOT_FOUND,
	unix.EEXIST:    sandbusv1.Code_CODE_EXISTS,
	unix.EACCES:    sandbusv1.Code_CODE_PERMISSION,
	unix.EPERM:     sandbusv1.Code_CODE_PERMISSION,
	unix.EROFS:     sandbusv1.Code_CODE_PERMISSION,
	unix.ENOTDIR:   sandbusv1.Code_CODE_NOT_DIRECTORY,
	unix.EISDIR:    sandbusv1.Code_CODE_IS_DIRECTORY,
	unix.ENOTEMPTY: sandbusv1.Code_CODE_NOT_EMPTY,
	unix.ENXIO:     sandbusv1.Code_CODE_NOT_REGULAR, // open of a socket, or of a FIFO nobody reads
}

// TypeOf is the type in a mode of stat(2).
func TypeOf(mode uint32) sandbusv1.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return sandbusv1.FileType_FILE_TYPE_REGULAR
	case unix.S_IFDIR:
		return sandbusv1.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		return sandbusv1.FileType_FILE_TYPE_SYMLINK
	case unix.S_IFIFO:
		return sandbusv1.FileType_FILE_TYPE_FIFO
	case unix.S_IFSOCK:
		return sandbusv1.FileType_FILE_TYPE_SOCKET
	case unix.S_IFCHR:
		return sandbusv1.FileType_FILE_TYPE_CHAR_DEVICE
	case unix.S_IFBLK:
		return sandbusv1.FileType_FILE_TYPE_BLOCK_DEVICE
	}
	return sandbusv1.FileType_FILE_TYPE_UNSPECIFIED
}

// info is a file's description on the wire.
func info(name string, st *unix.Stat_t) *sandbusv1.FileInfo {
	fi := &sandbusv1.FileInfo{}
	setInfo(fi, name, st)
	return fi
}

func setInfo(fi *sandbusv1.FileInfo, name string, st *unix.Stat_t) {
	fi.Name, fi.NameRaw = bus.ToText(name)
	fi.Type, fi.Size, fi.Mode = TypeOf(st.Mode), st.Size, st.Mode&0o7777
	fi.MtimeNs, fi.Uid, fi.Gid = st.Mtim.Nano(), st.Uid, st.Gid
	fi.Nlink, fi.Inode, fi.Device = uint64(st.Nlink), st.Ino, uint64(st.Dev) //nolint:unconvert // the types differ by system
}

// tooLong is the message for content over a bound.
func tooLong(verb, given string, size, bound int64, instead string) string {
	return fmt.Sprintf("%s %s: %d bytes, the bound is %d: %s", verb, printable(given), size, bound, instead)
}

// regular refuses what is no regular file.
func regular(given string, mode uint32) error {
	switch t := TypeOf(mode); t {
	case sandbusv1.FileType_FILE_TYPE_REGULAR:
		return nil
	case sandbusv1.FileType_FILE_TYPE_DIRECTORY:
		return &bus.Error{Code: sandbusv1.Code_CODE_IS_DIRECTORY, Errno: int32(unix.EISDIR), Path: given, Message: printable(given) + ": is a directory"}
	default:
		return &bus.Error{
			Code: sandbusv1.Code_CODE_NOT_REGULAR, Path: given,
			Message: fmt.Sprintf("%s: is no regular file but a %s", printable(given), typeName(t)),
		}
	}
}

func typeName(t sandbusv1.FileType) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(t.String(), "FILE_TYPE_")), "_", " ")
}

// Stat answers fs.stat.
func (r *Root) Stat(req *sandbusv1.StatRequest) (*sandbusv1.StatResponse, error) {
	p, err := r.placeOf(req)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := r.stat(p, req.GetNoFollow(), &st); err != nil {
		return nil, r.wrap("stat", p, err)
	}
	fi := info(filepath.Base(p.given), &st)
	if fi.GetType() == sandbusv1.FileType_FILE_TYPE_SYMLINK {
		if link, err := r.readlink(p); err == nil { // one that has just vanished has no text
			fi.LinkTarget, fi.LinkTargetRaw = bus.ToText(link)
		}
	}
	return &sandbusv1.StatResponse{Info: fi}, nil
}

// ignoringEINTR repeats a call that a signal interrupted: FUSE and NFS let that happen.
func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Mkdir answers fs.mkdir.
func (r *Root) Mkdir(req *sandbusv1.MkdirRequest) (*sandbusv1.MkdirResponse, error) {
	p, err := r.changing("mkdir", req)
	if err != nil {
		return nil, err
	}
	if err := checkMode(req.GetMode()); err != nil {
		return nil, err
	}
	mode := req.GetMode()
	if mode == 0 {
		mode = 0o777
	}
	if req.GetParents() {
		err = r.mkdirAll(p, mode)
	} else {
		err = r.mkdir(p, mode)
	}
	if err != nil {
		return nil, r.wrap("mkdir", p, err)
	}
	return &sandbusv1.MkdirResponse{}, nil
}

func (r *Root) mkdir(p place, mode uint32) error {
	dir, fd, name, err := r.at(p)
	if errors.Is(err, unix.EISDIR) {
		return unix.EEXIST
	}
	if err != nil {
		return err
	}
	defer dir.close()
	return ignoringEINTR(func() error { return unix.Mkdirat(fd, name, mode) })
}

// mkdirAll makes a directory with its parents; those get 0777 less umask.
func (r *Root) mkdirAll(p place, mode uint32) error {
	err := r.mkdir(p, mode)
	if errors.Is(err, unix.ENOENT) {
		if parent, _ := p.split(); parent.path != p.path {
			if err := r.mkdirAll(parent, 0o777); err != nil {
				return err
			}
			err = r.mkdir(p, mode)
		}
	}
	if errors.Is(err, unix.EEXIST) { // perhaps made by somebody else at the same time
		var st unix.Stat_t
		if serr := r.stat(p, false, &st); serr != nil {
			return serr
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.ENOTDIR
		}
		return nil
	}
	return err
}

// toValid is a text for a field of the schema that holds UTF-8 only.
func toValid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
