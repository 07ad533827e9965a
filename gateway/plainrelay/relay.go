package plainrelay

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// maxMessage bounds a message in either direction, in bytes: the contract's.
const maxMessage = 16 << 20

// Relay parks workers and passes commands on to them.
type Relay struct {
	sandboxv1.UnimplementedSandboxExecServer
	sandboxv1.UnimplementedSandboxWorkerServer

	token string

	mu      sync.Mutex // guards the field below
	workers map[string]*parked
}

// parked is a worker at its relay.
type parked struct {
	stream grpc.BidiStreamingServer[sandboxv1.WorkerFrame, sandboxv1.ServerFrame]
	send   sync.Mutex    // held while a frame is sent
	gone   chan struct{} // closed when the worker's stream has ended

	mu    sync.Mutex // guards the field below
	calls map[uint64]chan *sandboxv1.ExecEvent
}

// NewRelay makes a relay that lets in whoever has a token. An empty one lets in nobody.
func NewRelay(token string) *Relay { return &Relay{token: token, workers: map[string]*parked{}} }

// Serve serves on a listener until ctx ends, and closes it.
func (r *Relay) Serve(ctx context.Context, ln net.Listener) error {
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.WaitForHandlers(true))
	sandboxv1.RegisterSandboxExecServer(srv, r)
	sandboxv1.RegisterSandboxWorkerServer(srv, r)
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	err := srv.Serve(ln)
	srv.Stop() // waits for the handlers, also when it was called before
	return err
}

// Attached says whether a sandbox has a worker here.
func (r *Relay) Attached(sandbox string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[sandbox] != nil
}

func (r *Relay) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	got := strings.Join(md.Get("authorization"), ",")
	if r.token == "" || subtle.ConstantTimeCompare([]byte(got), []byte("Bearer "+r.token)) != 1 {
		return status.Error(codes.Unauthenticated, "the token is refused")
	}
	return nil
}

// Attach serves SandboxWorker.Attach.
func (r *Relay) Attach(stream grpc.BidiStreamingServer[sandboxv1.WorkerFrame, sandboxv1.ServerFrame]) error {
	if err := r.check(stream.Context()); err != nil {
		return err
	}
	f, err := stream.Recv()
	if err != nil {
		return err
	}
	id := f.GetHello().GetSandboxId()
	if id == "" {
		return status.Error(codes.InvalidArgument, "the first frame is a Hello with a sandbox_id")
	}
	p := &parked{stream: stream, gone: make(chan struct{}), calls: map[uint64]chan *sandboxv1.ExecEvent{}}
	r.mu.Lock()
	taken := r.workers[id] != nil
	if !taken {
		r.workers[id] = p
	}
	r.mu.Unlock()
	if taken {
		return status.Errorf(codes.AlreadyExists, "sandbox %.63q has a live worker", id)
	}
	defer func() {
		r.mu.Lock()
		delete(r.workers, id)
		r.mu.Unlock()
		close(p.gone)
	}()
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := p.pass(f); err != nil {
			return err
		}
	}
}

// pass hands a worker's frame to the call that it is for.
func (p *parked) pass(f *sandboxv1.WorkerFrame) error {
	ev := &sandboxv1.ExecEvent{}
	var req uint64
	switch {
	case f.GetChunk() != nil:
		req, ev.Event = f.GetChunk().GetReqId(), &sandboxv1.ExecEvent_Chunk{Chunk: f.GetChunk()}
	case f.GetEnd() != nil:
		req, ev.Event = f.GetEnd().GetReqId(), &sandboxv1.ExecEvent_End{End: f.GetEnd()}
	case f.GetError() != nil:
		req, ev.Event = f.GetError().GetReqId(), &sandboxv1.ExecEvent_Error{Error: f.GetError()}
	default:
		return nil // a heartbeat
	}
	p.mu.Lock()
	call := p.calls[req]
	p.mu.Unlock()
	if call == nil {
		return nil
	}
	select {
	case call <- ev: // a slow caller holds up all others: it is a plain relay
		return nil
	case <-p.stream.Context().Done():
		return context.Cause(p.stream.Context())
	}
}

func (p *parked) sendFrame(f *sandboxv1.ServerFrame) error {
	p.send.Lock()
	defer p.send.Unlock()
	return p.stream.Send(f)
}

func (r *Relay) find(ctx context.Context, id string) (*parked, error) {
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.workers[id]; p != nil {
		return p, nil
	}
	return nil, status.Errorf(codes.NotFound, "sandbox %.63q has no worker here", id)
}

// Exec serves SandboxExec.Exec.
func (r *Relay) Exec(req *sandboxv1.ExecRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecEvent]) error {
	p, err := r.find(stream.Context(), req.GetSandboxId())
	if err != nil {
		return err
	}
	id := req.GetExec().GetReqId()
	call := make(chan *sandboxv1.ExecEvent, 1)
	p.mu.Lock()
	taken := p.calls[id] != nil
	if !taken {
		p.calls[id] = call
	}
	p.mu.Unlock()
	if taken {
		return status.Errorf(codes.AlreadyExists, "req_id %d runs", id)
	}
	forget := func() {
		p.mu.Lock()
		delete(p.calls, id)
		p.mu.Unlock()
	}
	defer forget()
	if err := p.sendFrame(&sandboxv1.ServerFrame{Msg: &sandboxv1.ServerFrame_Exec{Exec: req.GetExec()}}); err != nil {
		return err
	}
	for {
		select {
		case ev := <-call:
			if err := stream.Send(ev); err != nil {
				p.drop(id, call, forget)
				return err
			}
			if ev.GetEnd() != nil || ev.GetError() != nil {
				return nil
			}
		case <-p.gone:
			return status.Error(codes.Unavailable, "the worker is gone")
		case <-stream.Context().Done():
			p.drop(id, call, forget)
			return context.Cause(stream.Context())
		}
	}
}

// drop aborts a command whose caller is gone. Whoever is about to hand over a frame of it is let go.
func (p *parked) drop(id uint64, call chan *sandboxv1.ExecEvent, forget func()) {
	forget()
	select {
	case <-call:
	default:
	}
	_ = p.sendFrame(&sandboxv1.ServerFrame{Msg: &sandboxv1.ServerFrame_Abort{Abort: &sandboxv1.Abort{ReqId: id}}}) // the worker may be gone, too
}

// Abort serves SandboxExec.Abort.
func (r *Relay) Abort(ctx context.Context, req *sandboxv1.AbortRequest) (*sandboxv1.AbortResponse, error) {
	p, err := r.find(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	err = p.sendFrame(&sandboxv1.ServerFrame{Msg: &sandboxv1.ServerFrame_Abort{Abort: &sandboxv1.Abort{ReqId: req.GetReqId()}}})
	return &sandboxv1.AbortResponse{}, err
}
