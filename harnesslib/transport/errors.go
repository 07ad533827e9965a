package transport

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
)

// Conditions that a caller can ask for with errors.Is; harnesslib's own.
var (
	// ErrLost says that nobody can tell whether the command ran to its end.
	ErrLost = harnesslib.ErrLost
	// ErrUnreachable says that the sandbox was not reached; nothing ran.
	ErrUnreachable = harnesslib.ErrUnreachable
)

// ErrClosed says that the transport was closed: nothing ran, or what ran was ended by that.
var ErrClosed = errors.New("the transport is closed")

// TimeoutError says that a command was ended by its Timeout. It is harnesslib.ErrTimedOut, and its text
// "timeout:<seconds>".
type TimeoutError struct{ After time.Duration }

func (e *TimeoutError) Error() string {
	return "timeout:" + strconv.FormatFloat(e.After.Seconds(), 'f', -1, 64)
}

// Is makes it harnesslib.ErrTimedOut.
func (e *TimeoutError) Is(target error) bool { return target == harnesslib.ErrTimedOut }

// AbortError says that a command was ended by its caller. It is harnesslib.ErrAborted, its text is "aborted", and it
// wraps the cause of the context.
type AbortError struct{ Cause error }

func (e *AbortError) Error() string { return "aborted" }
func (e *AbortError) Unwrap() error { return e.Cause }

// Is makes it harnesslib.ErrAborted.
func (e *AbortError) Is(target error) bool { return target == harnesslib.ErrAborted }

// Check refuses a command that no sandbox would take, before anything is sent.
func (c *Command) Check() error {
	switch {
	case c.Script == "":
		return errors.New("command: the script is empty")
	case strings.IndexByte(c.Script, 0) >= 0:
		return fmt.Errorf("command: the script has a NUL byte at offset %d", strings.IndexByte(c.Script, 0))
	case strings.IndexByte(c.Dir, 0) >= 0:
		return fmt.Errorf("command: the directory %q has a NUL byte", c.Dir)
	case c.Timeout < 0 || c.Timeout > MaxTimeout:
		return fmt.Errorf("command: timeout %s: want 0 (none) to %s", c.Timeout, MaxTimeout)
	case c.OutputLimit < 0 || c.OutputLimit > MaxOutputLimit:
		return fmt.Errorf("command: output limit %d: want 0 (8 MiB, or none with Stdout) to %d bytes", c.OutputLimit, MaxOutputLimit)
	case c.Stderr != nil && c.Stdout == nil:
		return errors.New("command: Stderr without Stdout: want both, or neither for the collected form")
	}
	for _, v := range c.Env {
		name, value, ok := strings.Cut(v, "=")
		if !ok || !isName(name) || strings.IndexByte(value, 0) >= 0 {
			return fmt.Errorf("command: environment %.80q: want NAME=value, the name of letters, digits and '_'", v)
		}
	}
	return nil
}

const (
	// MaxTimeout is the longest Timeout.
	MaxTimeout = 7 * 24 * time.Hour
	// MaxOutputLimit is the largest OutputLimit, in bytes.
	MaxOutputLimit = 1 << 30
)

func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
