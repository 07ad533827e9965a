package report

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/loadtest/record"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func ptr(v float64) *float64 { return new(v) }

// recorded is a run of two arms over three rungs.
func recorded() *record.File {
	f := &record.File{Runs: []record.Run{record.NewRun("mix", record.Machine{CPUs: 2, CPU: "a <processor>", Versions: map[string]string{"go": "go1"}})}}
	for i, c := range []int{1, 4, 16} {
		for j, arm := range []string{"echo", "bus-<native>"} {
			v := float64(100 * (i + 1) * (j + 1))
			o := &record.Ops{N: 10, OK: 9, P50: ptr(v), P90: ptr(1.5 * v), P95: ptr(2 * v), P99: ptr(3 * v), P999: ptr(4 * v), Max: ptr(2.5e6)}
			r := &record.Rung{
				Record: "rung", Arm: arm, Workload: "mix", Workers: 1, Sessions: c, Sandboxes: 2, Concurrency: c, Attempts: 10, OK: 9,
				SuccessRate: ptr(0.9), Throughput: ptr(1e6 / v), All: o, Ops: map[string]*record.Ops{"read": o},
				SandboxCPUShare: ptr(0.2), HarnessCPUShare: ptr(0.3), HubCPUShare: ptr(0.1), Bound: record.BoundSandbox,
				BoundColumn: "sandbox_cpu_share", BoundValue: ptr(0.2),
			}
			o.Errors = map[string]int64{"busy": 1}
			f.Rungs = append(f.Rungs, r)
		}
	}
	f.Rungs[5].Marks, f.Rungs[5].Notes = []string{record.MarkSuccess}, []string{"busy: <full>"}
	f.Knees = []record.Knee{{Arm: "echo", Workload: "mix", Concurrency: 16, AtLeast: true, Why: "the top rung was healthy"}}
	f.Missing = []record.MissingArm{{Arm: "docker", Workload: "mix", Why: "no docker"}}
	return f
}

func TestTable(t *testing.T) {
	var b strings.Builder
	require.NoError(t, Table(&b, recorded()))
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, strings.Fields("c arm W×S/K attempts ok ops/s p50 p90 p95 p99 p99.9 max sandbox CPU harness CPU hub CPU bound marks"),
		strings.Fields(lines[4]), "columns that were measured nowhere are left out")
	require.Equal(t, strings.Fields("1 echo 1×1/2 10 90.0% 10000 100µs 150µs 200µs 300µs 400µs 2.50s 20.0% 30.0% 10.0% sandbox CPU (sandbox_cpu_share 0.2)"),
		strings.Fields(lines[5]))
	require.Contains(t, lines[10], "below-success-floor")
	for _, want := range []string{"knee echo", "at least 16", "arm docker is not to be had: no docker", "busy=1", "busy: <full>"} {
		require.Contains(t, b.String(), want)
	}
}

func TestTableOfNothing(t *testing.T) {
	var b strings.Builder
	require.NoError(t, Table(&b, &record.File{}))
	require.Empty(t, b.String())
	require.NoError(t, HTML(&b, &record.File{}))
}

func TestComparison(t *testing.T) {
	var b strings.Builder
	require.NoError(t, Comparison(&b, []record.Diff{
		{Workload: "mix", ArmA: "echo", ArmB: "bus", Concurrency: 4, P50: &record.Ratio{Median: 1.5, Low: 1.4, High: 1.6}, Past: []string{"p50"}},
	}, 1.25))
	require.Contains(t, b.String(), "bus/echo")
	require.Contains(t, b.String(), "1.50 (1.40 to 1.60)")
}

func TestPageIsSelfContained(t *testing.T) {
	var b strings.Builder
	require.NoError(t, HTML(&b, recorded()))
	page := b.String()
	for _, foreign := range []string{"http:", "https:", "src=", "href=", "<script", "@import", "url("} {
		require.NotContains(t, page, foreign)
	}
	require.NotContains(t, page, "<native>", "names are escaped")
	require.NotContains(t, page, "<processor>")
	for _, want := range []string{"Latency, p95", "Throughput", "Knee", "What bounds each rung", "processors by tier", "at least 16"} {
		require.Contains(t, page, want)
	}
	require.Equal(t, 7, strings.Count(page, "<svg "))
	require.Equal(t, 7, strings.Count(page, "</svg>"))
}

// TestPageInABrowser has a browser draw the page, and looks for the colours of both arms and of the bound.
func TestPageInABrowser(t *testing.T) {
	browser := testenv.Tool(t, "chromium")
	dir := t.TempDir()
	file, shot := filepath.Join(dir, "page.html"), filepath.Join(dir, "page.png")
	var b bytes.Buffer
	require.NoError(t, HTML(&b, recorded()))
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--window-size=1300,2200", "--screenshot="+shot,
		(&url.URL{Scheme: "file", Path: file}).String())
	cmd.Env = append(os.Environ(), "HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	raw, err := os.ReadFile(shot)
	require.NoError(t, err)
	img, err := png.Decode(bytes.NewReader(raw))
	require.NoError(t, err)
	require.Equal(t, 1300, img.Bounds().Dx())
	for _, c := range []color.RGBA{{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}} {
		require.Greater(t, count(img, c), 200, "pixels of %v", c)
	}
}

func count(img image.Image, want color.Color) (n int) {
	r, g, b, _ := want.RGBA()
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			if pr, pg, pb, _ := img.At(x, y).RGBA(); pr == r && pg == g && pb == b {
				n++
			}
		}
	}
	return n
}
