package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Root is a sandbox's file tree as the worker sees it.
type Root struct {
	dir string // where relative paths begin; absolute
}

// New serves paths; relative ones begin at dir, which must be absolute.
func New(dir string) *Root { return &Root{dir: dir} }

// MaxPath is the longest path, in bytes (PATH_MAX with its NUL).
const MaxPath = 4095

// pathRequest is what all requests have in common that name a path.
type pathRequest interface {
	GetPath() string
	GetPathRaw() []byte
}

// resolve checks the path of a request. It returns the path as it was given, for messages, and as the system takes it.
func (r *Root) resolve(req pathRequest) (given, abs string, err error) {
	given = bus.FromText(req.GetPath(), req.GetPathRaw())
	switch {
	case given == "":
		return "", "", bus.Errorf(sandbusv1.Code_CODE_INVALID, "the path is empty")
	case len(given) > MaxPath:
		return "", "", bus.Errorf(sandbusv1.Code_CODE_INVALID, "the path has %d bytes, the bound is %d", len(given), MaxPath)
	case strings.IndexByte(given, 0) >= 0:
		return "", "", bus.Errorf(sandbusv1.Code_CODE_INVALID, "path %.200q has a NUL byte", given)
	case given[0] == '/':
		return given, given, nil
	}
	return given, r.dir + "/" + given, nil
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

// fileType is the type in a mode of stat(2).
func fileType(mode uint32) sandbusv1.FileType {
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
	fi := &sandbusv1.FileInfo{
		Type: fileType(st.Mode), Size: st.Size, Mode: st.Mode & 0o7777,
		MtimeNs: st.Mtim.Nano(), Uid: st.Uid, Gid: st.Gid,
		Nlink: uint64(st.Nlink), Inode: st.Ino, Device: uint64(st.Dev), //nolint:unconvert // the types differ by system
	}
	fi.Name, fi.NameRaw = bus.ToText(name)
	return fi
}

// regular refuses what is no regular file.
func regular(given string, mode uint32) error {
	switch t := fileType(mode); t {
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
	given, abs, err := r.resolve(req)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if req.GetNoFollow() {
		err = ignoringEINTR(func() error { return unix.Lstat(abs, &st) })
	} else {
		err = ignoringEINTR(func() error { return unix.Stat(abs, &st) })
	}
	if err != nil {
		return nil, wrap("stat", given, err)
	}
	fi := info(filepath.Base(given), &st)
	if fi.GetType() == sandbusv1.FileType_FILE_TYPE_SYMLINK {
		setTarget(fi, abs)
	}
	return &sandbusv1.StatResponse{Info: fi}, nil
}

// setTarget adds a link's text; a link that has just vanished has none.
func setTarget(fi *sandbusv1.FileInfo, path string) {
	buf := make([]byte, MaxPath+1)
	if n, err := unix.Readlink(path, buf); err == nil {
		fi.LinkTarget, fi.LinkTargetRaw = bus.ToText(string(buf[:n]))
	}
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
	given, abs, err := r.resolve(req)
	if err != nil {
		return nil, err
	}
	mode := req.GetMode()
	if mode == 0 {
		mode = 0o777
	}
	if mode > 0o7777 {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "mode %#o: the bound is 07777", mode)
	}
	if req.GetParents() {
		err = mkdirAll(abs, mode)
	} else {
		err = unix.Mkdir(abs, mode)
	}
	if err != nil {
		return nil, wrap("mkdir", given, err)
	}
	return &sandbusv1.MkdirResponse{}, nil
}

// mkdirAll makes a directory with its parents; those get 0777 less umask.
func mkdirAll(abs string, mode uint32) error {
	err := unix.Mkdir(abs, mode)
	if errors.Is(err, unix.ENOENT) {
		if parent := filepath.Dir(abs); parent != abs {
			if err := mkdirAll(parent, 0o777); err != nil {
				return err
			}
			err = unix.Mkdir(abs, mode)
		}
	}
	if errors.Is(err, unix.EEXIST) { // perhaps made by somebody else at the same time
		var st unix.Stat_t
		if serr := unix.Stat(abs, &st); serr != nil {
			return serr
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return &fs.PathError{Op: "mkdir", Path: abs, Err: unix.ENOTDIR}
		}
		return nil
	}
	return err
}
