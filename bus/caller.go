package bus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// maxAnswer bounds an answer that arrives in chunks, in bytes.
const maxAnswer = 64 << 20

// Caller sends requests to workers and routes what they answer. It may be used by many goroutines.
type Caller struct {
	conn    *Conn
	harness HarnessID
	id      ConnID

	mu    sync.Mutex // guards the fields below
	calls map[OpID]*call
	err   error // set when closed
	sub   *nats.Subscription
}

// NewCaller begins to listen for answers. The connection must have a harness's credential.
func NewCaller(conn *Conn) (*Caller, error) {
	h, err := ParseHarnessID(conn.Identity().Name)
	if err != nil {
		return nil, err
	}
	if conn.Identity().Role != RoleHarness {
		return nil, fmt.Errorf("the credential is for a %s, calls need one for a harness", conn.Identity().Role)
	}
	c := &Caller{conn: conn, harness: h, id: NewConnID(), calls: map[OpID]*call{}}
	conn.onReconnected(c, c.reconnected)
	c.sub, err = conn.subscribe(join("rep.*.*", string(h), string(c.id), ">"), c.receive)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Close fails the calls that are under way with ErrClosed. The connection stays open.
func (c *Caller) Close() {
	c.Lose(ErrClosed)
	c.conn.onReconnected(c, nil)
	_ = c.sub.Unsubscribe() // fails only when the connection is closed already
}

// Lose fails the calls that are under way with why, for a connection that has ended for good. Later ones fail with
// ErrClosed.
func (c *Caller) Lose(why error) {
	c.mu.Lock()
	calls := c.calls
	c.calls, c.err = nil, ErrClosed
	c.mu.Unlock()
	for _, call := range calls {
		call.fail(why)
	}
}

func (c *Caller) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// reconnected repeats what may have been lost with the connection.
func (c *Caller) reconnected() {
	c.mu.Lock()
	calls := slices.Collect(maps.Values(c.calls))
	c.mu.Unlock()
	for _, call := range calls {
		call.reconnected()
	}
}

// call is one op of ours that waits for answers.
type call struct {
	subject     string // where the answers must come
	heard       func(*nats.Msg)
	failed      func(error)
	reconnected func()
}

func (c *call) fail(err error) { c.failed(err) }

func (c *Caller) receive(m *nats.Msg) {
	op := OpID(m.Subject[lastDot(m.Subject)+1:])
	c.mu.Lock()
	call := c.calls[op]
	c.mu.Unlock()
	if call == nil || call.subject != m.Subject {
		return // ended already, or said by another sandbox than the one that was asked
	}
	call.heard(m)
}

func lastDot(s string) int { return strings.LastIndexByte(s, '.') }

// controlSubject is where frames of an op's streams go. It names our connection: the op may have another caller by now.
func (c *Caller) controlSubject(t Target, op OpID, control string) string {
	return join(t.prefix()+"op", string(op), control, string(c.id))
}

func (c *Caller) register(op OpID, call *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if c.calls[op] != nil {
		return Errorf(sandbusv1.Code_CODE_CONFLICT, "op %s is under way: an op names one request for good", op)
	}
	c.calls[op] = call
	return nil
}

func (c *Caller) unregister(op OpID) {
	c.mu.Lock()
	delete(c.calls, op)
	c.mu.Unlock()
}

func (c *Caller) replySubject(t Target, op OpID) string {
	return join("rep", string(t.Zone), string(t.Sandbox), string(c.harness), string(c.id), string(op))
}

// publish sends a request as soon as the client is connected.
func (c *Caller) publish(ctx context.Context, subject, reply string, payload []byte) error {
	if ctx.Err() != nil { // nothing is sent for somebody who has given up
		return fmt.Errorf("%w: %w", ErrPublish, c.conn.cause(ctx))
	}
	if limit := c.conn.MaxMessage(); len(payload) > limit {
		return Errorf(sandbusv1.Code_CODE_TOO_LARGE, "the request has %d bytes, one message holds %d", len(payload), limit)
	}
	for {
		err := c.conn.publishTraced(subject, reply, payload, traceOf(ctx))
		if err == nil {
			return nil
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return ErrClosed
		}
		if err := c.conn.awaitConnected(ctx); err != nil {
			return err
		}
		select { // the client may say "connected" a moment before it accepts
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrPublish, c.conn.cause(ctx))
		}
	}
}

