package bus

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// maxRequests bounds the requests of one worker that are under way; one more is answered CODE_BUSY.
const maxRequests = 1024

// Server answers the requests to one worker instance. Register handlers, then Start.
type Server struct {
	conn     *Conn
	bulk     *Conn // what streams leave on
	target   Target
	log      *slog.Logger
	handlers map[string]handler
	controls map[string]func(OpID, *Request)
	onAbort  func(OpID) (string, *sandbusv1.StreamEnd)
	admit    func(*Request, string) (context.Context, error)
	sub      *nats.Subscription
	seed     maphash.Seed
	life     context.Context //nolint:containedctx // the server's own life, ended by Stop
	end      context.CancelCauseFunc
	wg       sync.WaitGroup // the requests under way
	lead     *leader
	draining atomic.Bool
	slots    chan struct{} // one element for each request under way: its capacity is the bound

	mu   sync.Mutex // guards the fields below
	ops  map[OpID]*Op
	past memory
}

type handler struct {
	serve func(*Request)
	isOp  bool // can be aborted from its arrival on
	quick bool // runs where messages are taken
	again bool // the same op may come again, also after its end: it is served again
	reads bool // has no effect: it is served again when its answer is not kept
	late  bool // is served while the server drains
}

// NewServer makes a server for a target on a connection. A nil logger discards.
func NewServer(conn *Conn, target Target, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	life, end := context.WithCancelCause(context.Background())
	return &Server{
		conn: conn, bulk: conn, target: target, log: log, handlers: map[string]handler{}, controls: map[string]func(OpID, *Request){}, life: life, end: end,
		seed: maphash.MakeSeed(), slots: make(chan struct{}, maxRequests), ops: map[OpID]*Op{}, past: memory{outcomes: map[OpID]*outcome{}},
	}
}

// UseBulk has the streams leave on a connection of their own, so that no answer and no control message waits behind
// them. It must have the same credential; while it is away, streams wait for it. It may be called before Start only.
func (s *Server) UseBulk(conn *Conn) { s.bulk = conn }

// Handle registers a verb without an effect that is answered by one message: a request that comes again is served
// again, and nothing of it is remembered. It may be called before Start only.
func Handle[Req, Resp any, PReq interface {
	*Req
	requestMessage
}, PResp interface {
	*Resp
	proto.Message
}](s *Server, verb string, serve func(context.Context, PReq) (PResp, error)) {
	s.handlers[verb] = handler{serve: func(r *Request) { serveMessage(r, PReq(new(Req)), serve) }}
}

// HandleOnce is Handle for a verb with an effect: a request that comes again gets the same answer and nothing runs again;
// the same op with other content is refused (CODE_CONFLICT).
func HandleOnce[Req, Resp any, PReq interface {
	*Req
	requestMessage
}, PResp interface {
	*Resp
	proto.Message
}](s *Server, verb string, serve func(context.Context, PReq) (PResp, error)) {
	s.handlers[verb] = handler{serve: func(r *Request) {
		serveMessage(r, PReq(new(Req)), func(ctx context.Context, req PReq) (PResp, error) {
			if errors.Is(context.Cause(ctx), ErrAborted) { // before it came
				return nil, Errorf(sandbusv1.Code_CODE_ABORTED, "verb %s: aborted before it began", verb)
			}
			return serve(ctx, req)
		})
	}, isOp: true}
}

// HandleOp is Handle for a verb that runs long enough to be aborted: ctx ends with ErrAborted as its cause. A request that
// comes again while it is under way is not served twice.
func HandleOp[Req, Resp any, PReq interface {
	*Req
	requestMessage
}, PResp interface {
	*Resp
	proto.Message
}](s *Server, verb string, serve func(context.Context, PReq) (PResp, error)) {
	s.handlers[verb] = handler{serve: func(r *Request) { serveMessage(r, PReq(new(Req)), serve) }, isOp: true, reads: true}
}

func serveMessage[PReq requestMessage, PResp proto.Message](r *Request, req PReq, serve func(context.Context, PReq) (PResp, error)) {
	ctx, err := r.Decode(req)
	if err != nil {
		r.Fail(err)
		return
	}
	resp, err := serve(ctx, req)
	if err != nil {
		if cause := r.Fenced(); cause != nil {
			err = cause // whatever the handler made of it
		}
		r.Fail(err)
		return
	}
	r.Reply(resp)
}

