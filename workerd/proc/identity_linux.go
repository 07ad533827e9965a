package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Status is what the kernel says of the worker's own process.
type Status struct {
	UID, GID     uint32 // effective
	FSUID, FSGID uint32 // for access to files
	Capabilities uint64 // effective: bit n is capability n of capabilities(7)
	NoNewPrivs   bool
}

// ReadStatus reads /proc/self/status. Errors: the system has none.
func ReadStatus() (Status, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Status{}, err
	}
	return parseStatus(string(b))
}

// parseStatus reads the lines of proc_pid_status(5).
func parseStatus(text string) (s Status, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		f := strings.Fields(value)
		switch {
		case name == "Uid" && len(f) == 4: // real, effective, saved, file system
			s.UID, s.FSUID, err = twoIDs(f[1], f[3])
		case name == "Gid" && len(f) == 4:
			s.GID, s.FSGID, err = twoIDs(f[1], f[3])
		case name == "CapEff" && len(f) == 1:
			s.Capabilities, err = strconv.ParseUint(f[0], 16, 64)
		case name == "NoNewPrivs" && len(f) == 1:
			s.NoNewPrivs = f[0] == "1"
		}
		if err != nil {
			return Status{}, fmt.Errorf("/proc/self/status: %s: %w", name, err)
		}
	}
	return s, nil
}

func twoIDs(a, b string) (x, y uint32, err error) {
	n, err1 := strconv.ParseUint(a, 10, 32)
	m, err2 := strconv.ParseUint(b, 10, 32)
	return uint32(n), uint32(m), errors.Join(err1, err2)
}

// FileCapabilities are the capabilities that let a process pass by the permissions of files; a process that acts on
// files as another user does not have them there (capabilities(7), "Effect of user ID changes").
const FileCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_LINUX_IMMUTABLE | 1<<unix.CAP_MKNOD | 1<<unix.CAP_MAC_OVERRIDE

// acting is who this process is for files, when it is somebody else than itself.
var acting atomic.Pointer[struct{ own, as ID }]

// ErrNotStatic says that a binary with cgo cannot act on files as somebody else.
var ErrNotStatic = errors.New("this binary was built with cgo: want one built with CGO_ENABLED=0")

// ActOnFilesAs makes this whole process access files as another user, without supplementary groups: what it makes
// belongs to that user, and what that user may not touch it does not touch. It keeps its identity otherwise. No other
// process may look into it from then on (PR_SET_DUMPABLE). It is called once, for good. Errors: ErrNotStatic; it may
// not change identities.
func ActOnFilesAs(id ID) error {
	st, err := ReadStatus()
	if err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		if errno == syscall.ENOTSUP {
			return ErrNotStatic
		}
		return os.NewSyscallError("setgroups", errno)
	}
	// These two return who it was before, and no error.
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_SETFSGID, uintptr(id.GID), 0, 0)
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_SETFSUID, uintptr(id.UID), 0, 0)
	now, err := ReadStatus()
	if err != nil {
		return err
	}
	if now.FSUID != id.UID || now.FSGID != id.GID {
		return fmt.Errorf("act on files as %d:%d: still %d:%d", id.UID, id.GID, now.FSUID, now.FSGID)
	}
	acting.Store(&struct{ own, as ID }{own: ID{st.FSUID, st.FSGID}, as: id})
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// AsSelf runs f with the rights on files that the process had before ActOnFilesAs. f runs on a goroutine of its own,
// whose thread ends with it; goroutines that f starts do not have them.
func AsSelf(f func() error) error {
	if acting.Load() == nil {
		return f()
	}
	return onOwnThread(func() error {
		regainHere()
		return f()
	})
}

// onOwnThread runs f on a thread that ends with it, and with what f has changed of the thread.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the main thread never ends, and stands for the whole process in /proc
			defer runtime.UnlockOSThread()
			result <- onOwnThread(f) // while we hold the main thread, that goroutine has another one
			return
		}
		result <- f()
	}()
	return <-result
}

// regainHere undoes ActOnFilesAs for this thread, which must be locked and end with its goroutine.
func regainHere() {
	if a := acting.Load(); a != nil {
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(a.own.UID), 0, 0) // says who it was, no error
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(a.own.GID), 0, 0)
	}
}

// becomeHere gives this thread another identity for good; it must be locked and end with its goroutine.
func becomeHere(id ID) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(id.GID), uintptr(id.GID), uintptr(id.GID)); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id.UID), uintptr(id.UID), uintptr(id.UID)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}