// isNoResponders recognises the hub's word that nobody listens on a subject.
func isNoResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

type errorMessage interface {
	proto.Message
	GetError() *sandbusv1.Error
}

// Request asks a worker and waits for its one answer, however long it is. op names the request; empty means a new
// one. Errors: ErrNoResponders (nothing ran), *[Error] (the worker's own word), ErrPeerSilent (nobody knows whether it
// ran), ErrPublish, ErrClosed, *[StreamError], the context's cause.
func (c *Caller) Request(ctx context.Context, t Target, verb string, op OpID, req proto.Message, resp errorMessage) error {
	return c.Fetch(ctx, t, verb, op, req, resp, nil)
}

// Fetch is Request for a verb whose answer may be a stream that begins with the message: what the data frames carry is
// written to data, whole when Fetch returns nil. A nil data takes no such answer. Errors: also those of data.
func (c *Caller) Fetch(ctx context.Context, t Target, verb string, op OpID, req proto.Message, resp errorMessage, data io.Writer) error {
	if op == "" {
		op = NewOpID()
	}
	payload, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	began := time.Now()
	err = c.request(ctx, t, t.prefix()+verb, op, op, payload, resp, data)
	c.conn.meter.verb(verb).done(began, err)
	return err
}

// Control sends a control message of an op that may be under way, and waits for the answer. It is not repeated by itself:
// workers do not remember controls.
func (c *Caller) Control(ctx context.Context, t Target, op OpID, control string, req proto.Message, resp errorMessage) error {
	payload, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("%s: %w", control, err)
	}
	return c.request(ctx, t, join(t.prefix()+"op", string(op), control), NewOpID(), op, payload, resp, nil)
}

func (c *Caller) request(ctx context.Context, t Target, subject string, id, op OpID, payload []byte, resp errorMessage, data io.Writer) error {
	w := &waiter{got: make(chan result, 1), data: data, meter: c.conn.meter}
	reply := c.replySubject(t, id)
	w.asking = asking{conn: c.conn, subject: subject, reply: reply, payload: payload, trace: traceOf(ctx), once: id != op, failed: w.fail}
	w.ack = func(b []byte) error { return c.conn.publish(c.controlSubject(t, id, "ack"), b) }
	if err := c.register(id, &call{subject: reply, heard: w.heard, failed: w.fail, reconnected: w.asking.reconnected}); err != nil {
		return err
	}
	defer c.unregister(id)
	defer w.close()
	if err := c.publish(ctx, subject, reply, payload); err != nil {
		return err
	}
	w.asking.opens()
	silence := time.NewTimer(repeatFirst)
	defer silence.Stop()
	for {
		select {
		case r := <-w.got:
			if r.err != nil {
				return r.err
			}
			if err := checkShape(r.data, resp.ProtoReflect().Descriptor()); err != nil {
				return err
			}
			proto.Reset(resp) // another worker may have refused this request before
			if err := unmarshal(r.data, false, resp); err != nil {
				return &StreamError{Rule: fmt.Sprintf("the answer to op %s is no %s", op, resp.ProtoReflect().Descriptor().Name())}
			}
			return FromWire(resp.GetError())
		case <-ctx.Done():
			return c.conn.cause(ctx)
		case <-silence.C:
			next, err := w.asking.look()
			if err != nil {
				return err
			}
			silence.Reset(next)
		}
	}
}

type result struct {
	data []byte
	err  error
}

