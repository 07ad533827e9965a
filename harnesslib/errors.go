package harnesslib

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Conditions that a caller can ask for with errors.Is.
var (
	// ErrUnknownSandbox says that no live worker has the id; nothing ran.
	ErrUnknownSandbox = bus.ErrUnknownSandbox
	// ErrUnreachable says that presence names a worker and nobody answers there; nothing ran. It may be on its way back.
	ErrUnreachable = errors.New("sandbox does not answer")
	// ErrBusy says that the sandbox has no room; nothing ran, and the same request may be sent again later.
	ErrBusy = errors.New("sandbox is busy")
	// ErrLost says that nobody can tell whether the command ran to its end, or the operation was done. A retry is safe
	// only when doing it twice is no harm.
	ErrLost = errors.New("lost: nobody knows whether it ran to its end")
	// ErrUsed says that a command with this FastID was sent before: this one did not run, and how that one ended is not
	// known here.
	ErrUsed = errors.New("a command with this id was sent before")
	// ErrTimedOut, ErrAborted, ErrOutputLimit and ErrOOM are what an *ExitError of that kind wraps.
	ErrTimedOut    = errors.New("timed out")
	ErrAborted     = errors.New("aborted")
	ErrOutputLimit = errors.New("output limit reached")
	ErrOOM         = errors.New("out of memory")
	// ErrConflict says that a file is not as the caller expected it; nothing was changed.
	ErrConflict = errors.New("precondition does not hold")
	// ErrTooLarge says that a bound was passed; the error's text has the value, the bound and what to do instead.
	ErrTooLarge = errors.New("over a bound")
	// ErrNotRegular says that a path is a FIFO, socket or device, which file operations do not open.
	ErrNotRegular = errors.New("no regular file")
)

// HubGoneError says that the hub was gone when a call's context ended: which one, and for how long. It wraps the
// context's cause. A call that had left by then is ErrLost, too; any other did not run.
type HubGoneError = bus.HubGoneError

// SandboxError names the sandbox that could not be asked. It wraps ErrUnknownSandbox or ErrUnreachable.
type SandboxError struct {
	Zone string
	ID   string
	Err  error
}

func (e *SandboxError) Error() string {
	return fmt.Sprintf("sandbox %s in zone %s: %v", e.ID, e.Zone, e.Err)
}

func (e *SandboxError) Unwrap() error { return e.Err }

// OutcomeKind is the closed set of ways in which an exec ends.
type OutcomeKind string

// The kinds of outcomes.
const (
	Exited      OutcomeKind = "exited"       // of its own accord, with Code
	Signalled   OutcomeKind = "signalled"    // by Signal, which the fabric did not send
	TimedOut    OutcomeKind = "timed_out"    // by the clock that Clock names
	Aborted     OutcomeKind = "aborted"      // by the caller; all that it started is dead
	OutputLimit OutcomeKind = "output_limit" // by the bound of its output
	OOM         OutcomeKind = "oom"          // by the memory limit
	StartFailed OutcomeKind = "start_failed" // it never ran: Stage, Errno and Message say why
	Lost        OutcomeKind = "lost"         // nobody can say
)

// Outcome is how an exec ended.
type Outcome struct {
	Kind    OutcomeKind
	Code    int           // of Exited, 0 to 255; of StartFailed 126 or 127, as a shell has them
	Signal  string        // of Signalled, without SIG: "KILL"
	Clock   string        // of TimedOut: "total" or "idle"
	Stage   string        // of StartFailed: "cwd", "exec", "shell" or "resources"
	Errno   syscall.Errno // of StartFailed, the sandbox's system error; zero for none
	Message string        // for people
}

func (o Outcome) String() string {
	switch o.Kind {
	case Exited:
		return fmt.Sprintf("exited with code %d", o.Code)
	case Signalled:
		return "killed by signal " + o.Signal
	case TimedOut:
		return fmt.Sprintf("timed out (%s clock)", o.Clock)
	case StartFailed:
		return "did not start: " + o.Message
	case Aborted, OutputLimit, OOM, Lost:
	}
	return string(o.Kind)
}

var outcomeKinds = map[sandbusv1.OutcomeKind]OutcomeKind{
	sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED:       Exited,
	sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED:    Signalled,
	sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT:    TimedOut,
	sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED:      Aborted,
	sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT: OutputLimit,
	sandbusv1.OutcomeKind_OUTCOME_KIND_OOM:          OOM,
	sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED: StartFailed,
	sandbusv1.OutcomeKind_OUTCOME_KIND_LOST:         Lost,
}

