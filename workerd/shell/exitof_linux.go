package shell

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// exitOf is the wait status of a process that has ended and that its parent has waited for; ok is false where the
// kernel does not tell (Linux before 6.15). A shell makes 128 and more of a signal, which an exit code can be as well.
func exitOf(pidfd rawFD) (status syscall.WaitStatus, ok bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(int(pidfd), &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return syscall.WaitStatus(info.Exit_code), true
}

// openProcess is a handle of a process; zero when it is gone.
func openProcess(pid int) rawFD {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0
	}
	return rawFD(fd)
}
