package harnesslib

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandbus/sandbus/bus"
)

// Traces go across the bus when the context of a call carries a sampled span of OpenTelemetry: the request names it in the
// header traceparent of W3C Trace Context, the sandbox hands it to commands as TRACEPARENT and writes trace_id to its log,
// and the library makes spans of the call with the caller's own provider. The sandbox exports nothing: what is in a span of
// it is what came back in the answer. Without such a span a request is as it is without traces.

// tracerName is the scope of the library's spans.
const tracerName = "github.com/sandbus/sandbus/harnesslib"

// span is a span of the library; nil is none.
type span struct{ trace.Span }

// beginSpan begins a span below the one of ctx, when that is sampled, and has the requests of the context name it.
func beginSpan(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, *span) {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsSampled() {
		return ctx, nil
	}
	tracer := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName)
	ctx, s := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	return carryTrace(ctx), &span{s}
}

// carryTrace has the requests of a context name its span, when that is sampled.
func carryTrace(ctx context.Context) context.Context {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsSampled() {
		return ctx
	}
	return bus.WithTrace(ctx, "00-"+sc.TraceID().String()+"-"+sc.SpanID().String()+"-"+sc.TraceFlags().String())
}

// end ends the span. It may be called for nil.
func (s *span) end(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.SetStatus(codes.Error, err.Error())
	}
	s.End()
}

// endExec ends the span of an exec with spans of where its time went. The sandbox says how long each part took, and its clock
// is not ours: the parts stand before now in their order.
func (s *span) endExec(ctx context.Context, o Outcome, t Timing, err error) {
	if s == nil {
		return
	}
	if o.Kind != "" {
		s.SetAttributes(attribute.String("sandbus.outcome", string(o.Kind)))
		if o.Kind == Exited {
			s.SetAttributes(attribute.Int("process.exit.code", o.Code))
		}
	}
	tracer := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName)
	part := func(name string, from time.Time, d time.Duration) time.Time {
		to := from.Add(d)
		if d > 0 {
			_, p := tracer.Start(ctx, name, trace.WithTimestamp(from))
			p.End(trace.WithTimestamp(to))
		}
		return to
	}
	at := part("queue", time.Now().Add(-(t.Queue + t.Start + t.Run + t.Drain)), t.Queue)
	began := part("start", at, t.Start)
	part("first byte", began, t.FirstByte)
	part("drain", part("run", began, t.Run), t.Drain)
	s.end(err)
}

// sandboxAttr names the sandbox in a span.
func sandboxAttr(t bus.SandboxID) attribute.KeyValue {
	return attribute.String("sandbus.sandbox", string(t))
}
