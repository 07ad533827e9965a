package bothsides

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/telemetry"
)

// health asks a process how it is; "" while it does not answer.
func health(t *testing.T, addr string) (said string, status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/healthz", nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", 0
	}
	defer func() { require.NoError(t, resp.Body.Close()) }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return strings.TrimSpace(string(b)), resp.StatusCode
}

// TestHealthOfAWorkerProcess asks a worker how it is when it serves, when the hub is gone, and while it drains; its log is
// JSON with keys of the one list.
func TestHealthOfAWorkerProcess(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	way := n.proxy(t)
	cmd, log := exec.Command(os.Args[0]), &lockedBuffer{}
	cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+way.url, "SANDBUS_TOKEN="+n.token(t, bus.RoleSandbox, "box"),
		"SANDBUS_DIR="+n.dir, "SANDBUS_STATE_DIR="+t.TempDir(), "SANDBUS_STOP_GRACE=2m",
		"SANDBUS_LOG_FORMAT=json", "SANDBUS_METRICS_ADDR=127.0.0.1:0")
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = cmd.Wait()                          // its status does not matter
		}
	})
	lines := func() (out []map[string]any) {
		for line := range strings.Lines(log.String()) {
			var fields map[string]any
			if strings.HasSuffix(line, "\n") {
				require.NoError(t, json.Unmarshal([]byte(line), &fields), line)
				out = append(out, fields)
			}
		}
		return out
	}
	addr := ""
	require.Eventually(t, func() bool {
		for _, l := range lines() {
			if l["msg"] == "metrics are served" {
				addr, _ = l["address"].(string)
			}
		}
		return addr != ""
	}, 60*time.Second, 5*time.Millisecond)
	is := func(status int, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			said, got := health(t, addr)
			return got == status && strings.Contains(said, want)
		}, 60*time.Second, 10*time.Millisecond)
	}
	is(http.StatusOK, "ok")
	way.cut()
	is(http.StatusServiceUnavailable, "not connected")
	way.mend()
	is(http.StatusOK, "ok")
	p := n.place(t, n.hub.URL())
	c := p.Command("sh", "-c", "echo $$ >a; while [ ! -e go ]; do sleep 0.05; done")
	require.NoError(t, c.Start(t.Context()))
	appears(t, p, "a")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	is(http.StatusServiceUnavailable, "draining")
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "go"), nil, 0o600))
	require.NoError(t, c.Wait())
	require.NoError(t, cmd.Wait())
	ended = true
	known := map[string]bool{"time": true, "level": true, "msg": true}
	for _, k := range telemetry.Keys {
		known[k] = true
	}
	seen := 0
	for _, l := range lines() {
		for k := range l {
			require.True(t, known[k], "%s is in no list: %v", k, l)
			seen++
		}
	}
	require.Greater(t, seen, 10)
}
