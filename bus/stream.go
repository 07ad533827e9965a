package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Stream is a request that is answered by a stream, and that may send one. Next and the methods that send may be used
// at the same time; each by one goroutine.
type Stream struct {
	caller *Caller
	target Target
	op     OpID
	in     *Receiver
	out    *Sender // what we send; nil when the request has no input; set before anybody can see it
	asking asking

	mu       sync.Mutex // guards the fields below
	watchdog *time.Timer
	closed   bool
	answer   []byte // the message that came instead of a stream
	unbind   func() bool
}

// Open sends a request that is answered by a stream. window is the credit that the request asks for (see
// ClampWindow); input says that the caller will send a stream of its own. The request is sent again after a reconnect, or
// when nothing is heard of it: the worker goes on with the stream that is under way. Errors: as Request; those that the
// worker or the hub report come from Next.
func (c *Caller) Open(ctx context.Context, t Target, verb string, op OpID, req proto.Message, window int64, input bool) (*Stream, error) {
	return c.open(ctx, t, verb, op, req, window, input, false)
}

// OpenRepeatable is Open for a verb whose worker serves an op again after its end (Server.HandleRepeatable): the request is
// sent again only as long as nothing was heard of it, because what comes then begins anew.
func (c *Caller) OpenRepeatable(ctx context.Context, t Target, verb string, op OpID, req proto.Message, window int64, input bool) (*Stream, error) {
	return c.open(ctx, t, verb, op, req, window, input, true)
}

func (c *Caller) open(ctx context.Context, t Target, verb string, op OpID, req proto.Message, window int64, input, untilHeard bool) (*Stream, error) {
	payload, err := proto.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	s := &Stream{caller: c, target: t, op: op}
	reply := c.replySubject(t, op)
	s.asking = asking{conn: c.conn, subject: t.prefix() + verb, reply: reply, payload: payload, trace: traceOf(ctx), untilHeard: untilHeard, failed: s.fail}
	s.in = newReceiver(ClampWindow(window), func(b []byte) error { return c.conn.publish(c.controlSubject(t, op, "ack"), b) })
	s.in.meter = c.conn.meter
	if input { // before anything can be heard that ends it
		s.out = newSender(DefaultWindow, func(b []byte) error { return c.conn.publish(c.controlSubject(t, op, "in"), b) })
		s.out.mu.Lock()
		s.out.meter = c.conn.meter
		s.out.mu.Unlock()
		s.out.failed = func(err error) { // whoever breaks the rules of one direction is not trusted with the other
			if _, broken := errors.AsType[*StreamError](err); broken {
				s.in.fail(err)
			}
		}
	}
	if err := c.register(op, &call{subject: reply, heard: s.heard, failed: s.fail, reconnected: s.reconnected}); err != nil {
		s.fail(ErrClosed)
		return nil, err
	}
	if err := c.publish(ctx, t.prefix()+verb, reply, payload); err != nil {
		s.Close()
		return nil, err
	}
	s.asking.opens()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchdog = time.AfterFunc(repeatFirst, s.checkSilence)
	return s, nil
}

// reconnected repeats what may have been lost with the connection.
func (s *Stream) reconnected() {
	if !s.in.over() {
		s.asking.reconnected()
	}
	if s.out != nil {
		s.out.resend()
	}
}

// fail ends both directions.
func (s *Stream) fail(err error) {
	s.in.fail(err)
	if s.out != nil {
		s.out.stop(err)
	}
}

// heard runs on the subscription's goroutine.
func (s *Stream) heard(m *nats.Msg) {
	if isNoResponders(m) {
		s.asking.refuse()
		return
	}
	s.asking.hear()
	out := s.out
	if !isFrame(m.Data) {
		s.answered(m, out)
		return
	}
	f, err := ParseFrame(m.Data)
	switch {
	case err != nil:
		s.in.fail(err)
	case f.Kind == FrameAck || f.Kind == FrameNak:
		if out != nil {
			out.deliver(f)
		}
	default:
		s.in.deliver(f)
		if out != nil && s.in.over() {
			out.stop(ErrEnded) // nobody takes more, and a Send that waits for credit must not wait on
		}
	}
}

// errAnswered says that a message came instead of a stream.
var errAnswered = errors.New("answered by a message")

