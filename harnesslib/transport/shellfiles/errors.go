package shellfiles

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/sandbus/sandbus/harnesslib"
)

// fileError is why a sandbox did not do a file operation: the Err of a *fs.PathError.
type fileError struct {
	errno      syscall.Errno // zero for none
	notRegular bool
	text       string
}

func (e *fileError) Error() string { return e.text }

// Is knows the conditions of io/fs, harnesslib.ErrNotRegular and the system's error numbers.
func (e *fileError) Is(target error) bool {
	if e.notRegular && target == harnesslib.ErrNotRegular {
		return true
	}
	return e.errno != 0 && (target == e.errno || e.errno.Is(target)) || target == fs.ErrInvalid && e.errno == syscall.EINVAL
}

func errnoError(n syscall.Errno) *fileError {
	switch n {
	case syscall.ENOENT:
		return &fileError{errno: n, text: "not found"}
	case syscall.EEXIST:
		return &fileError{errno: n, text: "exists already"}
	default:
		return &fileError{errno: n, text: n.Error()}
	}
}

// reasons are what the programs and shells of a sandbox call the system's errors, in the C locale: those of glibc, musl
// and dash.
var reasons = map[string]syscall.Errno{
	"no such file or directory": syscall.ENOENT, "no such file": syscall.ENOENT, "nonexistent directory": syscall.ENOENT,
	"directory nonexistent": syscall.ENOENT, "file exists": syscall.EEXIST, "permission denied": syscall.EACCES,
	"operation not permitted": syscall.EPERM, "is a directory": syscall.EISDIR, "not a directory": syscall.ENOTDIR,
	"directory not empty": syscall.ENOTEMPTY, "read-only file system": syscall.EROFS, "no space left on device": syscall.ENOSPC,
	"file name too long": syscall.ENAMETOOLONG, "filename too long": syscall.ENAMETOOLONG,
	"too many levels of symbolic links": syscall.ELOOP, "symbolic link loop": syscall.ELOOP, "too many symbolic links": syscall.ELOOP,
	"invalid argument": syscall.EINVAL, "input/output error": syscall.EIO, "i/o error": syscall.EIO, "disk quota exceeded": syscall.EDQUOT,
	"quota exceeded": syscall.EDQUOT, "device or resource busy": syscall.EBUSY, "resource busy": syscall.EBUSY,
	"invalid cross-device link": syscall.EXDEV, "cross-device link": syscall.EXDEV, "file too large": syscall.EFBIG, "text file busy": syscall.ETXTBSY,
}

// failure is the reason of a function that returned a code, with what it printed on its standard error.
func failure(code int, stderr []byte) error {
	switch code {
	case codeNotFound:
		return errnoError(syscall.ENOENT)
	case codeExists:
		return errnoError(syscall.EEXIST)
	case codePermission:
		return errnoError(syscall.EACCES)
	case codeIsDir:
		return errnoError(syscall.EISDIR)
	case codeNotDir:
		return errnoError(syscall.ENOTDIR)
	case codeNotRegular:
		return &fileError{notRegular: true, text: "is a FIFO, socket or device"}
	case codeInvalid:
		return errnoError(syscall.EINVAL)
	case codeLoop:
		return errnoError(syscall.ELOOP)
	case codeShort:
		return &fileError{errno: syscall.EIO, text: "fewer bytes arrived than were sent"}
	}
	said := strings.TrimSpace(string(stderr))
	last := said[strings.LastIndexByte(said, '\n')+1:]
	reason := last[strings.LastIndexByte(last, ':')+1:]
	if n, ok := reasons[strings.ToLower(strings.TrimSpace(reason))]; ok {
		return errnoError(n)
	}
	switch code {
	case codeUnsupported:
		return &fileError{text: "the sandbox lacks a program that this needs, or it is another one: " + printable(last)}
	case 127:
		return &fileError{text: "the sandbox lacks a program that this needs: " + printable(last)}
	}
	return &fileError{text: fmt.Sprintf("exit code %d: %s", code, printable(last))}
}

// printable is a sandbox's text, shortened and quoted where it is not plain.
func printable(s string) string {
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	q := fmt.Sprintf("%q", s)
	if q[1:len(q)-1] == s {
		return s
	}
	return q
}
