package bothsides

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
)

var soakFor = flag.Duration("soak", 10*time.Second, "how long TestSoak runs")

// TestSoak runs random commands on both tiers, with aborts, timeouts and cut connections, and checks that each has one
// outcome that can be true, and that nothing is left at the end: no process, no descriptor; goroutines are TestMain's.
func TestSoak(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	way := n.proxy(t)
	worker := n.workerProcess(t, way.url)
	p := n.place(t, n.hub.URL())
	fds := func() int {
		d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", worker.Process.Pid))
		require.NoError(t, err)
		return len(d)
	}
	require.NoError(t, p.Command("true").Run(t.Context()))
	before := fds()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	end := time.Now().Add(*soakFor)
	var counts sync.Map
	var wg sync.WaitGroup
	for i := range 8 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				kind := soakOne(t, p, rng)
				c, _ := counts.LoadOrStore(kind, new(atomic.Int64))
				c.(*atomic.Int64).Add(1)
			}
		})
	}
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 99))
		for time.Now().Before(end) {
			time.Sleep(time.Duration(2+rng.IntN(4)) * time.Second) //nolint:forbidigo // the pace of the faults
			way.cut()
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond) //nolint:forbidigo // likewise
			way.mend()
		}
	})
	wg.Wait()
	counts.Range(func(k, v any) bool {
		t.Logf("%s: %d", k, v.(*atomic.Int64).Load())
		return true
	})
	require.Eventually(t, func() bool {
		list, err := p.Execs(t.Context())
		if err != nil {
			return false
		}
		return !slices.ContainsFunc(list, func(e harnesslib.ExecInfo) bool { return e.Running })
	}, 90*time.Second, 100*time.Millisecond, "an exec runs on")
	require.Eventually(t, func() bool { return len(marked(t, "soak-sleeper")) == 0 }, 90*time.Second, 50*time.Millisecond, "processes are left: %v", marked(t, "soak-sleeper"))
	require.Eventually(t, func() bool { return fds() <= before+40 }, 20*time.Second, 50*time.Millisecond, "descriptors: %d, %d before", fds(), before)
}

// errSoak is the cause with which the soak gives a command up.
var errSoak = errors.New("soak")

// marked lists the processes whose command line has a word.
func marked(t *testing.T, word string) (pids []string) {
	t.Helper()
	d, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range d {
		if b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Contains(b, []byte(word)) && e.Name() != fmt.Sprint(os.Getpid()) {
			pids = append(pids, e.Name()+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return pids
}

// soakOne runs one random command and checks its outcome against what it must be.
func soakOne(t *testing.T, p *place, rng *rand.Rand) string {
	size := rng.IntN(300_000)
	code := rng.IntN(200)
	var script, want string
	var kinds []harnesslib.OutcomeKind
	abort := false
	switch rng.IntN(5) {
	case 0:
		script, want, kinds = fmt.Sprintf("echo out; exit %d", code), "out\n", []harnesslib.OutcomeKind{harnesslib.Exited}
	case 1:
		script, want = fmt.Sprintf("head -c %d /dev/zero; exit %d", size, code), strings.Repeat("\x00", size)
		kinds = []harnesslib.OutcomeKind{harnesslib.Exited}
	case 2:
		script, kinds = "sh -c 'exec sleep 300' soak-sleeper & wait; sh -c 'sleep 300; :' soak-sleeper", []harnesslib.OutcomeKind{harnesslib.TimedOut}
	case 3:
		script, kinds, abort = "sh -c 'sleep 300; :' soak-sleeper & sleep 300", []harnesslib.OutcomeKind{harnesslib.Aborted}, true
	case 4:
		script, kinds = "kill -9 $$", []harnesslib.OutcomeKind{harnesslib.Signalled}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stream := rng.IntN(2) == 0
	c := p.ScriptCommand(script)
	if stream {
		c = p.Command("bash", "-c", script)
		c.ID = string(bus.NewOpID())
		c.Grace = 100 * time.Millisecond
	}
	if kinds[0] == harnesslib.TimedOut {
		c.Timeout = time.Duration(50+rng.IntN(200)) * time.Millisecond
	}
	if abort {
		time.AfterFunc(time.Duration(rng.IntN(300))*time.Millisecond, func() { cancel(errSoak) })
	}
	out, err := c.Output(ctx)
	if errors.Is(err, harnesslib.ErrLost) || errors.Is(err, bus.ErrPublish) || (abort && c.Outcome.Kind == "" && errors.Is(err, errSoak)) || errors.Is(err, harnesslib.ErrUnreachable) ||
		errors.Is(err, harnesslib.ErrUnknownSandbox) {
		// A fast exec whose answer fell into a cut, an abort that could not be confirmed in time: nobody can know. Or the
		// worker or we are not connected at the moment, and nothing ran.
		return "unknown"
	}
	if c.Outcome.Kind != kinds[0] {
		t.Errorf("%q (stream %v): %v, want %v; error %v", script, stream, c.Outcome, kinds[0], err)
	}
	if kinds[0] == harnesslib.Exited && (c.Outcome.Code != code && script[:4] != "echo" || string(out) != want) {
		t.Errorf("%q (stream %v): %v, %d bytes of %d", script, stream, c.Outcome, len(out), len(want))
	}
	return string(c.Outcome.Kind)
}
