package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/loadtest/record"
)

// limit is for what must end; nothing here measures by it.
const limit = 2 * time.Minute

// loadtest runs the command in this process; its own processes are real ones.
func loadtest(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	status = execute(ctx, args, &out, &errs)
	require.NoError(t, ctx.Err(), errs.String())
	return out.String(), errs.String(), status
}

// quick are the flags of a run that is as small as can be.
func quick(more ...string) []string {
	return append([]string{"run", "--samples", "1", "--duration", "60ms", "--sandboxes", "1", "--workers", "2"}, more...)
}

func records(t *testing.T, stdout string) *record.File {
	t.Helper()
	f, err := record.Read(strings.NewReader(stdout))
	require.NoError(t, err, stdout)
	return f
}

func find(t *testing.T, f *record.File, arm string, c int) *record.Rung {
	t.Helper()
	for _, r := range f.Rungs {
		if r.Arm == arm && r.Concurrency == c {
			return r
		}
	}
	require.Failf(t, "no such rung", "%s at %d", arm, c)
	return nil
}

// TestRun goes the whole way: real hub, worker and harness processes, records, page.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	page, lines, profiles := filepath.Join(dir, "page.html"), filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "profiles")
	stdout, stderr, status := loadtest(t, quick("--arms", "echo,bus-native", "--rungs", "1,4", "--sandboxes", "2", "--samples", "2",
		"--json", "--html", page, "--out", lines, "--cpuprofile", profiles, "--trace", profiles, "--seed", "42")...)
	f := records(t, stdout)
	require.Contains(t, []int{0, exitMarked}, status, stderr) // a busy machine may bound the generator
	require.Len(t, f.Runs, 1)
	require.Len(t, f.Knees, 2)
	require.Empty(t, f.Missing)
	for _, c := range []int{1, 4} {
		for _, arm := range []string{"echo", "bus-native"} {
			r := find(t, f, arm, c)
			require.Equal(t, "fileops", r.Workload)
			require.Equal(t, 2, r.Samples)
			require.Equal(t, c, r.Workers*r.Sessions)
			require.Equal(t, 2, r.Sandboxes)
			require.EqualValues(t, 42, r.Seed)
			require.Positive(t, r.OK)
			require.InDelta(t, 1, *r.SuccessRate, 1e-9, "%v", r.Notes)
			require.Positive(t, *r.All.P50)
			require.LessOrEqual(t, *r.All.P50, *r.All.Max)
			require.Positive(t, *r.Ceiling)
			require.Positive(t, *r.Duty)
			require.LessOrEqual(t, *r.Duty, 1.0)
			require.Positive(t, *r.HarnessRSS)
			require.NotNil(t, r.SandboxCPUShare)
			require.NotNil(t, r.SchedP99)
			require.Positive(t, *r.Hub.MsgsPerS)
			require.Len(t, r.Harnesses, r.Workers)
			require.Len(t, r.SandboxesUsed, 2)
			require.NotEmpty(t, r.Bound)
			require.Contains(t, stderr, strings.SplitN(r.Line(), "  ", 2)[0], "a line of progress for each rung")
		}
	}
	written, err := os.ReadFile(lines)
	require.NoError(t, err)
	require.Equal(t, stdout, string(written))
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "bus-native")
	for _, name := range []string{"hub", "box0", "box1", "harness0", "harness1"} {
		for _, suffix := range []string{".cpu.pprof", ".trace"} {
			info, err := os.Stat(filepath.Join(profiles, name+suffix))
			require.NoError(t, err)
			require.Positive(t, info.Size(), name+suffix)
		}
	}

	// What was written can be shown and compared.
	table, _, status := loadtest(t, "show", lines)
	require.Zero(t, status)
	for _, want := range []string{"bus-native", "p99.9", "sandbox CPU", "hub msgs/s", "ceiling", "bound", "knee echo"} {
		require.Contains(t, table, want)
	}
	_, _, status = loadtest(t, "compare", lines, lines)
	require.Zero(t, status)
	ratios, _, status := loadtest(t, "compare", "--arms", "echo,bus-native", "--limit", "1e9", lines, lines)
	require.Zero(t, status)
	require.Contains(t, ratios, "bus-native/echo")
}

