package transport

import (
	"context"
	"crypto/sha256"
	"io"
	"io/fs"
	"time"

	"github.com/sandbus/sandbus/harnesslib/tools"
)

// Transport reaches one sandbox. Its methods may be called at once, Close too.
type Transport interface {
	// Exec runs a command and waits for its end. Errors: see the package's doc.
	Exec(ctx context.Context, c Command) (*Result, error)
	// Files are the sandbox's files.
	Files() Files
	// FastTier says what serves short operations.
	FastTier() FastTier
	// StopMechanism says how a command is stopped before its end.
	StopMechanism() StopMechanism
	// Streams says whether a Command's writers get output while it runs. Where it is false they get it at the end.
	Streams() bool
	// Close ends what the transport holds open, and what runs through it, which fails with ErrClosed. It may be called
	// again, and leaves no process of the transport's.
	Close() error
}

// Command is shell text that is to run, and what it runs in. It means what "bash -c" makes of it, or sh where there is
// no bash; [Join] makes one of a program and its arguments. Its state (directory, variables) ends with it.
type Command struct {
	// Script is the text; a NUL byte is refused.
	Script string
	// Dir is the working directory; empty means the transport's.
	Dir string
	// Env is added to the sandbox's environment, NAME=value each.
	Env []string
	// Stdin is the standard input; nil means /dev/null. It is read until its end or the command's; a read that is
	// blocked then is not waited for. A command with input takes the stream tier.
	Stdin io.Reader
	// Timeout ends the command after that time; zero means none, or the transport's ceiling. It is counted in whole
	// seconds where a transport's protocol does so, rounded up.
	Timeout time.Duration
	// OutputLimit is how many bytes of standard output are taken: one more ends the command. The same holds for standard
	// error; a transport may count both together. Zero means DefaultOutputLimit in the collected form, and none with
	// Stdout.
	OutputLimit int64
	// Stdout and Stderr take the output as it comes, never both at once, and the result has none. Stdout nil means the
	// collected form; Stderr nil with Stdout set discards. A writer that blocks holds the command back; the error of one
	// aborts it and is returned. When both are the same, comparable value the order is kept.
	Stdout io.Writer
	Stderr io.Writer
	// Repeatable says that running it twice does no harm: a transport that lost it may run it once more.
	Repeatable bool
}

// DefaultOutputLimit is how many bytes the collected form holds unless a command says otherwise.
const DefaultOutputLimit = 8 << 20

// Streaming says that the output is wanted as it comes.
func (c *Command) Streaming() bool { return c.Stdout != nil || c.Stderr != nil }

// Limit is the output limit that holds, in bytes; below zero means none.
func (c *Command) Limit() int64 {
	switch {
	case c.OutputLimit > 0:
		return c.OutputLimit
	case c.Stdout != nil:
		return -1
	}
	return DefaultOutputLimit
}

// Result is how a command ended.
type Result struct {
	// Stdout and Stderr are what it printed, in the collected form. Truncated says that there was more; then the one that
	// was too long ends with TruncatedMarker.
	Stdout    []byte
	Stderr    []byte
	Truncated bool
	// ExitCode is what it exited with, 0 to 255; nil when it did not, or was truncated. A transport that sees the command
	// only through a shell has 128 + N for one that signal N killed.
	ExitCode *int
	// Signal is what killed it, without SIG: "KILL"; empty when that is not known.
	Signal string
	// PipeHeld says that a process which the command left behind still held its output.
	PipeHeld bool
	// Tier is what served it.
	Tier Tier
}

// TruncatedMarker is what stands behind an output that was cut, in the collected form.
const TruncatedMarker = "\n[output truncated]"

// Files are the file operations of a sandbox, as *harnesslib.Sandbox has them, and with the same errors: *fs.PathError,
// for which errors.Is knows the conditions of io/fs, harnesslib.ErrNotRegular for a FIFO, socket or device, and the
// system's error numbers; and those of the fabric. Relative paths begin at the transport's directory.
//
// Writes replace a file atomically, keep its mode and go through a symbolic link. Whether they are synced to the disk
// is the transport's.
type Files interface {
	tools.Reader
	tools.Writer
	ReadFile(ctx context.Context, name string) ([]byte, error)
	AppendFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error
	Stat(ctx context.Context, name string) (fs.FileInfo, error)
	Lstat(ctx context.Context, name string) (fs.FileInfo, error)
	ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error)
	Mkdir(ctx context.Context, name string, perm fs.FileMode) error
	Remove(ctx context.Context, name string) error
	RemoveAll(ctx context.Context, name string) error
	Rename(ctx context.Context, oldName, newName string) error
	Chmod(ctx context.Context, name string, mode fs.FileMode) error
	Symlink(ctx context.Context, oldName, newName string) error
	ReadLink(ctx context.Context, name string) (string, error)
	Hash(ctx context.Context, name string) ([sha256.Size]byte, error)
}