// outcome reads an outcome from the wire; one that is none counts as lost.
func outcome(o *sandbusv1.Outcome) Outcome {
	kind, ok := outcomeKinds[o.GetKind()]
	if !ok || (kind == Exited && (o.GetCode() < 0 || o.GetCode() > 255)) {
		return Outcome{Kind: Lost, Message: fmt.Sprintf("the worker sent an outcome of kind %d, code %d", o.GetKind(), o.GetCode())}
	}
	out := Outcome{
		Kind: kind, Code: int(o.GetCode()), Signal: bus.Printable(o.GetSignal()), Stage: bus.Printable(o.GetStage()),
		Errno: syscall.Errno(max(0, o.GetErrno())), Message: bus.Printable(o.GetMessage()),
	}
	switch o.GetClock() {
	case sandbusv1.Clock_CLOCK_TOTAL:
		out.Clock = "total"
	case sandbusv1.Clock_CLOCK_IDLE:
		out.Clock = "idle"
	case sandbusv1.Clock_CLOCK_UNSPECIFIED:
	}
	return out
}

// ExitError says that the command ran and did not exit with 0, or that it could not be started (Outcome.Kind
// StartFailed).
type ExitError struct {
	Outcome Outcome
	Stderr  []byte // what Output collected of the standard error, as os/exec does; the last 32 KiB
	cause   error  // why the caller ended it
}

func (e *ExitError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("command %s: %v", e.Outcome, e.cause)
	}
	return "command " + e.Outcome.String()
}

// Unwrap gives the condition of the outcome, and for one that the caller's context ended its cause.
func (e *ExitError) Unwrap() []error {
	var errs []error
	switch e.Outcome.Kind {
	case TimedOut:
		errs = append(errs, ErrTimedOut)
	case Aborted:
		errs = append(errs, ErrAborted)
	case OutputLimit:
		errs = append(errs, ErrOutputLimit)
	case OOM:
		errs = append(errs, ErrOOM)
	case StartFailed:
		if e.Outcome.Errno != 0 {
			errs = append(errs, e.Outcome.Errno)
		}
	case Exited, Signalled, Lost:
	}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// asError is nil for exited(0).
func (o Outcome) asError(cause error) error {
	switch {
	case o.Kind == Exited && o.Code == 0:
		return nil
	case o.Kind == Lost:
		return fmt.Errorf("%w: %s", ErrLost, o.Message)
	}
	return &ExitError{Outcome: o, cause: cause}
}

// remoteError is why a sandbox did not do a file operation: the Err of a *fs.PathError.
type remoteError struct {
	code    sandbusv1.Code
	errno   syscall.Errno
	message string
}

func (e *remoteError) Error() string { return e.message }

// Is knows the conditions of io/fs and the system's error numbers (those of Linux).
func (e *remoteError) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e.code == sandbusv1.Code_CODE_NOT_FOUND
	case fs.ErrExist:
		return e.code == sandbusv1.Code_CODE_EXISTS || e.code == sandbusv1.Code_CODE_NOT_EMPTY
	case fs.ErrPermission:
		return e.code == sandbusv1.Code_CODE_PERMISSION
	case fs.ErrInvalid:
		return e.code == sandbusv1.Code_CODE_INVALID
	case ErrConflict:
		return e.code == sandbusv1.Code_CODE_CONFLICT
	case ErrTooLarge:
		return e.code == sandbusv1.Code_CODE_TOO_LARGE
	case ErrFenced:
		return e.code == sandbusv1.Code_CODE_FENCED
	case ErrNotRegular:
		return e.code == sandbusv1.Code_CODE_NOT_REGULAR
	}
	return e.errno != 0 && target == e.errno
}

// pathError is the error of a file operation: *fs.PathError when the sandbox said it, else what the fabric said.
func pathError(op, path string, err error) error {
	var be *bus.Error
	if !errors.As(err, &be) {
		return err
	}
	if be.Code == sandbusv1.Code_CODE_BUSY || be.Code == sandbusv1.Code_CODE_DRAINING {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if be.Code == sandbusv1.Code_CODE_FORGOTTEN {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	reason := be.Message
	if _, after, ok := strings.Cut(reason, path+": "); ok && path != "" { // a PathError names it, too
		reason = after
	}
	switch be.Code {
	case sandbusv1.Code_CODE_NOT_FOUND:
		reason = "not found"
	case sandbusv1.Code_CODE_EXISTS:
		reason = "exists already"
	default:
		if be.Errno != 0 && !strings.Contains(reason, "(rule: ") {
			reason = syscall.Errno(be.Errno).Error()
		}
	}
	return &fs.PathError{Op: op, Path: path, Err: &remoteError{be.Code, syscall.Errno(max(0, be.Errno)), reason}}
}