func (s *Stream) answered(m *nats.Msg, out *Sender) {
	s.mu.Lock()
	s.answer = m.Data
	s.mu.Unlock()
	s.in.fail(errAnswered)
	if out != nil {
		out.stop(ErrEnded) // nobody takes more
	}
}

// Answer waits for the message that answers a request whose stream goes to the worker only. Errors: as
// Caller.Request.
func (s *Stream) Answer(ctx context.Context, resp errorMessage) error {
	f, err := s.in.Next(ctx)
	if err == nil {
		return &StreamError{Rule: fmt.Sprintf("a frame of kind %d came where a message was expected", f.Kind)}
	}
	if !errors.Is(err, errAnswered) {
		return err
	}
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	if err := proto.Unmarshal(answer, resp); err != nil {
		return &StreamError{Rule: fmt.Sprintf("the answer to op %s is no %s", s.op, resp.ProtoReflect().Descriptor().Name())}
	}
	return FromWire(resp.GetError())
}

// checkSilence ends a stream whose worker says nothing any more.
func (s *Stream) checkSilence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.in.over() {
		return
	}
	next, err := s.asking.look()
	if err != nil {
		s.fail(err)
		return
	}
	s.watchdog.Reset(next)
}

// Target is the worker instance that was asked.
func (s *Stream) Target() Target { return s.target }

// Op is the request's name.
func (s *Stream) Op() OpID { return s.op }

// Next returns the next frame; the one of kind FrameEnd is the last. Errors: as Caller.Request.
func (s *Stream) Next(ctx context.Context) (Frame, error) {
	if ctx.Err() != nil { // also where frames are waiting: a caller that has given up would never notice in a flood
		return Frame{}, context.Cause(ctx)
	}
	f, err := s.in.Next(ctx)
	if errors.Is(err, errAnswered) {
		if err := s.Answer(ctx, &sandbusv1.Failure{}); err != nil {
			return f, err
		}
		return f, &StreamError{Rule: "a message came where a stream was expected"}
	}
	return f, err
}

// Send sends bytes on the op's input, waiting for credit. Errors: ErrEnded once the op's end or answer has arrived,
// which Next tells, ErrClosed, the context's cause, ErrPeerSilent, *StreamError.
func (s *Stream) Send(ctx context.Context, data []byte) error {
	return s.out.Write(ctx, FrameData, data)
}

// CloseSend ends the op's input and waits until the worker has taken the end.
func (s *Stream) CloseSend(ctx context.Context) error { return s.out.End(ctx, nil) }

// Control sends a control message of the op.
func (s *Stream) Control(ctx context.Context, control string, req proto.Message, resp errorMessage) error {
	return s.caller.Control(ctx, s.target, s.op, control, req, resp)
}

// Abort asks the worker to end the op and waits until it has noted that. The end itself comes from Next; for an exec that
// has ended by then Abort returns it, too, else nil: behind a link that is full the stream may take long to say it.
func (s *Stream) Abort(ctx context.Context, reason string) (*sandbusv1.StreamEnd, error) {
	resp := &sandbusv1.AbortResponse{}
	err := s.caller.Control(ctx, s.target, s.op, "abort", &sandbusv1.AbortRequest{Reason: reason}, resp)
	return resp.GetEnd(), err
}

// Close gives the stream up: nothing more is received or sent. An op that has not ended learns that its caller is gone,
// as it would from a minute without acks. It may be called twice.
func (s *Stream) Close() {
	s.caller.unregister(s.op)
	s.asking.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	// An op with input ends in its own time: what was sent may be on its way. So do all when the caller itself closes:
	// somebody else may go on with them.
	if !s.closed && s.answer == nil && !s.in.complete() && s.out == nil && !s.caller.isClosed() {
		_ = s.caller.conn.publish(s.caller.controlSubject(s.target, s.op, "gone"), nil) // lost: the missing acks say it
	}
	s.closed = true
	if s.watchdog != nil {
		s.watchdog.Stop()
	}
	if s.unbind != nil {
		s.unbind()
	}
	s.fail(ErrClosed)
}

// Bind ends the stream when ctx does: Next and the methods that send return its cause then. It does not end the op at the
// worker. It may be called once.
func (s *Stream) Bind(ctx context.Context) {
	unbind := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unbind = unbind
	if s.closed {
		unbind()
	}
}
