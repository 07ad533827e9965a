// Package hostile is a sandbox that keeps to no rule, for tests of those who must not be hurt by it. It has a sandbox's
// real credential, says hello and beats as it should, and answers requests as a [Behaviour] says.
package hostile

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Worker is a hostile sandbox.
type Worker struct {
	conn   *bus.Conn // for the hello and the beats
	nc     *nats.Conn
	target bus.Target
	does   Behaviour
	life   context.Context //nolint:containedctx // the worker's own life, ended by Close
	end    context.CancelCauseFunc
	wg     sync.WaitGroup
	turn   sync.Mutex // held by the one answer that is under way

	once  sync.Once
	asked chan struct{} // closed with the first request

	mu  sync.Mutex // guards the field below
	ops map[string]*Request
}

// Asked is closed when the first request has come.
func (w *Worker) Asked() <-chan struct{} { return w.asked }

// errOver is the cause with which a hostile worker's answers end.
var errOver = fmt.Errorf("the hostile worker was closed")

// Start runs a hostile sandbox at a hub until Close; presence knows it when Start returns.
func Start(ctx context.Context, cfg bus.Config, does Behaviour) (*Worker, error) {
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	id := cfg.Credential.Identity()
	own := fmt.Sprintf("%s.%s", id.Zone, id.Name)
	opts := []nats.Option{
		nats.Token(cfg.Credential.Token()), nats.CustomInboxPrefix("_I." + own),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // refused: as it should be
	}
	if cfg.Dial != nil {
		opts = append(opts, nats.SetCustomDialer(dialer(cfg.Dial)))
	}
	nc, err := nats.Connect("nats://127.0.0.1:4222", opts...)
	if err != nil {
		conn.Close()
		return nil, err
	}
	w := &Worker{
		conn: conn, nc: nc, does: does, ops: map[string]*Request{}, asked: make(chan struct{}),
		target: bus.Target{Zone: id.Zone, Sandbox: bus.SandboxID(id.Name), Instance: bus.NewInstanceID()},
	}
	w.life, w.end = context.WithCancelCause(context.Background())
	if _, err := nc.Subscribe("sbx."+w.target.String()+".>", w.receive); err != nil {
		w.Close()
		return nil, err
	}
	if err := nc.Flush(); err != nil {
		w.Close()
		return nil, err
	}
	return w, w.announce(ctx)
}

func (w *Worker) announce(ctx context.Context) error {
	ready := make(chan struct{})
	refused := make(chan error, 1)
	a := &bus.Announcer{
		Conn: w.conn, Target: w.target, Ready: func() { close(ready) },
		Hello: &sandbusv1.Hello{Arch: "none", Os: "none", Slots: 1, Version: "\x1b[31mhostile"},
	}
	w.wg.Go(func() { refused <- a.Run(w.life) })
	select {
	case <-ready:
		return nil
	case err := <-refused:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the sandbox and waits for all that it still says.
func (w *Worker) Close() {
	w.end(errOver)
	w.wg.Wait()
	w.nc.Close()
	w.conn.Close()
}

func (w *Worker) receive(m *nats.Msg) {
	rest := strings.TrimPrefix(m.Subject, "sbx."+w.target.String()+".")
	if control, ok := strings.CutPrefix(rest, "op."); ok {
		op, verb, _ := strings.Cut(control, ".")
		w.mu.Lock()
		r := w.ops[op]
		w.mu.Unlock()
		if f, err := bus.ParseFrame(m.Data); r != nil && err == nil && verb == "ack" {
			r.acknowledged(f)
		}
		return // nothing is confirmed
	}
	r := &Request{Verb: rest, worker: w, reply: m.Reply, changed: make(chan struct{}, 1)}
	r.credit.Store(bus.DefaultWindow)
	w.mu.Lock()
	w.ops[m.Reply[strings.LastIndexByte(m.Reply, '.')+1:]] = r
	w.mu.Unlock()
	w.once.Do(func() { close(w.asked) })
	w.wg.Go(func() {
		w.turn.Lock()
		defer w.turn.Unlock()
		w.does.Answer(r)
	})
}

// Request is one request of a harness.
type Request struct {
	Verb string

	worker  *Worker
	reply   string
	next    uint64 // the number of the next frame
	sent    int64  // bytes that used credit
	credit  atomic.Int64
	changed chan struct{} // has one element when credit came
}

func (r *Request) acknowledged(f bus.Frame) {
	r.credit.Store(max(r.credit.Load(), int64(f.GapBytes()))) // the number in the body, as a gap has it
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Raw answers with bytes.
func (r *Request) Raw(payload []byte) { r.publish(r.reply, payload) }

// publish fails only when the worker is closed meanwhile, or refused: then there is nothing left to do.
func (r *Request) publish(subject string, payload []byte) { _ = r.worker.nc.Publish(subject, payload) }

// Message answers with a message.
func (r *Request) Message(m proto.Message) {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // a bug of the test double
	}
	r.Raw(b)
}

// FrameAt sends a frame with any number.
func (r *Request) FrameAt(seq uint64, kind bus.FrameKind, body []byte) {
	r.Raw(bus.Frame{Seq: seq, Kind: kind, Body: body}.Append(nil))
}

// Frame sends the next frame.
func (r *Request) Frame(kind bus.FrameKind, body []byte) {
	r.FrameAt(r.next, kind, body)
	r.next++
}

// Data sends so many bytes in frames of a kind, keeping to its credit. It returns early when the worker is closed.
func (r *Request) Data(kind bus.FrameKind, chunk []byte, n int) {
	for n > 0 {
		for r.sent+int64(len(chunk)) > r.credit.Load() {
			select {
			case <-r.changed:
			case <-r.worker.life.Done():
				return
			}
		}
		r.Frame(kind, chunk)
		r.sent += int64(len(chunk))
		n -= len(chunk)
	}
}

// End sends the end frame.
func (r *Request) End(end *sandbusv1.StreamEnd) {
	b, err := proto.Marshal(end)
	if err != nil {
		panic(err) // a bug of the test double
	}
	r.Frame(bus.FrameEnd, b)
}

// Exited is the end of an exec that went well.
func (r *Request) Exited() {
	r.End(&sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED}})
}

// Flushed returns when the hub has taken all that was sent.
func (r *Request) Flushed() { _ = r.worker.nc.FlushTimeout(30 * time.Second) } // closed: nothing is left to do