// HandleStream registers a verb that is answered by a stream, or that takes one. serve must end with Reply, Fail or
// the End of its Sender. A request that comes again goes on with the stream that is under way, or gets the message again
// that answered it; a stream that has ended is not sent again.
func (s *Server) HandleStream(verb string, serve func(*Request)) {
	s.handlers[verb] = handler{serve: serve, isOp: true}
}

// HandleRepeatable is HandleStream for a verb that knows its own ops: a request that comes again, also after its end,
// is served again, in place of the one before. When that one still streams to the same reply subject it just goes on.
func (s *Server) HandleRepeatable(verb string, serve func(*Request)) {
	s.handlers[verb] = handler{serve: serve, isOp: true, again: true}
}

// HandleControl registers a control message of an op, other than abort, ack and in. serve must not wait.
func HandleControl[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](s *Server, control string, serve func(OpID, PReq) (PResp, error)) {
	s.controls[control] = func(id OpID, r *Request) {
		req := PReq(new(Req))
		if err := unmarshal(r.msg.Data, r.json, req); err != nil {
			r.Fail(Errorf(sandbusv1.Code_CODE_INVALID, "control %s: the payload is no %s: %v", control, req.ProtoReflect().Descriptor().FullName(), err))
			return
		}
		resp, err := serve(id, req)
		if err != nil {
			r.Fail(err)
			return
		}
		r.Reply(resp)
	}
}

// OnAbort registers who else may know an op that is to be aborted; it returns what the op was: "running", "ended", or
// "" for unknown. It may be called before Start only.
//
// end is how the op ended when it has and when that is known beside its stream, else nil.
func (s *Server) OnAbort(f func(OpID) (state string, end *sandbusv1.StreamEnd)) { s.onAbort = f }

// Admit registers who decides whether a request may run under the lease that it names (empty for none). It is asked once
// for each request, by Decode, and must not wait. The request's context ends with the life that it returns, when that is
// not nil, and with the same cause. It may be called before Start only.
func (s *Server) Admit(f func(r *Request, lease string) (life context.Context, err error)) {
	s.admit = f
}

// HandleQuick registers a verb that mostly takes microseconds. serve runs on the goroutine that takes the messages, one
// after the other, which spares a change of goroutines and lets answers leave together; when it does take long, another
// goroutine takes over the messages behind it. What surely waits (for a disk, for credit) goes on in Detach. Such a
// request can be aborted from the moment on at which it opens a stream, and says that it lives from Detach on. The verb
// has no effect: a request that comes again is served again.
func (s *Server) HandleQuick(verb string, serve func(*Request)) {
	s.handlers[verb] = handler{serve: serve, quick: true, again: true, reads: true}
}

// HandleLate is HandleQuick for a verb that is served also while the server drains.
func (s *Server) HandleLate(verb string, serve func(*Request)) {
	s.handlers[verb] = handler{serve: serve, quick: true, late: true}
}

// HandleInOrder registers a verb whose requests count in the order of their arrival: serve runs as with HandleQuick, but
// the request can be aborted from its arrival on. serve must hand off with Detach, as its last act, or answer.
func (s *Server) HandleInOrder(verb string, serve func(*Request)) {
	s.handlers[verb] = handler{serve: serve, isOp: true, quick: true}
}

// Quick makes a handler for HandleQuick of a function that answers with one message.
func Quick[Req, Resp any, PReq interface {
	*Req
	requestMessage
}, PResp interface {
	*Resp
	proto.Message
}](serve func(PReq) (PResp, error)) func(*Request) {
	return func(r *Request) {
		serveMessage(r, PReq(new(Req)), func(_ context.Context, req PReq) (PResp, error) { return serve(req) })
	}
}

// Start begins to serve.
func (s *Server) Start() error {
	s.lead = newLeader(s.receive)
	sub, err := s.conn.subscribeChan(s.target.prefix()+">", s.lead.messages)
	if err != nil {
		s.lead.stop()
		return err
	}
	// The hub must know of it before anybody is told of the worker, or a request on another connection would find nobody.
	if err := s.conn.Flush(context.Background()); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	s.sub = sub
	s.conn.onReconnected(s, s.resend)
	s.bulk.onReconnected(s, s.resend)
	return nil
}

