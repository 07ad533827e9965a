package shellfiles

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
)

// Runner runs commands in the sandbox. A transport is one.
type Runner interface {
	Exec(ctx context.Context, c transport.Command) (*transport.Result, error)
}

// FunctionRunner is a Runner that may keep a function's text from one command to the next. The command's script is a
// call of the function, which may run in a shell that lives on.
type FunctionRunner interface {
	ExecFunction(ctx context.Context, f Function, c transport.Command) (*transport.Result, error)
}

const (
	// maxReadFile bounds what ReadFile holds in memory, in bytes.
	maxReadFile = 1 << 30
	// quickRead is how much of a file CopyFrom takes in one command; a longer one it reads as a stream.
	quickRead = 256 << 10
	// maxList bounds what ReadDir holds in memory, in bytes: about a million entries.
	maxList = 256 << 20
)

// Files does file operations by commands. Use New.
type Files struct{ run Runner }

var _ transport.Files = (*Files)(nil)

// New makes file operations of what can run commands.
func New(run Runner) *Files { return &Files{run} }

// request is one call of a function.
type request struct {
	op, name string // of the error
	fn       Function
	args     []string
	read     bool // changes nothing
	limit    int64
	stdin    io.Reader
	stdout   io.Writer
}

// call runs a function; an error of the sandbox is a *fs.PathError.
func (f *Files) call(ctx context.Context, r request) (*transport.Result, error) {
	fail := func(err error) error { return &fs.PathError{Op: r.op, Path: r.name, Err: err} }
	for _, a := range r.args {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, fail(&fileError{errno: syscall.EINVAL, text: fmt.Sprintf("NUL byte at offset %d", strings.IndexByte(a, 0))})
		}
	}
	if r.name == "" {
		return nil, fail(errnoError(syscall.ENOENT))
	}
	c := transport.Command{
		Script: r.fn.Name + " " + transport.Join(r.args...), Stdin: r.stdin, Stdout: r.stdout, OutputLimit: r.limit, Repeatable: r.read,
	}
	var said stderr
	if r.stdout != nil {
		c.Stderr = &said
	}
	res, err := f.exec(ctx, r.fn, c)
	switch {
	case err != nil:
		return nil, err
	case res.Truncated:
		return nil, fail(fmt.Errorf("%w: more than %d bytes", harnesslib.ErrTooLarge, c.Limit()))
	case res.ExitCode == nil:
		return nil, fmt.Errorf("%w: %s %s: the shell was killed", transport.ErrLost, r.op, printable(r.name))
	case *res.ExitCode == 0:
		return res, nil
	}
	return nil, fail(failure(*res.ExitCode, append(said.b, res.Stderr...)))
}

func (f *Files) exec(ctx context.Context, fn Function, c transport.Command) (*transport.Result, error) {
	if fr, ok := f.run.(FunctionRunner); ok {
		return fr.ExecFunction(ctx, fn, c)
	}
	c.Script = fn.Text + "\n" + c.Script
	return f.run.Exec(ctx, c)
}

// stderr keeps the end of a standard error.
type stderr struct{ b []byte }

func (s *stderr) Write(b []byte) (int, error) {
	s.b = append(s.b, b...)
	s.b = s.b[max(0, len(s.b)-4096):]
	return len(b), nil
}

// arg is a path as an argument, which is never taken for an option.
func arg(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return "./" + name
}

// ReadFile returns the content of a regular file of at most 1 GiB.
func (f *Files) ReadFile(ctx context.Context, name string) ([]byte, error) {
	res, err := f.call(ctx, request{op: "read", name: name, fn: fnRead, args: []string{arg(name)}, read: true, limit: maxReadFile})
	if err != nil {
		return nil, err
	}
	if res.Stdout == nil {
		return []byte{}, nil
	}
	return res.Stdout, nil
}

// CopyFrom writes the content of a regular file to w, in constant memory. When it fails, w may have got a part.
func (f *Files) CopyFrom(ctx context.Context, name string, w io.Writer) error {
	res, err := f.call(ctx, request{
		op: "read", name: name, fn: fnHead, args: []string{arg(name), fmt.Sprint(quickRead + 1)}, read: true,
	})
	if err != nil {
		return err
	}
	if len(res.Stdout) <= quickRead {
		_, err = w.Write(res.Stdout)
		return err
	}
	_, err = f.call(ctx, request{op: "read", name: name, fn: fnRead, args: []string{arg(name)}, stdout: w})
	return err
}

