package bus

import (
	"errors"
	"fmt"
	"strings"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Conditions that a caller can ask for with errors.Is.
var (
	// ErrNoResponders says that nobody serves the target now: at once, from the hub. The request did not run.
	ErrNoResponders = errors.New("no worker answers there")
	// ErrClosed says that this end was closed.
	ErrClosed = errors.New("bus connection closed")
	// ErrAborted says that the caller ended the op.
	ErrAborted = errors.New("aborted")
	// ErrPeerSilent says that a stream's other end has acknowledged nothing for a minute.
	ErrPeerSilent = errors.New("peer is silent")
	// ErrStopping is the cause with which the ops of a server end that was stopped.
	ErrStopping = errors.New("the worker is stopping")
	// ErrReplaced is why a stream ends at the worker whose op was asked for again on another reply subject.
	ErrReplaced = errors.New("the op was asked for again on another reply subject")
	// ErrCallerGone is why an op ends whose caller has closed its stream.
	ErrCallerGone = errors.New("the caller has closed the stream")
	// ErrDenied says that the hub refuses a subject to this identity.
	ErrDenied = errors.New("the hub refuses it to this credential")
	// ErrFenced says that a lease gives no right any more: the request did not run, or what ran was ended with the lease.
	// An *[Error] of CODE_FENCED is it.
	ErrFenced = errors.New("fenced: the lease has ended")
	// ErrPublish says that the client is not connected, so that a message could not be sent.
	ErrPublish = errors.New("not connected to the hub")
)

// ErrEnded says that an op takes nothing more, because its end or its answer has come. It wraps ErrClosed.
var ErrEnded error = endedError{}

type endedError struct{}

func (endedError) Error() string { return "the op has ended" }
func (endedError) Unwrap() error { return ErrClosed }

// Error is an error that a worker sent: a code for programs and a message for people.
type Error struct {
	Code    sandbusv1.Code
	Message string
	Errno   int32  // the sandbox's system error number, zero for none
	Path    string // the path at fault, empty for none; any bytes
}

func (e *Error) Error() string {
	if e.Message != "" {
		return e.Message
	}
	return strings.ToLower(strings.TrimPrefix(e.Code.String(), "CODE_"))
}

// Is knows the condition of a code that has one.
func (e *Error) Is(target error) bool {
	return target == ErrFenced && e.Code == sandbusv1.Code_CODE_FENCED
}

// Errorf makes an error of a code.
func Errorf(code sandbusv1.Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// maxErrorMessage bounds an error's text on the wire, in bytes.
const maxErrorMessage = 4096

// ToWire is the message for an error: nil for nil, CODE_INTERNAL for one that has no code.
func ToWire(err error) *sandbusv1.Error {
	if err == nil {
		return nil
	}
	message := err.Error()
	if len(message) > maxErrorMessage {
		message = message[:maxErrorMessage]
	}
	e := &sandbusv1.Error{Code: sandbusv1.Code_CODE_INTERNAL, Message: strings.ToValidUTF8(message, "�")}
	if be, ok := errors.AsType[*Error](err); ok {
		e.Code, e.Errno = be.Code, be.Errno
		e.Path, e.PathRaw = ToText(be.Path)
	}
	return e
}

// FromWire is the error of a message: nil when there is none.
func FromWire(e *sandbusv1.Error) error {
	if e == nil {
		return nil
	}
	return &Error{Code: e.GetCode(), Message: Printable(e.GetMessage()), Errno: e.GetErrno(), Path: FromText(e.GetPath(), e.GetPathRaw())}
}

// StreamError says that an end of a stream broke one of its rules; the stream is over.
type StreamError struct {
	Rule string // which rule, in words
}

func (e *StreamError) Error() string { return "stream broken: " + e.Rule }
