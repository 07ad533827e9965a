package bothsides

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sandbus/sandbus/workerd"
)

// TestTraceCrossesTheBus makes calls under a sampled span: the command sees the trace, the worker's log names it, and the
// harness has spans of the call and of where its time went. Without a span, or with one that is not sampled, nothing is
// carried.
func TestTraceCrossesTheBus(t *testing.T) {
	var log lockedBuffer
	p := start(t, func(c *workerd.Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "f"), []byte("x"), 0o600))
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	ctx, root := provider.Tracer("test").Start(t.Context(), "root")
	trace := root.SpanContext().TraceID().String()

	fast, err := p.ScriptCommand("echo $TRACEPARENT").Output(ctx)
	require.NoError(t, err)
	stream := p.Command("sh", "-c", "sleep 0.02; echo $TRACEPARENT")
	streamed, err := stream.Output(ctx)
	require.NoError(t, err)
	_, err = p.ReadFile(ctx, "f")
	require.NoError(t, err)
	own := p.ScriptCommand("echo $TRACEPARENT")
	own.Env = []string{"TRACEPARENT=mine"}
	mine, err := own.Output(ctx)
	require.NoError(t, err)
	require.Equal(t, "mine\n", string(mine), "the caller's word counts")
	require.Error(t, p.Command("/nonexistent").Run(ctx))
	root.End()

	spans := exporter.GetSpans()
	parents := map[string][]string{}
	ids := map[string]string{}
	for _, s := range spans {
		require.Equal(t, trace, s.SpanContext.TraceID().String(), s.Name)
		ids[s.SpanContext.SpanID().String()] = s.Name
	}
	for _, s := range spans {
		parents[s.Name] = append(parents[s.Name], ids[s.Parent.SpanID().String()])
	}
	require.Equal(t, []string{"root", "root", "root", "root"}, parents["exec"], "%v", parents)
	require.Equal(t, []string{"root"}, parents["fs.read"])
	require.Contains(t, parents["run"], "exec")
	require.Contains(t, parents["first byte"], "exec")
	for _, said := range []string{string(fast), string(streamed)} {
		said = strings.TrimSpace(said)
		require.Len(t, said, 55)
		require.Equal(t, trace, said[3:35])
		require.Contains(t, []string{"exec", "shell.run"}, ids[said[36:52]], "the command's parent is a span of the harness")
	}
	require.GreaterOrEqual(t, strings.Count(log.String(), `"trace_id":"`+trace+`"`), 3)

	unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	quiet, _ := unsampled.Tracer("test").Start(t.Context(), "quiet")
	before := len(exporter.GetSpans())
	out, err := p.ScriptCommand("echo ${TRACEPARENT-none}").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "none\n", string(out))
	out, err = p.Command("sh", "-c", "echo ${TRACEPARENT-none}").Output(quiet)
	require.NoError(t, err)
	require.Equal(t, "none\n", string(out))
	require.Len(t, exporter.GetSpans(), before)
}