// resend sends again what callers may have missed while the connection was gone: waiting for silence would take longer.
func (s *Server) resend() {
	s.mu.Lock()
	ops := slices.Collect(maps.Values(s.ops))
	s.mu.Unlock()
	for _, op := range ops {
		op.resend()
	}
}

// Load is how many requests are under way.
func (s *Server) Load() int { return len(s.slots) }

// Drain refuses new requests from now on, but for those of HandleLate; those under way, their streams and controls go on.
func (s *Server) Drain() { s.draining.Store(true) }

// lastWords is how long the ends of ops that Stop has ended may take to be acknowledged.
const lastWords = 2 * time.Second

// Stop refuses new requests, waits for those under way until ctx ends, then ends them, and waits for all.
func (s *Server) Stop(ctx context.Context) {
	s.Drain()
	s.conn.onReconnected(s, nil)
	s.bulk.onReconnected(s, nil)
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.end(ErrStopping)
	last := time.NewTimer(lastWords)
	defer last.Stop()
	select {
	case <-done:
	case <-last.C: // whoever has not acknowledged an end by now is gone
		s.mu.Lock()
		ops := slices.Collect(maps.Values(s.ops))
		s.mu.Unlock()
		for _, op := range ops {
			op.fail(ErrStopping)
		}
		<-done
	}
	if s.sub != nil {
		_ = s.sub.Unsubscribe() // fails only when the connection is closed already
	}
	if s.lead != nil {
		s.lead.stop()
	}
}

// receive takes one message: it hands off what may wait.
func (s *Server) receive(m *nats.Msg) {
	rest, ok := strings.CutPrefix(m.Subject, s.target.prefix())
	if !ok {
		return
	}
	if control, ok := strings.CutPrefix(rest, "op."); ok {
		op, verb, _ := strings.Cut(control, ".")
		s.control(OpID(op), verb, m)
		return
	}
	r := s.request(rest, m)
	if !strings.HasPrefix(m.Reply, join("rep", string(s.target.Zone), string(s.target.Sandbox))+".") {
		s.log.Warn("request without a reply subject that we may answer", "verb", rest)
		return
	}
	if subj, err := ParseSubject(m.Reply); err == nil {
		r.Op, r.Harness = subj.Op, subj.Harness
	}
	h, ok := s.handlers[rest]
	if !ok {
		r.Fail(Errorf(sandbusv1.Code_CODE_UNKNOWN_VERB, "verb %.80q: this worker does not serve it", rest))
		return
	}
	r.handler = h
	if h.isOp && r.Op != "" && s.repeated(r) { // also while the worker drains, or is busy: it is nothing new
		return
	}
	if s.draining.Load() && !h.late {
		r.Fail(Errorf(sandbusv1.Code_CODE_DRAINING, "the worker is stopping: it accepts nothing new"))
		return
	}
	select {
	case s.slots <- struct{}{}:
	default:
		r.Fail(Errorf(sandbusv1.Code_CODE_BUSY, "%d requests are under way, the bound is %d", len(s.slots), maxRequests))
		return
	}
	if h.isOp {
		if err := r.register(); err != nil {
			<-s.slots
			r.Fail(err)
			return
		}
	}
	s.wg.Add(1)
	if h.quick {
		s.serve(h, r)
		return
	}
	go s.serve(h, r)
}

func (s *Server) serve(h handler, r *Request) {
	if !h.quick {
		r.keepAlive = time.AfterFunc(keepAliveEvery, r.stillHere)
	}
	h.serve(r)
	if !r.detached {
		r.finish()
	}
}

// Detach goes on with a request in a goroutine of its own. A handler whose verb was registered by HandleQuick calls it
// for what may wait, as its last act.
func (r *Request) Detach(f func()) {
	r.detached = true
	r.keepAlive = time.AfterFunc(keepAliveEvery, r.stillHere)
	go func() {
		defer r.finish()
		f()
	}()
}