// Mkdir makes a directory, with perm less the sandbox's umask.
func (f *Files) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.mkdir(ctx, name, perm, "")
}

// MkdirAll makes a directory and its missing parents, and is content with one that is there. The parents get the
// sandbox's standard mode.
func (f *Files) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return f.mkdir(ctx, name, perm, "-p")
}

func (f *Files) mkdir(ctx context.Context, name string, perm fs.FileMode, parents string) error {
	_, err := f.call(ctx, request{op: "mkdir", name: name, fn: fnMkdir, args: []string{arg(name), octal(perm), parents}})
	return err
}

func octal(perm fs.FileMode) string { return fmt.Sprintf("%o", perm.Perm()) }

// Remove removes a file, a link itself, or an empty directory.
func (f *Files) Remove(ctx context.Context, name string) error {
	_, err := f.call(ctx, request{op: "remove", name: name, fn: fnRemove, args: []string{arg(name)}})
	return err
}

// RemoveAll removes a path and all below it; it is content when there is nothing.
func (f *Files) RemoveAll(ctx context.Context, name string) error {
	base := strings.TrimRight(name, "/")
	if base = base[strings.LastIndexByte(base, '/')+1:]; name != "" && (base == "" || base == "." || base == "..") {
		return &fs.PathError{Op: "remove", Path: name, Err: errnoError(syscall.EINVAL)}
	}
	_, err := f.call(ctx, request{op: "remove", name: name, fn: fnRemoveAll, args: []string{arg(name)}})
	return err
}

// Rename gives a file, a link itself or a directory another name, as os.Rename does.
func (f *Files) Rename(ctx context.Context, oldName, newName string) error {
	if newName == "" {
		return &fs.PathError{Op: "rename", Path: newName, Err: errnoError(syscall.ENOENT)}
	}
	_, err := f.call(ctx, request{op: "rename", name: oldName, fn: fnRename, args: []string{arg(oldName), arg(newName)}})
	return err
}

// Chmod sets the permission bits, with setuid, setgid and sticky as os.Chmod has them.
func (f *Files) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	bits := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	_, err := f.call(ctx, request{op: "chmod", name: name, fn: fnChmod, args: []string{arg(name), fmt.Sprintf("%04o", bits)}})
	return err
}

// Symlink makes newName a symbolic link with the text oldName, as os.Symlink does.
func (f *Files) Symlink(ctx context.Context, oldName, newName string) error {
	if oldName == "" {
		return &fs.PathError{Op: "symlink", Path: newName, Err: errnoError(syscall.ENOENT)}
	}
	_, err := f.call(ctx, request{op: "symlink", name: newName, fn: fnSymlink, args: []string{oldName, arg(newName)}})
	return err
}

// ReadLink returns the text of a symbolic link.
func (f *Files) ReadLink(ctx context.Context, name string) (string, error) {
	res, err := f.call(ctx, request{op: "readlink", name: name, fn: fnReadLnk, args: []string{arg(name)}, read: true})
	if err != nil {
		return "", err
	}
	return string(res.Stdout), nil
}

// Hash returns the SHA-256 of a regular file, computed in the sandbox.
func (f *Files) Hash(ctx context.Context, name string) (sum [sha256.Size]byte, err error) {
	res, err := f.call(ctx, request{op: "hash", name: name, fn: fnHash, args: []string{arg(name)}, read: true})
	if err != nil {
		return sum, err
	}
	if len(res.Stdout) < hex.EncodedLen(sha256.Size) {
		err = hex.ErrLength
	} else {
		_, err = hex.Decode(sum[:], res.Stdout[:hex.EncodedLen(sha256.Size)])
	}
	if err != nil {
		err = &fs.PathError{Op: "hash", Path: name, Err: fmt.Errorf("the sandbox answers %s", printable(string(res.Stdout)))}
	}
	return sum, err
}
