package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// ErrUnknownExec says that the sandbox's worker does not know an exec id: it never was, or its end is more than 10
// minutes or 64 execs ago, or the worker has been started anew.
var ErrUnknownExec = errors.New("unknown exec")

// ExecInfo describes an exec that runs or is remembered.
type ExecInfo struct {
	ID       string        `json:"id"`
	Command  string        `json:"command"` // program and arguments, or the script; shortened
	PID      int           `json:"pid"`     // in the sandbox; zero when it did not start
	Started  time.Time     `json:"started"`
	Run      time.Duration `json:"run_ns"` // how long it has run, or ran
	Running  bool          `json:"running"`
	Outcome  Outcome       `json:"outcome"` // when it does not run any more
	Output   int64         `json:"output_bytes"`
	Readers  int           `json:"readers"` // open streams of its output
	Detached bool          `json:"detached"`
	Terminal bool          `json:"terminal"`
}

// Execs lists the execs that run, and those that have ended within the last 10 minutes (at most 64), by their start.
func (s *Sandbox) Execs(ctx context.Context) ([]ExecInfo, error) {
	resp := &sandbusv1.ExecListResponse{}
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "exec.list", "", &sandbusv1.ExecListRequest{}, resp)
	})
	if err != nil {
		return nil, execError(err)
	}
	return execInfos(resp), nil
}

// execInfos reads a list.
func execInfos(resp *sandbusv1.ExecListResponse) []ExecInfo {
	out := make([]ExecInfo, 0, len(resp.GetExecs()))
	for _, e := range resp.GetExecs() {
		i := ExecInfo{
			ID: e.GetExecId(), Command: e.GetCommand(), PID: int(e.GetPid()), Started: time.Unix(0, e.GetStartedNs()),
			Run: time.Duration(e.GetRunMs()) * time.Millisecond, Running: e.GetOutcome() == nil, Output: e.GetOutputBytes(),
			Readers: int(e.GetReaders()), Detached: e.GetDetached(), Terminal: e.GetTerminal(),
		}
		if !i.Running {
			i.Outcome = outcome(e.GetOutcome())
		}
		out = append(out, i)
	}
	return out
}

// Signal sends a signal, named as "TERM" or "SIGTERM" or by its number, to an exec's process group. Errors:
// ErrUnknownExec; *bus.Error when there is no such signal or the exec has ended.
func (s *Sandbox) Signal(ctx context.Context, id, signal string) error {
	return s.control(ctx, id, "signal", &sandbusv1.SignalRequest{Signal: signal}, &sandbusv1.SignalResponse{})
}

// Abort ends an exec and all that it has started; it returns when the sandbox has noted that. The end itself shows in
// the exec's outcome. It is valid for any id at any time; one that has not started yet will not.
func (s *Sandbox) Abort(ctx context.Context, id string) error {
	return s.control(ctx, id, "abort", &sandbusv1.AbortRequest{}, &sandbusv1.AbortResponse{})
}

// Resize tells the terminal of an exec its size.
func (s *Sandbox) Resize(ctx context.Context, id string, size Size) error {
	return s.control(ctx, id, "resize",
		&sandbusv1.ResizeRequest{Size: &sandbusv1.Terminal{Cols: uint32(size.Cols), Rows: uint32(size.Rows)}}, &sandbusv1.ResizeResponse{})
}

// response is what answers a control message.
type response interface {
	proto.Message
	GetError() *sandbusv1.Error
}

func (s *Sandbox) control(ctx context.Context, id, control string, req proto.Message, resp response) error {
	op, err := bus.ParseOpID(id)
	if err != nil {
		return fmt.Errorf("exec id: %w", err)
	}
	err = s.do(ctx, func(t bus.Target) error { return s.hub.caller.Control(ctx, t, op, control, req, resp) })
	return execError(err)
}