// control handles what must not wait behind requests. Those of a stream may name the connection of the caller that has it,
// behind a dot: an op that was asked for again has another one, whose stream they must not disturb.
func (s *Server) control(id OpID, verb string, m *nats.Msg) {
	verb, conn, named := strings.Cut(verb, ".")
	s.mu.Lock()
	op := s.ops[id]
	s.mu.Unlock()
	switch verb {
	case "ack", "in", "gone":
		if op == nil || named && conn != op.conn {
			return // late, of an op that has ended; or of one that has another caller now
		}
		if verb == "gone" {
			op.cancel(ErrCallerGone)
			op.fail(ErrCallerGone)
			return
		}
		f, err := ParseFrame(m.Data)
		switch {
		case err != nil:
			op.fail(err)
		case verb == "ack":
			op.deliverAck(f)
		default:
			op.Incoming().deliver(f)
		}
	case "abort":
		s.abort(id, op, m)
	default:
		if m.Reply == "" {
			return
		}
		r := s.request(verb, m)
		if f, ok := s.controls[verb]; ok {
			f(id, r)
			return
		}
		r.Fail(Errorf(sandbusv1.Code_CODE_UNKNOWN_VERB, "control %.80q: this worker does not serve it", verb))
	}
}

func (s *Server) request(verb string, m *nats.Msg) *Request {
	return &Request{Verb: verb, srv: s, msg: m, json: strings.HasPrefix(m.Header.Get("Content-Type"), "application/json")}
}

func (s *Server) abort(id OpID, op *Op, m *nats.Msg) {
	resp := &sandbusv1.AbortResponse{}
	if s.onAbort != nil {
		resp.State, resp.End = s.onAbort(id)
	}
	if op != nil {
		op.cancel(ErrAborted)
		if resp.GetEnd() == nil {
			resp.State = "running"
		}
	} else if resp.GetState() == "" {
		s.mu.Lock()
		if s.past.ended(id) {
			resp.State = "ended"
		} else {
			resp.State = "unknown"
			if isToken(string(id)) {
				s.past.abort(id)
			}
		}
		s.mu.Unlock()
	}
	if m.Reply == "" {
		return
	}
	s.request("abort", m).Reply(resp)
}

// Op is a request under way that can be aborted and that may have streams.
type Op struct {
	ID     OpID
	ctx    context.Context //nolint:containedctx // the op's own life
	cancel context.CancelCauseFunc
	srv    *Server
	reply  string
	conn   string // the token of reply that names the caller's connection
	// content tells the request from another one.
	content uint64
	harness HarnessID

	mu       sync.Mutex // guards the fields below
	heard    time.Time  // when the caller was heard last
	in       *Receiver
	out      *Sender
	also     []string // reply subjects of others that have sent the same request
	replaced bool     // reply is to be told, when the handler has returned
}

// Incoming is the stream that the caller sends on the op's "in" subject, with a window of DefaultWindow.
func (op *Op) Incoming() *Receiver {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.in == nil {
		op.in = newReceiver(DefaultWindow, func(b []byte) error { return op.srv.conn.publish(op.reply, b) })
	}
	return op.in
}

func (op *Op) outgoing(window int64) *Sender {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.out == nil {
		op.out = newSender(window, func(b []byte) error { return op.srv.bulk.publish(op.reply, b) })
		op.out.mu.Lock()
		op.out.failed = op.cancel // an op whose caller is gone must not go on when it has nothing to send
		op.out.mu.Unlock()
	}
	return op.out
}

func (op *Op) deliverAck(f Frame) {
	op.mu.Lock()
	op.heard = time.Now()
	out := op.out
	op.mu.Unlock()
	if out != nil {
		out.deliver(f)
	}
}

// silent says for how long nothing was heard of the caller.
func (op *Op) silent() time.Duration {
	op.mu.Lock()
	defer op.mu.Unlock()
	return time.Since(op.heard)
}

// resend sends again what the caller may have missed: our connection was gone.
func (op *Op) resend() {
	op.mu.Lock()
	out := op.out
	op.mu.Unlock()
	if out != nil {
		out.resend()
	}
}

