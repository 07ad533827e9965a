package command

import "golang.org/x/sys/unix"

// keepInherited sees to it that no child gets a descriptor that the worker itself was started with. Kernels before 5.11
// do not know how; there the starter must close what is not for the sandbox.
func keepInherited() { _ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) }