// everyOperation does a small mix by arms, and returns its records.
func everyOperation(t *testing.T, arms ...string) *record.File {
	t.Helper()
	stdout, stderr, status := loadtest(t, quick("--arms", strings.Join(arms, ","), "--rungs", "1", "--json")...)
	f := records(t, stdout)
	require.Contains(t, []int{0, exitMarked}, status, stderr)
	require.Empty(t, f.Missing)
	for _, arm := range arms {
		r := find(t, f, arm, 1)
		require.Positive(t, r.OK)
		require.InDelta(t, 1, *r.SuccessRate, 1e-9, "%s %v", arm, r.Notes)
		require.Len(t, r.SandboxesUsed, 1)
		require.NotNil(t, r.SandboxCPUShare)
	}
	return f
}

func TestArms(t *testing.T) {
	t.Run("bus", func(t *testing.T) {
		f := everyOperation(t, "bus-shell", "bus-exec", "bus-embedded", "local-exec")
		require.Nil(t, find(t, f, "bus-embedded", 1).Hub, "the hub is in the harness")
		require.Nil(t, find(t, f, "local-exec", 1).Hub)
		require.NotNil(t, find(t, f, "bus-exec", 1).Hub)
	})
	t.Run("seam", func(t *testing.T) { everyOperation(t, "local", "command", "command-percall") })
	t.Run("relay", func(t *testing.T) {
		f := everyOperation(t, "relay", "relay+fast", "relay-echo")
		for _, arm := range []string{"relay", "relay+fast", "relay-echo"} {
			require.Len(t, find(t, f, arm, 1).Relays, 1)
			require.NotNil(t, find(t, f, arm, 1).RelayCPUShare)
		}
		require.Nil(t, find(t, f, "relay", 1).Hub)
		require.NotNil(t, find(t, f, "relay+fast", 1).Hub)
	})
	t.Run("docker", func(t *testing.T) {
		testenv.Tool(t, "docker")
		testenv.Need(t, "docker", exec.CommandContext(t.Context(), "docker", "image", "inspect", "debian:bookworm-slim").Run() == nil)
		everyOperation(t, "docker", "docker-percall")
	})
	t.Run("ssh", func(t *testing.T) {
		testenv.Tool(t, "ssh-keygen")
		_, err := exec.LookPath("/usr/sbin/sshd")
		testenv.Need(t, "sshd", err == nil)
		everyOperation(t, "ssh")
	})
}

// TestLeases has four sessions share one slot, and give it back all the time.
func TestLeases(t *testing.T) {
	stdout, stderr, status := loadtest(t, quick("--arms", "bus-native", "--rungs", "1,4", "--slots", "1", "--lease-ops", "2", "--json")...)
	require.Contains(t, []int{0, exitMarked}, status, stderr)
	f := records(t, stdout)
	require.Zero(t, *find(t, f, "bus-native", 1).LeaseWaitShare, "alone there is nobody to wait for")
	r := find(t, f, "bus-native", 4)
	require.Greater(t, *r.LeaseWaitShare, 0.05)
	require.Positive(t, *r.LeaseWaitP95)
	require.Contains(t, []string{record.BoundLeases, record.BoundGenerator}, r.Bound)
	require.InDelta(t, 1, *r.SuccessRate, 1e-9, "%v", r.Notes)
	_, stderr, status = loadtest(t, quick("--arms", "bus-native", "--rungs", "1,4", "--slots", "1")...)
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "slots 1: 1 sandboxes have too few for rung 4")
}

func TestOpenLoopAndBursts(t *testing.T) {
	stdout, stderr, status := loadtest(t, quick("--arms", "echo", "--rungs", "1,2", "--rate", "200", "--json")...)
	require.Contains(t, []int{0, exitMarked}, status, stderr)
	for _, r := range records(t, stdout).Rungs {
		require.Equal(t, "open", r.Loop)
		require.InDelta(t, 200, r.RateOps, 1e-9)
		require.Positive(t, r.OK)
	}
	stdout, stderr, status = loadtest(t, quick("--arms", "echo", "--rungs", "1,2", "--workload", "burst", "--json")...)
	require.Contains(t, []int{0, exitMarked}, status, stderr)
	for _, r := range records(t, stdout).Rungs {
		require.Equal(t, "burst", r.Loop)
		require.EqualValues(t, r.Concurrency, r.Attempts, "60 ms hold one burst")
	}
}

