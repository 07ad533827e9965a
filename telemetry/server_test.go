package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/telemetry"
)

func TestMain(m *testing.M) { testenv.Main(m) }

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

func TestServer(t *testing.T) {
	var ill error
	meter, timed := &bus.Meter{}, &bus.Histogram{}
	meter.Reconnects.Add(3)
	timed.Observe(30 * time.Microsecond)
	timed.Observe(2 * time.Second)
	timed.Observe(time.Hour)
	s, err := telemetry.Start(telemetry.Config{
		Addr: "127.0.0.1:0", Health: func() error { return ill },
		Collectors: telemetry.List(telemetry.Bus(meter, "worker", func() bool { return true }), func(e telemetry.Emit) {
			e.Histogram("sandbus_test_seconds", "Test.", timed, "verb", "x")
		}),
	})
	require.NoError(t, err)
	defer s.Stop()
	status, text := get(t, "http://"+s.Addr()+"/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, line := range []string{
		`sandbus_reconnects_total{hop="worker"} 3`, `sandbus_connected{hop="worker"} 1`,
		`sandbus_test_seconds_bucket{verb="x",le="2.5e-05"} 0`, `sandbus_test_seconds_bucket{verb="x",le="5e-05"} 1`,
		`sandbus_test_seconds_bucket{verb="x",le="2.5"} 2`, `sandbus_test_seconds_bucket{verb="x",le="+Inf"} 3`,
		`sandbus_test_seconds_count{verb="x"} 3`, `sandbus_test_seconds_sum{verb="x"} 3602.00003`,
	} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	status, text = get(t, "http://"+s.Addr()+"/healthz")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok\n", text)
	ill = errors.New("draining")
	status, text = get(t, "http://"+s.Addr()+"/healthz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "draining\n", text)

	_, err = telemetry.Start(telemetry.Config{Addr: s.Addr()})
	require.ErrorContains(t, err, s.Addr(), "a taken address is named")
	_, err = telemetry.Start(telemetry.Config{Addr: "nowhere"})
	require.ErrorContains(t, err, "want HOST:PORT")
}

func TestLogFormat(t *testing.T) {
	var f telemetry.LogFormat
	require.Error(t, f.Set("xml"))
	require.NoError(t, f.Set("json"))
	var b bytes.Buffer
	f.Logger(&b, slog.LevelInfo).Info("exec ended", "exec", "x")
	var line map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &line))
	require.Equal(t, "x", line["exec"])
}

// TestLogKeys holds that no line of a log has a key that is not in the list: it reads the calls in the source.
func TestLogKeys(t *testing.T) {
	calls, unknown := 0, []string(nil)
	for _, dir := range []string{"bus", "workerd", "gateway", "harnesslib", "telemetry"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "InfoContext", "WarnContext"}, sel.Sel.Name) {
					return true
				}
				first := 1
				if strings.HasSuffix(sel.Sel.Name, "Context") {
					first = 2
				}
				for i := first; i+1 < len(call.Args); i += 2 {
					lit, ok := call.Args[i].(*ast.BasicLit)
					if !ok || lit.Kind != token.STRING {
						continue
					}
					key, err := strconv.Unquote(lit.Value)
					require.NoError(t, err)
					if !slices.Contains(telemetry.Keys, key) {
						unknown = append(unknown, path+": "+key)
					}
					calls++
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	require.Empty(t, unknown, "keys that are not in telemetry.Keys")
	require.Greater(t, calls, 50)
}