// remind tells a caller that has asked again that the op is under way, and finds out what it has missed. Nothing is sent
// twice unasked: it may be that the window is still on its way, on a slow link.
func (op *Op) remind() {
	op.mu.Lock()
	out := op.out
	op.mu.Unlock()
	op.stillHere()
	if out != nil {
		out.ask()
	}
}

// stillHere tells those who wait for a message that the op is under way.
func (op *Op) stillHere() {
	op.mu.Lock()
	also := op.also
	op.mu.Unlock()
	keepAlive := Frame{Kind: FrameKeepAlive}.Append(nil)
	_ = op.srv.conn.publish(op.reply, keepAlive) // the next one may get through
	for _, reply := range also {
		_ = op.srv.conn.publish(reply, keepAlive) // likewise
	}
}

// fail ends the op's streams.
func (op *Op) fail(err error) {
	op.mu.Lock()
	in, out := op.in, op.out
	op.mu.Unlock()
	if in != nil {
		in.fail(err)
	}
	if out != nil {
		out.stop(err)
	}
}

// Request is one request of a harness.
type Request struct {
	Verb string
	Op   OpID // from the reply subject, else from the message; empty when the caller gave none
	// Harness is who asks, by the reply subject: only that identity gets the answer. Empty when the subject is not of
	// the grammar.
	Harness HarnessID

	srv       *Server
	msg       *nats.Msg
	json      bool
	op        *Op
	keepAlive *time.Timer
	stop      context.CancelFunc
	detached  bool
	handler   handler
	unnamed   bool // the reply subject has no op: Op is one that we made up, or the message's (renamed)
	renamed   bool
	answer    []byte // the message that answered it, when it is to be remembered
	// right is the life of the lease that the request runs under; nil means none. outlived ends the watch of it.
	right    context.Context //nolint:containedctx // the lease's own life
	outlived func() bool
}

type requestMessage interface {
	proto.Message
	GetMeta() *sandbusv1.RequestMeta
}

// register makes the op known to its control subjects, before the next message is looked at. Errors: errKnown;
// CODE_CONFLICT, CODE_FORGOTTEN (see known).
func (r *Request) register() error {
	if r.Op == "" {
		r.Op = NewOpID() // nobody can name it; Decode may give it the name that the message has
		r.unnamed = true
	}
	return r.registerAs(r.Op)
}

func (r *Request) registerAs(id OpID) error {
	s := r.srv
	content := r.content()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.unnamed || id != r.Op {
		if err := s.knownLocked(r, id, content); err != nil {
			return err
		}
	}
	if old := s.ops[id]; old != nil {
		old.replace(r.msg.Reply)
	}
	ctx, cancel := context.WithCancelCause(s.life)
	r.op = &Op{
		ID: id, ctx: ctx, cancel: cancel, srv: s, reply: r.msg.Reply, conn: connOf(r.msg.Reply), content: content,
		harness: r.Harness, heard: time.Now(),
	}
	if s.past.aborted(id) {
		cancel(ErrAborted)
	}
	s.ops[id] = r.op
	r.watchRight()
	return nil
}

// Fenced is why the lease has ended that the request runs under; nil while it lasts, and without one. The request's
// context ends a moment later.
func (r *Request) Fenced() error {
	if r.right == nil {
		return nil
	}
	return context.Cause(r.right)
}

// watchRight has the op end with the lease that it runs under.
func (r *Request) watchRight() {
	if r.right == nil || r.op == nil {
		return
	}
	op, right := r.op, r.right
	r.outlived = context.AfterFunc(right, func() { op.cancel(context.Cause(right)) })
}

// connOf is the token of a reply subject that names the caller's connection.
func connOf(reply string) string {
	rest := reply[:max(0, strings.LastIndexByte(reply, '.'))]
	return rest[strings.LastIndexByte(rest, '.')+1:]
}

// replace ends the streams of an op that is asked for again.
func (op *Op) replace(reply string) {
	op.mu.Lock()
	op.replaced = op.reply != reply
	op.mu.Unlock()
	op.cancel(ErrReplaced)
	op.fail(ErrReplaced)
}