func TestMarks(t *testing.T) {
	failing := filepath.Join(t.TempDir(), "failing.json")
	require.NoError(t, os.WriteFile(failing, []byte(`{"name":"failing","ops":[{"kind":"exec","weight":1,"argv":["false"]}]}`), 0o600))
	t.Run("below the success floor", func(t *testing.T) {
		stdout, _, status := loadtest(t, quick("--arms", "bus-native", "--rungs", "1", "--workload", failing, "--json")...)
		require.Equal(t, exitMarked, status)
		r := find(t, records(t, stdout), "bus-native", 1)
		require.True(t, r.Marked(record.MarkSuccess))
		require.Equal(t, r.Attempts, r.Errors["exit"])
		require.Nil(t, r.All.P50, "failures have no latency")
		require.Contains(t, strings.Join(r.Notes, " "), "code 1")
	})
	t.Run("missing baseline", func(t *testing.T) {
		stdout, _, status := loadtest(t, quick("--arms", "echo", "--rungs", "2", "--json")...)
		require.Equal(t, exitMarked, status)
		require.Equal(t, record.MarkBaseline, records(t, stdout).Knees[0].Mark)
	})
	t.Run("an arm that is not to be had", func(t *testing.T) {
		stdout, stderr, status := loadtest(t, quick("--arms", "bus-shell,bus-native", "--rungs", "1", "--workload", "stream", "--json")...)
		require.Equal(t, exitMarked, status)
		f := records(t, stdout)
		require.Equal(t, "bus-shell", f.Missing[0].Arm)
		require.Contains(t, f.Missing[0].Why, "bus-shell does no stream")
		require.Contains(t, stderr, "bus-shell")
		require.Positive(t, find(t, f, "bus-native", 1).OK, "the others run")
	})
	t.Run("generator bound", func(t *testing.T) {
		stdout, _, status := loadtest(t, quick("--arms", "null", "--rungs", "1,2,4,8", "--json")...)
		require.Equal(t, exitMarked, status)
		marked := 0
		for _, r := range records(t, stdout).Rungs {
			if r.Marked(record.MarkGenerator) {
				marked++
				require.Equal(t, record.BoundGenerator, r.Bound)
				require.Equal(t, "throughput_ops/ceiling_ops", r.BoundColumn)
			}
		}
		require.Positive(t, marked, "the null responder is its own ceiling")
	})
}

func TestUsage(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "gone", "x")
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	require.NoError(t, os.WriteFile(bad, []byte("{\n"), 0o600))
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--arms", "pigeon"}, `arm "pigeon": want some of echo,`},
		{[]string{"run", "--arms", "echo,echo"}, "named twice"},
		{[]string{"run", "--workload", "nothing"}, `workload "nothing"`},
		{[]string{"run", "--rungs", "0"}, "rung 0"},
		{[]string{"run", "--rungs", "2,2"}, "named twice"},
		{[]string{"run", "--rungs", "7", "--workers", "2"}, "rung 7"},
		{[]string{"run", "--rungs", "x"}, "rungs"},
		{[]string{"run", "--workers", "-1"}, "workers -1"},
		{[]string{"run", "--sandboxes", "1000"}, "sandboxes 1000"},
		{[]string{"run", "--samples", "-1"}, "samples -1"},
		{[]string{"run", "--duration", "1ns"}, "duration 1ns"},
		{[]string{"run", "--rate", "-5"}, "rate -5"},
		{[]string{"run", "--rate", "5", "--workload", "burst"}, "rate 5"},
		{[]string{"run", "--slots", "-1"}, "slots -1"},
		{[]string{"run", "--success", "2"}, "success rate 2"},
		{[]string{"run", "--degrade", "0.1"}, "degrade 0.1"},
		{[]string{"run", "--out", missing}, "no such file"},
		{[]string{"run", "--html", missing}, "no such file"},
		{[]string{"compare", bad}, "want two files"},
		{[]string{"compare", bad, bad}, "line 1"},
		{[]string{"compare", empty, empty}, "no rung"},
		{[]string{"compare", missing, missing}, "no such file"},
		{[]string{"compare", "--limit", "0.5", empty, empty}, "limit 0.5"},
		{[]string{"compare", "--arms", "echo", empty, empty}, "want two"},
		{[]string{"addressable", "--sandboxes", "5", "--against", "10"}, "sandboxes 5"},
		{[]string{"addressable", "--requests", "-1"}, "requests -1"},
	} {
		_, stderr, status := loadtest(t, c.args...)
		require.Equal(t, exitUsage, status, "%v: %s", c.args, stderr)
		require.Contains(t, stderr, c.want, c.args)
	}
}

