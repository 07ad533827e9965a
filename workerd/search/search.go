package search

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// maxPath is the longest path, in bytes (PATH_MAX without its NUL).
	maxPath        = 4095
	defaultEntries = 10_000
	maxEntries     = 100_000
	defaultMatches = 1000
	maxMatches     = 100_000
	// maxDepth keeps the directories that are open at once below any descriptor limit.
	maxDepth       = 200
	maxRules       = 1000
	maxGlobs       = 100
	maxGlob        = 4096
	maxBraces      = 8 // a matcher tries the product of their alternatives
	maxPattern     = 64 << 10
	maxContext     = 100
	defaultLine    = 2000
	maxLine        = 65_536
	maxAnswerBytes = 8 << 20
	maxPathBytes   = 16 << 20
)

func invalid(format string, args ...any) error {
	return bus.Errorf(sandbusv1.Code_CODE_INVALID, format, args...)
}

// bounded is a limit of a request: zero means the default.
func bounded(name string, value int32, standard, bound int) (int, error) {
	if value < 0 || int(value) > bound {
		return 0, invalid("%s %d: want 1 to %d, or 0 for %d", name, value, bound, standard)
	}
	if value == 0 {
		return standard, nil
	}
	return int(value), nil
}

// checkPath refuses what no system call takes.
func checkPath(path string) error {
	switch {
	case path == "":
		return invalid("the path is empty")
	case len(path) > maxPath:
		return invalid("the path has %d bytes, the bound is %d", len(path), maxPath)
	case strings.IndexByte(path, 0) >= 0:
		return invalid("path %.200q has a NUL byte", path)
	}
	return nil
}

var codes = map[syscall.Errno]sandbusv1.Code{
	unix.ENOENT:  sandbusv1.Code_CODE_NOT_FOUND,
	unix.EACCES:  sandbusv1.Code_CODE_PERMISSION,
	unix.EPERM:   sandbusv1.Code_CODE_PERMISSION,
	unix.ENOTDIR: sandbusv1.Code_CODE_NOT_DIRECTORY,
}

// wrap gives an error its code: that of a system error, or aborted when ctx has ended.
func (r *Root) wrap(ctx context.Context, verb, given string, err error) error {
	if err == nil {
		return nil
	}
	if r.cage != nil && leadsOut(err) {
		return r.refusal(verb, given)
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		if be, ok := errors.AsType[*bus.Error](cause); ok {
			return be
		}
		return &bus.Error{Code: sandbusv1.Code_CODE_ABORTED, Path: given, Message: fmt.Sprintf("%s %s: %v", verb, given, cause)}
	}
	if _, ok := errors.AsType[*bus.Error](err); ok {
		return err
	}
	e := &bus.Error{Code: sandbusv1.Code_CODE_IO, Path: given, Message: fmt.Sprintf("%s %s: %v", verb, given, err)}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		e.Errno = int32(errno)
		if c, ok := codes[errno]; ok {
			e.Code = c
		}
		reason := errno.Error()
		if e.Code == sandbusv1.Code_CODE_NOT_FOUND {
			reason = "not found"
		}
		e.Message = fmt.Sprintf("%s %s: %s", verb, given, reason)
	}
	return e
}

// ignoringEINTR repeats a call that a signal interrupted: FUSE and NFS let that happen.
func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR { //nolint:errorlint // unix returns the bare number
			return err
		}
	}
}

// openFlags wait for nobody: a FIFO opens at once, a device does not become the terminal.
const openFlags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY

// opened opens a file.
func opened(dirfd int, name string, flags int) (fd int, err error) {
	err = ignoringEINTR(func() (err error) {
		fd, err = unix.Openat(dirfd, name, openFlags|flags, 0)
		return err
	})
	return fd, err
}
