package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/telemetry"
	"github.com/sandbus/sandbus/workerd"
	"github.com/sandbus/sandbus/workerd/command"
)

// get fetches a page and returns its status and text.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

// scrapeAll runs one of each part, has a file read and a command run, and returns what /metrics says of all of them.
func scrapeAll(t *testing.T) (text string, worker *workerd.Worker, stop func()) {
	t.Helper()
	h, err := hub.Start(t.Context(), hub.Config{})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	credential := func(role bus.Role, name string) bus.Credential {
		c, err := h.Credential(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name})
		require.NoError(t, err)
		return c
	}
	dir, ready, ended := t.TempDir(), make(chan struct{}), make(chan error, 1)
	worker, err = workerd.New(workerd.Config{
		URL: h.URL(), Dial: h.Dial, Credential: credential(bus.RoleSandbox, "box"), Dir: dir, OnReady: func() { close(ready) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { ended <- worker.Run(ctx) }()
	stop = func() {
		cancel(errors.New("the test is over"))
		require.NoError(t, <-ended)
	}
	<-ready
	meter := &harnesslib.Meter{}
	cfg := harnesslib.Config{URL: h.URL(), Dial: h.Dial, Token: credential(bus.RoleHarness, "test").Token(), Meter: meter}
	harness, err := harnesslib.Connect(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(harness.Close)
	sb, err := harness.Sandbox("box")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600))
	_, err = sb.ReadFile(t.Context(), "f")
	require.NoError(t, err)
	_, err = sb.ReadFile(t.Context(), "missing")
	require.Error(t, err)
	_, err = sb.ScriptCommand("exit 3").Output(t.Context())
	require.Error(t, err)
	require.NoError(t, sb.Command("true").Run(t.Context()))
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("harness test "+strings.Repeat("x", 32)+"\n"), 0o600))
	known, err := gateway.OpenTokens(tokens)
	require.NoError(t, err)
	g, err := gateway.New(gateway.Config{Hub: cfg, Tokens: known})
	require.NoError(t, err)
	s, err := telemetry.Start(telemetry.Config{
		Addr: "127.0.0.1:0", Health: worker.Health,
		Collectors: telemetry.List(telemetry.Bus(meter, "harness", harness.Connected), telemetry.Bus(&worker.Meter().Bus, "worker", worker.Connected),
			command.Metrics(worker), telemetry.Registrar(h.Registrar()), hubMetrics(h), gatewayMetrics(g)),
	})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	status, text := get(t, "http://"+s.Addr()+"/healthz")
	require.Equal(t, "ok\n", text)
	require.Equal(t, http.StatusOK, status)
	status, text = get(t, "http://"+s.Addr()+"/metrics")
	require.Equal(t, http.StatusOK, status)
	return text, worker, stop
}

// TestMetrics has every part say what it does, and the dashboard show nothing else.
func TestMetrics(t *testing.T) {
	text, worker, stop := scrapeAll(t)
	for _, line := range []string{
		`sandbus_request_seconds_count{hop="worker",verb="fs.read"} 2`,
		`sandbus_requests_failed_total{hop="worker",verb="fs.read"} 1`,
		`sandbus_request_seconds_count{hop="harness",verb="fs.read"} 2`,
		`sandbus_requests_failed_total{hop="harness",verb="fs.read"} 1`,
		`sandbus_execs_total{outcome="exited",tier="fast"} 1`,
		`sandbus_execs_total{outcome="exited",tier="stream"} 1`,
		`sandbus_exec_stage_seconds_count{stage="run"} 2`,
		`sandbus_registrar_hellos_total{result="adopted"} 1`,
		`sandbus_registrar_sandboxes 1`,
		`sandbus_connected{hop="worker"} 1`,
		`sandbus_draining 0`,
	} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	names := map[string]bool{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			names[line[:strings.IndexAny(line, "{ ")]] = true
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "metrics", "dashboard.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &dashboard))
	require.Greater(t, len(dashboard.Panels), 10)
	metric := regexp.MustCompile(`\b(?:sandbus|go|process)_[a-z_]+`)
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			used := metric.FindAllString(target.Expr, -1)
			require.NotEmpty(t, used, target.Expr)
			for _, name := range used {
				require.True(t, names[name], "%s: there is no metric %s", p.Title, name)
			}
		}
	}
	stop()
	require.ErrorIs(t, worker.Health(), workerd.ErrDraining)
}