// tellReplaced tells the one who asked before, when its own handler has returned: what that was to start is there by
// now. Nobody may be there any more.
func (s *Server) tellReplaced(old *Op) {
	old.mu.Lock()
	replaced := old.replaced
	old.mu.Unlock()
	if !replaced {
		return
	}
	payload, err := marshal(&sandbusv1.Failure{Error: ToWire(Errorf(sandbusv1.Code_CODE_REPLACED, "%v", ErrReplaced))}, false)
	if err == nil {
		err = s.conn.publish(old.reply, payload)
	}
	if err != nil {
		s.log.Debug("replaced stream not told", "op", string(old.ID), "error", err)
	}
}

// rename gives the op the name that the message carries.
func (r *Request) rename(id OpID) error {
	old := r.op
	if err := r.registerAs(id); err != nil {
		return err
	}
	r.renamed = true
	r.srv.mu.Lock()
	delete(r.srv.ops, old.ID)
	r.srv.mu.Unlock()
	old.cancel(ErrReplaced)
	return nil
}

func (r *Request) finish() {
	defer r.srv.wg.Done()
	defer func() { <-r.srv.slots }()
	r.quiet()
	if r.stop != nil {
		r.stop()
	}
	if r.outlived != nil {
		r.outlived()
	}
	if r.op == nil {
		return
	}
	r.op.cancel(ErrStopping)
	r.op.fail(ErrClosed)
	s := r.srv
	s.tellReplaced(r.op)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ops[r.op.ID] == r.op {
		delete(s.ops, r.op.ID)
		if r.known() {
			s.past.end(r.op.ID, &outcome{harness: r.Harness, content: r.op.content, json: r.json, answer: r.answer})
		}
	}
}

// quiet ends the keep-alives.
func (r *Request) quiet() {
	if r.keepAlive != nil {
		r.keepAlive.Stop()
	}
}

// stillHere tells a caller that waits for one message that the request is under way. A caller of ours answers; when it
// has not for a minute, nobody waits any more, and the op is ended as a stream's would be.
func (r *Request) stillHere() {
	if r.op != nil && !r.json && r.op.silent() >= peerSilence {
		r.op.cancel(fmt.Errorf("%w: no acknowledgement for %s", ErrPeerSilent, peerSilence))
		return
	}
	switch {
	case r.json:
	case r.op != nil:
		r.op.stillHere()
	default:
		_ = r.srv.conn.publish(r.msg.Reply, Frame{Kind: FrameKeepAlive}.Append(nil)) // the next one may get through
	}
	r.keepAlive.Reset(keepAliveEvery)
}

// errDeadline is the cause with which a request ends that outlives its own deadline.
var errDeadline = Errorf(sandbusv1.Code_CODE_TIMED_OUT, "the request's deadline is over")

// Decode reads the message and returns the request's context, which ends on abort, deadline and Stop. Errors:
// *[Error] with CODE_INVALID, and that of Admit.
func (r *Request) Decode(m requestMessage) (context.Context, error) {
	if err := unmarshal(r.msg.Data, r.json, m); err != nil {
		return nil, Errorf(sandbusv1.Code_CODE_INVALID, "verb %s: the payload is no %s: %v", r.Verb, m.ProtoReflect().Descriptor().FullName(), err)
	}
	meta := m.GetMeta()
	if id := meta.GetOp(); id != "" && OpID(id) != r.Op {
		op, err := ParseOpID(id)
		if err != nil {
			return nil, Errorf(sandbusv1.Code_CODE_INVALID, "%v", err)
		}
		if r.Op != "" && !r.unnamed {
			return nil, Errorf(sandbusv1.Code_CODE_INVALID, "op %s in the message, op %s in the reply subject: want the same", op, r.Op)
		}
		if r.op != nil {
			if err := r.rename(op); err != nil {
				return nil, err
			}
		}
		r.Op = op
	}
	if admit := r.srv.admit; admit != nil {
		right, err := admit(r, meta.GetLease())
		if err != nil {
			return nil, err
		}
		r.right = right
		r.watchRight()
	}
	ctx := r.Context()
	if d := meta.GetDeadlineMs(); d > 0 && d < int64(maxDeadline/time.Millisecond) {
		ctx, r.stop = context.WithTimeoutCause(ctx, time.Duration(d)*time.Millisecond, errDeadline)
	}
	return ctx, nil
}

const maxDeadline = 30 * 24 * time.Hour