func TestComparePastTheLimit(t *testing.T) {
	dir := t.TempDir()
	write := func(name, p50 string) string {
		path := filepath.Join(dir, name)
		text := `{"record":"rung","arm":"echo","workload":"w","concurrency":1,"throughput_ops":10,"ops":{},"all":{"n":1,"ok":1,"p50_us":` + p50 + `}}`
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		return path
	}
	a, b := write("a", "100"), write("b", "200")
	_, _, status := loadtest(t, "compare", a, b)
	require.Equal(t, exitPastLimit, status)
	out, _, status := loadtest(t, "compare", "--limit", "2", a, b)
	require.Zero(t, status)
	require.Contains(t, out, "2.00 (2.00 to 2.00)")
}

// TestInterrupt sends the signal of Ctrl-C to a run that would take an hour: what was measured before is written, and
// nothing is left.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	page := filepath.Join(t.TempDir(), "page.html")
	cmd := exec.CommandContext(ctx, os.Args[0], "run", "--samples", "1", "--duration", "50ms", "--sandboxes", "1",
		"--arms", "echo,bus-native", "--rungs", strings.Join(many(2000), ","), "--workers", "1", "--json", "--html", page)
	cmd.Env = append(os.Environ(), mainVar+"=1")
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	s := bufio.NewScanner(stderr)
	for s.Scan() {
		if strings.HasPrefix(s.Text(), "c=2 ") && strings.Contains(s.Text(), "bus-native") {
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
			break
		}
	}
	var said []string
	for s.Scan() {
		said = append(said, s.Text())
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%v %v", err, said)
	require.Equal(t, exitInterrupted, exit.ExitCode(), said)
	f := records(t, out.String())
	for _, arm := range []string{"echo", "bus-native"} {
		require.Positive(t, find(t, f, arm, 1).OK)
		require.Positive(t, find(t, f, arm, 2).OK)
	}
	require.Len(t, f.Knees, 2, "and the knees of what there is")
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "</html>")
}

func many(n int) (rungs []string) {
	for i := range n {
		rungs = append(rungs, strconv.Itoa(i+1))
	}
	return rungs
}

func TestAddressable(t *testing.T) {
	stdout, stderr, status := loadtest(t, "addressable", "--sandboxes", "40", "--against", "4", "--requests", "50", "--idle", "10ms", "--json")
	require.Zero(t, status, stderr)
	a := records(t, stdout).Addressable[0]
	require.Equal(t, 40, a.Sandboxes)
	require.Equal(t, 4, a.Against)
	for _, o := range []*record.Ops{a.Requests, a.FirstRequests, a.AgainstOps} {
		require.EqualValues(t, 50, o.OK)
		require.Positive(t, *o.P50)
	}
	require.Positive(t, *a.P50Ratio)
	require.NotNil(t, a.HubBytes)
	require.NotNil(t, a.WorkerBytes)
	table, _, _ := loadtest(t, "addressable", "--sandboxes", "3", "--against", "1", "--requests", "5", "--idle", "10ms")
	require.Contains(t, table, "hub KiB each")
}
