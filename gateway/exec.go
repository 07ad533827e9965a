package gateway

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// maxTimeout bounds timeout_s, in seconds: 7 days, as for every exec of the bus.
const maxTimeout = 7 * 24 * 60 * 60

// Exec serves SandboxExec.Exec.
func (g *Gateway) Exec(req *sandboxv1.ExecRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecEvent]) error {
	harness, err := g.cfg.Tokens.harness(stream.Context(), req.GetSandboxId())
	if err != nil {
		return err
	}
	select {
	case <-g.stopping:
		return status.Error(codes.Unavailable, "the gateway is stopping: nothing ran")
	default:
	}
	exec := req.GetExec()
	if err := checkExec(req); err != nil {
		return stream.Send(notRun(exec.GetReqId(), err))
	}
	r, rd, err := g.enter(harness, req)
	if err != nil {
		return stream.Send(notRun(exec.GetReqId(), err))
	}
	if rd == nil {
		return status.Errorf(codes.OutOfRange, "req_id %d runs, and the start of its output is no longer kept (%d bytes are)", exec.GetReqId(), runKept)
	}
	defer func() { r.leave(rd, g.cfg.Rejoin) }()
	for {
		ev, over, err := r.take(stream.Context(), rd)
		if err != nil || over {
			stream.SetTrailer(metadata.Pairs(relay.TierTrailer, string(r.tier())))
			return err
		}
		if err := stream.Send(ev); err != nil {
			return err
		}
		r.got(rd, ev)
	}
}

// checkExec refuses what no sandbox would take.
func checkExec(req *sandboxv1.ExecRequest) error {
	if _, err := bus.ParseSandboxID(req.GetSandboxId()); err != nil {
		return err
	}
	switch e := req.GetExec(); {
	case e.GetCommand() == "":
		return bus.Errorf(0, "the command is empty: want shell text")
	case strings.IndexByte(e.GetCommand(), 0) >= 0:
		return bus.Errorf(0, "the command has a NUL byte at offset %d", strings.IndexByte(e.GetCommand(), 0))
	case e.GetTimeoutS() > maxTimeout:
		return bus.Errorf(0, "timeout_s %d: want 0 (none) to %d", e.GetTimeoutS(), maxTimeout)
	}
	return nil
}

// enter joins the run of a request, or starts it. A nil reader says that it cannot be joined any more.
func (g *Gateway) enter(harness string, req *sandboxv1.ExecRequest) (*run, *reader, error) {
	exec := req.GetExec()
	key, content := runKey{harness, req.GetSandboxId(), exec.GetReqId()}, fingerprint(exec)
	ctx, cancel := context.WithCancelCause(context.Background()) // a run outlives the stream that asked for it
	r, fresh, err := g.runs.enter(key, content, cancel)
	if err != nil || !fresh {
		cancel(nil)
	}
	if err != nil {
		return nil, nil, err
	}
	rd, ok := r.join()
	if !ok {
		return r, nil, nil
	}
	if fresh {
		g.wg.Go(func() {
			defer cancel(nil)
			last, fast, err := g.drive(ctx, r, exec)
			r.finish(last, fast, err)
			g.runs.end(r, err == nil)
		})
	}
	return r, rd, nil
}

// Abort serves SandboxExec.Abort. An abort of what is not known, or has ended, is no error: there is nothing left to end.
func (g *Gateway) Abort(ctx context.Context, req *sandboxv1.AbortRequest) (*sandboxv1.AbortResponse, error) {
	harness, err := g.cfg.Tokens.harness(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	key := runKey{harness, req.GetSandboxId(), req.GetReqId()}
	if r := g.runs.find(key); r != nil {
		r.cancel(errAborted)
		return &sandboxv1.AbortResponse{}, nil
	}
	return &sandboxv1.AbortResponse{}, g.abortElsewhere(ctx, key)
}

// abortElsewhere ends a run of the stream tier that another replica has started.
func (g *Gateway) abortElsewhere(ctx context.Context, key runKey) error {
	sb, err := g.hub.Sandbox(key.sandbox)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	execs, err := sb.Execs(ctx)
	if err != nil {
		return nil //nolint:nilerr // no such sandbox, or one that has no list: nothing of ours is known there
	}
	for _, e := range execs {
		if e.Running && strings.HasPrefix(e.ID, key.execPrefix()) {
			if err := sb.Abort(ctx, e.ID); err != nil {
				return status.Errorf(codes.Unavailable, "abort: %v", err)
			}
		}
	}
	return nil
}

func execError(req uint64, message string) *sandboxv1.ExecEvent {
	return &sandboxv1.ExecEvent{Event: &sandboxv1.ExecEvent_Error{Error: &sandboxv1.ExecError{ReqId: req, Message: message}}}
}

// notRun is the last event of a command that did not run.
func notRun(req uint64, why error) *sandboxv1.ExecEvent {
	return execError(req, relay.Refused+why.Error())
}

func execEnd(req uint64, code int32, truncated bool) *sandboxv1.ExecEvent {
	return &sandboxv1.ExecEvent{Event: &sandboxv1.ExecEvent_End{End: &sandboxv1.End{ReqId: req, ExitCode: code, Truncated: truncated}}}
}
