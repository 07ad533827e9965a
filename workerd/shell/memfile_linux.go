package shell

import (
	"os"

	"golang.org/x/sys/unix"
)

// memfile is a file without a name that holds a text, at its start.
func memfile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("sandbus-script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "script")
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close() // the error that counts is err
		return nil, err
	}
	return f, nil
}
