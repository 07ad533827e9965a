package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/bus/hub/hubtest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// This binary is all processes: the environment says which.
const (
	roleVar = "BENCH_ROLE"
	urlVar  = "BENCH_URL"
	credVar = "BENCH_TOKEN"
	dirVar  = "BENCH_DIR"
	sandbox = "box"
	// profileVar names a directory in which hub and worker leave CPU profiles; go test's own -cpuprofile is the harness's.
	profileVar = "BENCH_PROFILE"
)

func TestMain(m *testing.M) {
	if status, ok := hubtest.Main(); ok {
		os.Exit(status) //nolint:forbidigo // a server that a benchmark has started
	}
	run := m.Run
	switch os.Getenv(roleVar) {
	case "hub":
		run = func() int { return role(hubProcess) }
	case "worker":
		run = func() int { return role(workerProcess) }
	case "gateway":
		run = func() int { return role(gatewayProcess) }
	case "plain relay":
		run = func() int { return role(plainRelayProcess) }
	case "plain worker":
		run = func() int { return role(plainWorkerProcess) }
	}
	os.Exit(run()) //nolint:forbidigo // a test's main
}

// role runs a process until its standard input is closed: then the harness is gone.
func role(run func(context.Context) error) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		cancel(errors.New("the harness has ended"))
	}()
	if dir := os.Getenv(profileVar); dir != "" {
		f, err := os.Create(filepath.Join(dir, os.Getenv(roleVar)+".prof"))
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer pprof.StopCPUProfile()
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(roleVar), err)
		return 1
	}
	return 0
}

func hubProcess(ctx context.Context) error {
	h, err := hub.Start(ctx, hub.Config{})
	if err != nil {
		return err
	}
	defer h.Stop()
	for _, id := range []bus.Identity{
		{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: sandbox},
		{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "bench"},
	} {
		c, err := h.Credential(id)
		if err != nil {
			return err
		}
		fmt.Println(c.Token())
	}
	fmt.Println(h.URL())
	<-ctx.Done()
	return nil
}

func workerProcess(ctx context.Context) error {
	cred, err := bus.ParseCredential(os.Getenv(credVar))
	if err != nil {
		return err
	}
	url := os.Getenv(urlVar)
	reply := make([]byte, 1<<20)
	stopEcho, err := bustest.ServeBare(url, cred, "echo", func(size []byte) []byte {
		n := 0
		_, _ = fmt.Sscan(string(size), &n)
		return reply[:n]
	})
	if err != nil {
		return err
	}
	defer stopEcho()
	stopFresh, err := bustest.ServeBare(url, cred, "fresh", func(script []byte) []byte {
		out, _ := exec.CommandContext(ctx, "bash", "-c", string(script)).Output() // its output is what counts here
		return out
	})
	if err != nil {
		return err
	}
	defer stopFresh()
	stopFlood, err := bustest.ServeFlood(url, cred)
	if err != nil {
		return err
	}
	defer stopFlood()
	debug.SetGCPercent(400) // as workerd does
	w, err := workerd.New(workerd.Config{
		URL: url, Credential: cred, Dir: os.Getenv(dirVar),
		OnReady: func() { fmt.Println("ready") },
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// rig is the three processes, seen from the harness.
type rig struct {
	url    string
	cred   bus.Credential // the harness's
	hub    *harnesslib.Hub
	sb     *harnesslib.Sandbox
	dir    string // the sandbox's directory
	worker *os.Process
	server *os.Process
}

func startRig(b *testing.B) *rig {
	b.Helper()
	r := &rig{dir: b.TempDir()}
	lines, hubProc := spawn(b, "hub")
	workerToken, harnessToken := line(b, lines), line(b, lines)
	r.url = line(b, lines)
	r.server = hubProc
	ready, workerProc := spawn(b, "worker", urlVar+"="+r.url, credVar+"="+workerToken, dirVar+"="+r.dir)
	require.Equal(b, "ready", line(b, ready))
	r.worker = workerProc
	var err error
	r.cred, err = bus.ParseCredential(harnessToken)
	require.NoError(b, err)
	r.hub, err = harnesslib.Connect(b.Context(), harnesslib.Config{URL: r.url, Token: harnessToken})
	require.NoError(b, err)
	b.Cleanup(r.hub.Close)
	r.sb, err = r.hub.Sandbox(sandbox)
	require.NoError(b, err)
	return r
}

func spawn(b *testing.B, role string, env ...string) (*bufio.Scanner, *os.Process) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), roleVar+"="+role), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = stdin.Close() // asks it to end
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", role, err)
		}
	})
	return bufio.NewScanner(stdout), cmd.Process
}

