package harnesslib

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// access is a sandbox's way to its hub.
type access struct {
	*Hub
	caller caller
}

// caller sends the requests of a sandbox. Under a lease each of them carries it, and ends with it. It does not embed the
// bus's caller, so that no request gets past it.
type caller struct {
	bus   *bus.Caller
	lease *Lease // nil means none
}

// under runs what is sent under the lease: it fails with the lease's cause when that has ended, also meanwhile.
func (c caller) under(ctx context.Context, req proto.Message, do func(context.Context) error) error {
	if c.lease == nil {
		return do(ctx)
	}
	if err := c.lease.usable(); err != nil {
		return err
	}
	c.lease.sign(req)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.lease.life, func() { cancel(context.Cause(c.lease.life)) })()
	return c.lease.noted(do(ctx))
}

// ask is under for a request whose answer means that the worker has renewed the lease.
func (c caller) ask(ctx context.Context, req proto.Message, do func(context.Context) error) error {
	sent := time.Now()
	err := c.under(ctx, req, do)
	if err == nil && c.lease != nil {
		c.lease.extend(sent)
	}
	return err
}

func (c caller) Request(ctx context.Context, t bus.Target, verb string, op bus.OpID, req proto.Message, resp response) error {
	return c.ask(ctx, req, func(ctx context.Context) error { return c.bus.Request(ctx, t, verb, op, req, resp) })
}

func (c caller) Fetch(ctx context.Context, t bus.Target, verb string, op bus.OpID, req proto.Message, resp response, data io.Writer) error {
	return c.ask(ctx, req, func(ctx context.Context) error { return c.bus.Fetch(ctx, t, verb, op, req, resp, data) })
}

func (c caller) Control(ctx context.Context, t bus.Target, op bus.OpID, control string, req proto.Message, resp response) error {
	return c.under(ctx, req, func(ctx context.Context) error { return c.bus.Control(ctx, t, op, control, req, resp) })
}

func (c caller) Open(ctx context.Context, t bus.Target, verb string, op bus.OpID, req proto.Message, window int64, input bool) (*bus.Stream, error) {
	return c.open(ctx, req, func(ctx context.Context) (*bus.Stream, error) {
		return c.bus.Open(ctx, t, verb, op, req, window, input)
	})
}

func (c caller) OpenRepeatable(ctx context.Context, t bus.Target, verb string, op bus.OpID, req proto.Message, window int64, input bool) (*bus.Stream, error) {
	return c.open(ctx, req, func(ctx context.Context) (*bus.Stream, error) {
		return c.bus.OpenRepeatable(ctx, t, verb, op, req, window, input)
	})
}

// open is under for a stream, which ends with the lease too.
func (c caller) open(ctx context.Context, req proto.Message, do func(context.Context) (*bus.Stream, error)) (st *bus.Stream, err error) {
	err = c.under(ctx, req, func(ctx context.Context) error {
		st, err = do(ctx)
		return err
	})
	if err == nil && c.lease != nil {
		st.Bind(c.lease.life)
	}
	return st, err
}

// Gone is bus.Caller's.
func (c caller) Gone(why error) error { return c.bus.Gone(why) }

// sign names the lease in a request's meta. Control messages have none: an op's name is the right to it.
func (l *Lease) sign(req proto.Message) {
	m := req.ProtoReflect()
	field := m.Descriptor().Fields().ByName("meta")
	if field == nil {
		return
	}
	if meta, ok := m.Mutable(field).Message().Interface().(*sandbusv1.RequestMeta); ok {
		meta.Lease = l.id
	}
}

// noted ends the lease when an error says that the worker does not know it any more, and returns the error. It is called
// for a nil lease too.
func (l *Lease) noted(err error) error {
	if be, ok := errors.AsType[*bus.Error](err); ok && l != nil && be.Code == sandbusv1.Code_CODE_FENCED {
		l.finish(ErrFenced, be.Message)
	}
	return err
}