// waiter waits for one message, or for the frames that make one.
type waiter struct {
	got chan result // one element: the first result counts
	ack func([]byte) error
	// data takes what follows a started frame; nil means that there must be none.
	data  io.Writer
	meter *Meter // nil means nobody counts

	asking asking

	mu     sync.Mutex // guards the fields below
	recv   *Receiver
	cancel context.CancelFunc
	done   chan struct{}
}

func (w *waiter) put(r result) {
	select {
	case w.got <- r:
	default:
	}
}

func (w *waiter) fail(err error) { w.put(result{err: err}) }

func (w *waiter) heard(m *nats.Msg) {
	if !isFrame(m.Data) {
		if isNoResponders(m) {
			w.asking.refuse()
			return
		}
		w.put(result{data: m.Data})
		return
	}
	w.asking.hear()
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := ParseFrame(m.Data)
	if err != nil {
		w.fail(err)
		return
	}
	if f.Kind == FrameAck || f.Kind == FrameNak {
		return
	}
	if f.Kind == FrameKeepAlive && w.recv == nil { // the request is under way: say that somebody waits for it
		_ = w.ack(ackFrame(FrameAck, 0, 0)) // the next one may get through
		return
	}
	if w.recv == nil {
		w.recv = newReceiver(DefaultWindow, w.ack)
		w.recv.meter = w.meter.orDiscard()
		var ctx context.Context
		ctx, w.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // the cause is never asked for
		w.done = make(chan struct{})
		go func() {
			defer close(w.done)
			message, err := w.collect(ctx)
			w.put(result{message, err})
		}()
	}
	w.recv.deliver(f)
}

func (w *waiter) close() {
	w.asking.close()
	w.mu.Lock()
	recv, cancel, done := w.recv, w.cancel, w.done
	w.mu.Unlock()
	if recv == nil {
		return
	}
	recv.fail(ErrClosed)
	cancel()
	<-done
}

// collect puts an answer together that came in chunks: the message itself, or a message in a started frame and data
// behind it.
func (w *waiter) collect(ctx context.Context) ([]byte, error) {
	var message []byte
	var total int64
	sum := sha256.New()
	started := false
	for {
		f, err := w.recv.Next(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case f.Kind == FrameStarted && w.data != nil:
			message, started = f.Body, true
		case f.Kind == FrameData && started:
			if _, err := w.data.Write(f.Body); err != nil {
				return nil, err
			}
			sum.Write(f.Body)
			total += int64(len(f.Body))
		case f.Kind == FrameData:
			if len(message)+len(f.Body) > maxAnswer {
				return nil, &StreamError{Rule: fmt.Sprintf("an answer has at most %d bytes", maxAnswer)}
			}
			message = append(message, f.Body...)
			sum.Write(f.Body)
			total += int64(len(f.Body))
		case f.Kind == FrameEnd:
			return message, checkEnd(f.Body, total, sum.Sum(nil))
		default:
			return nil, &StreamError{Rule: fmt.Sprintf("this answer has no frames of kind %d", f.Kind)}
		}
	}
}

// checkEnd compares what an end frame says with what came.
func checkEnd(body []byte, total int64, sum []byte) error {
	var end sandbusv1.StreamEnd
	if err := proto.Unmarshal(body, &end); err != nil {
		return &StreamError{Rule: "the end frame's body is no StreamEnd"}
	}
	if err := FromWire(end.GetError()); err != nil {
		return err
	}
	if end.GetStdoutBytes() != total {
		return &StreamError{Rule: fmt.Sprintf("the end says %d bytes, %d came", end.GetStdoutBytes(), total)}
	}
	if want := end.GetSha256(); len(want) > 0 && !bytes.Equal(want, sum) {
		return &StreamError{Rule: fmt.Sprintf("the end says SHA-256 %x, the bytes have %x", want, sum)}
	}
	return nil
}