func line(b *testing.B, s *bufio.Scanner) string {
	b.Helper()
	require.True(b, s.Scan(), "the process says nothing: %v", s.Err())
	return s.Text()
}

func (r *rig) bare(b *testing.B, name string) *bustest.Bare {
	b.Helper()
	c, err := bustest.DialBare(r.url, r.cred, sandbox, name)
	require.NoError(b, err)
	b.Cleanup(c.Close)
	return c
}

func (r *rig) file(b *testing.B, name string, size int) string {
	b.Helper()
	path := filepath.Join(r.dir, name)
	require.NoError(b, os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600))
	return path
}

// arm is one way to do a thing.
type arm struct {
	name string
	op   func(context.Context) error
}

// latencies runs the arms in turn, one operation in flight, and returns the median of each.
func latencies(b *testing.B, rounds, each int, arms ...arm) []time.Duration {
	b.Helper()
	all := make([][]time.Duration, len(arms))
	for round := range rounds + 1 {
		for i, a := range arms {
			for range each {
				begin := time.Now()
				require.NoError(b, a.op(b.Context()), a.name)
				if round > 0 { // the first warms up
					all[i] = append(all[i], time.Since(begin))
				}
			}
		}
	}
	medians := make([]time.Duration, len(arms))
	for i := range all {
		slices.Sort(all[i])
		medians[i] = all[i][len(all[i])/2]
	}
	return medians
}

// throughputs runs the arms in turn with several operations in flight and returns operations per second.
func throughputs(b *testing.B, rounds int, each time.Duration, inFlight int, arms ...arm) []float64 {
	b.Helper()
	rates := make([][]float64, len(arms))
	for round := range rounds + 1 {
		for i, a := range arms {
			rate := throughput(b, each, inFlight, a)
			if round > 0 {
				rates[i] = append(rates[i], rate)
			}
		}
	}
	medians := make([]float64, len(arms))
	for i := range rates {
		slices.Sort(rates[i])
		medians[i] = rates[i][len(rates[i])/2]
	}
	return medians
}

func throughput(b *testing.B, each time.Duration, inFlight int, a arm) float64 {
	b.Helper()
	counts := make([]int, inFlight)
	errs := make([]error, inFlight)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range inFlight {
		wg.Go(func() {
			for time.Since(begin) < each && errs[i] == nil {
				if errs[i] = a.op(b.Context()); errs[i] == nil {
					counts[i]++
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	require.NoError(b, errors.Join(errs...), a.name)
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / took.Seconds()
}

// report prints a ratio beside its target and hands it to the benchmark's own output.
func report(b *testing.B, name string, ratio float64, atMost bool, target float64, detail string) {
	b.Helper()
	sign, met := ">=", ratio >= target
	if atMost {
		sign, met = "<=", ratio <= target
	}
	verdict := "met"
	if !met {
		verdict = "MISSED"
	}
	fmt.Printf("%-44s %6.2f  (want %s %.2f: %s)  %s\n", name, ratio, sign, target, verdict, detail)
	b.ReportMetric(ratio, strings.ReplaceAll(name, " ", "_"))
}

// cpu is the processor time that a process has used, to the nanosecond: clock ticks are too coarse for one that idles.
func cpu(b *testing.B, p *os.Process) (used time.Duration) {
	b.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Pid))
	require.NoError(b, err)
	for _, task := range tasks {
		raw, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that has ended
		}
		var ran int64
		_, err = fmt.Sscan(string(raw), &ran)
		require.NoError(b, err)
		used += time.Duration(ran)
	}
	return used
}

// rss is the resident memory of a process, in bytes.
func rss(b *testing.B, pid int) int64 {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(b, err)
	var size, resident int64
	_, err = fmt.Sscan(string(raw), &size, &resident)
	require.NoError(b, err)
	return resident * int64(syscall.Getpagesize())
}
