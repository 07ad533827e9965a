package command

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tokenVar is the credential's variable, tokenFDVar that of the descriptor which has it.
const (
	tokenVar   = "SANDBUS_TOKEN"
	tokenFDVar = "SANDBUS_TOKEN_FD" //nolint:gosec // G101: the name of a variable
)

// hideToken starts this program anew when its credential stands in its environment or arguments: /proc shows those of
// a process as they were at its start, whatever it does to its variables later. The new one, which is the same process,
// reads the credential from a file without a name. args are the arguments behind the program's and verb's names, given
// the same without the credential. It returns only when there is nothing to hide, or with an error.
func (o *options) hideToken(args, given []string) error {
	if o.token == "" {
		return nil
	}
	if o.tokenFD != 0 || o.credsFile != "" || len(o.credsCommand) > 0 || o.insecure {
		return errBothSet
	}
	fd, err := unix.MemfdCreate("sandbus-credential", 0) // without CLOEXEC: it is for the new program
	if err != nil {
		return fmt.Errorf("hide the credential: %w", os.NewSyscallError("memfd_create", err))
	}
	f := os.NewFile(uintptr(fd), "credential")
	if _, err = f.WriteString(o.token); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		return fmt.Errorf("hide the credential: %w", errors.Join(err, f.Close()))
	}
	argv := os.Args
	if n := len(argv) - len(args); n >= 0 && slices.Equal(argv[n:], args) {
		argv = append(slices.Clip(argv[:n]), given...)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, tokenVar+"=") })
	env = append(env, tokenFDVar+"="+strconv.Itoa(fd))
	err = syscall.Exec("/proc/self/exe", argv, env) //nolint:gosec // G204: it is this program
	if errors.Is(err, unix.ENOENT) {                // no /proc: then nobody else can look either
		return f.Close()
	}
	return fmt.Errorf("hide the credential: %w", errors.Join(os.NewSyscallError("exec", err), f.Close()))
}
