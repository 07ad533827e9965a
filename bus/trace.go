package bus

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// headerTrace is the header of a request that belongs to a trace (W3C Trace Context, level 1). A request without one has
// no header at all: headers cost the hub and both ends.
const headerTrace = "traceparent"

type traceKey struct{}

// WithTrace has the requests that are made with the context carry a traceparent of W3C Trace Context. An empty or
// malformed one is not carried.
func WithTrace(ctx context.Context, traceparent string) context.Context {
	if traceID(traceparent) == "" {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, traceparent)
}

// traceOf is the traceparent that a context's requests carry; empty means none.
func traceOf(ctx context.Context) string {
	t, _ := ctx.Value(traceKey{}).(string)
	return t
}

// publishTraced is publishRequest of a request that may belong to a trace.
func (c *Conn) publishTraced(subject, reply string, payload []byte, trace string) error {
	if trace == "" {
		return c.publishRequest(subject, reply, payload)
	}
	if err := c.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: payload, Header: nats.Header{headerTrace: {trace}}}); err != nil {
		return &publishError{err}
	}
	return nil
}

// publishError is an error that wraps ErrPublish.
type publishError struct{ err error }

func (e *publishError) Error() string   { return ErrPublish.Error() + ": " + e.err.Error() }
func (e *publishError) Unwrap() []error { return []error{ErrPublish, e.err} }

// Trace is the traceparent that the request carries, and the trace's id in it; both are empty when it carries none that is
// well-formed. It is whoever asks who says so: nothing but a mark.
func (r *Request) Trace() (traceparent, id string) {
	if r.msg.Header == nil {
		return "", ""
	}
	t := r.msg.Header.Get(headerTrace)
	if id = traceID(t); id == "" {
		return "", ""
	}
	return t, id
}

// traceID is the trace's id in a traceparent of version 00: 00-32 digits-16 digits-2 digits, in lower-case hexadecimal, and
// not all of an id's zero. Empty when it is none.
func traceID(t string) string {
	if len(t) != 55 || t[:3] != "00-" || t[35] != '-' || t[52] != '-' {
		return ""
	}
	for _, part := range []string{t[3:35], t[36:52], t[53:]} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return ""
		}
	}
	if strings.Trim(t[3:35], "0") == "" || strings.Trim(t[36:52], "0") == "" {
		return ""
	}
	return t[3:35]
}

// OutcomeName is the word for how an exec ended, as logs and metrics have it, such as "exited" or "timed_out".
func OutcomeName(k sandbusv1.OutcomeKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "OUTCOME_KIND_"))
}