// Reply answers with one message; one that is too long goes out as a stream of data frames, for which the request
// needs an op.
func (r *Request) Reply(m proto.Message) {
	if err := withEncoded(m, r.json, r.reply); err != nil {
		r.Fail(err)
	}
}

func (r *Request) reply(payload []byte) {
	if len(payload) <= r.srv.conn.MaxMessage() {
		r.send(payload)
		return
	}
	if r.json || r.Op == "" || r.unnamed {
		r.Fail(Errorf(sandbusv1.Code_CODE_TOO_LARGE,
			"the answer has %d bytes, one message holds %d: ask for less, or as protobuf with an op", len(payload), r.srv.conn.MaxMessage()))
		return
	}
	out, err := r.Outgoing(0)
	if err != nil {
		r.Fail(err)
		return
	}
	err = out.Write(r.op.ctx, FrameData, payload)
	if err != nil {
		r.srv.log.Warn("answer not delivered", "verb", r.Verb, "op", string(r.Op), "error", err)
		return
	}
	sum := sha256.Sum256(payload) // a part of one answer is never taken for the rest of another
	r.EndStream(out, &sandbusv1.StreamEnd{StdoutBytes: int64(len(payload)), Sha256: sum[:]})
}

// Fail answers with an error.
func (r *Request) Fail(err error) {
	if errors.Is(err, errKnown) {
		return
	}
	payload, merr := marshal(&sandbusv1.Failure{Error: ToWire(err)}, r.json)
	if merr != nil {
		r.srv.log.Error("error not encoded", "verb", r.Verb, "error", merr)
		return
	}
	r.send(payload)
}

func (r *Request) send(payload []byte) {
	r.quiet()
	also := r.remember(payload)
	if err := r.srv.publishAnswer(r.msg.Reply, r.json, payload); err != nil {
		r.srv.log.Warn("answer not sent", "verb", r.Verb, "op", string(r.Op), "error", err)
	}
	for _, reply := range also {
		_ = r.srv.publishAnswer(reply, r.json, payload) // whoever misses it asks again
	}
}

func (s *Server) publishAnswer(reply string, json bool, payload []byte) error {
	if !json {
		return s.conn.publish(reply, payload)
	}
	m := nats.NewMsg(reply)
	m.Data = payload
	m.Header.Set("Content-Type", "application/json")
	return s.conn.nc.PublishMsg(m)
}

// Outgoing is the stream on the reply subject. A window of zero means DefaultWindow; others are held to MinWindow and
// MaxWindow. Errors, all of them for Fail: the request has no op; the op was used before, or is under way.
func (r *Request) Outgoing(window int64) (*Sender, error) {
	if r.Op == "" || r.unnamed {
		return nil, Errorf(sandbusv1.Code_CODE_INVALID, "verb %s: an answer that streams needs an op", r.Verb)
	}
	if r.op == nil {
		if err := r.register(); err != nil {
			return nil, err
		}
	}
	r.quiet() // the stream has its own
	return r.op.outgoing(ClampWindow(window)), nil
}

// Incoming is the stream that the caller sends on the op's "in" subject.
func (r *Request) Incoming() *Receiver { return r.op.Incoming() }

// Context ends on abort and on Stop; an abort is known once the request is an op (see HandleQuick).
func (r *Request) Context() context.Context {
	if r.op == nil {
		return r.srv.life
	}
	return r.op.ctx
}

// EndStream sends a stream's end and waits until it was acknowledged. A caller that is gone is only logged: there is
// nobody to tell.
func (r *Request) EndStream(out *Sender, end *sandbusv1.StreamEnd) {
	body, err := marshal(end, false)
	if err == nil {
		err = out.End(context.WithoutCancel(r.op.ctx), body)
	}
	if err != nil {
		r.srv.log.Warn("end of stream not acknowledged", "verb", r.Verb, "op", string(r.Op), "error", err)
	}
}

// ClampWindow is the credit that a stream gets whose request asks for n bytes.
func ClampWindow(n int64) int64 {
	if n == 0 {
		return DefaultWindow
	}
	return max(MinWindow, min(n, MaxWindow))
}

func (r *Request) String() string { return fmt.Sprintf("%s %s", r.Verb, r.Op) }
