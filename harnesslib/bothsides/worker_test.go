package bothsides

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
)

// TestWorkerReapsOrphans leaves processes behind whose parents have ended: the worker is their parent then, as a PID 1
// is, and waits for them when they end.
func TestWorkerReapsOrphans(t *testing.T) {
	n := newNetwork(t)
	w := n.workerProcess(t, n.hub.URL())
	p := n.place(t, n.hub.URL())
	for range 30 {
		require.NoError(t, p.Command("sh", "-c", "(setsid sleep 0.05 >/dev/null 2>&1 &) ; exit 0").Run(t.Context()))
	}
	out, err := p.Command("sh", "-c", "(sh -c 'sleep 0.2; cat /proc/self/stat >parent' >/dev/null 2>&1 &) ; exit 0").Output(t.Context())
	require.NoError(t, err)
	require.Empty(t, out)
	appears(t, p, "parent")
	require.Eventually(t, func() bool {
		zombies := 0
		d, err := os.ReadDir("/proc")
		require.NoError(t, err)
		for _, e := range d {
			b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err != nil {
				continue
			}
			f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
			if f[1] == strconv.Itoa(w.Process.Pid) && f[0] == "Z" {
				zombies++
			}
		}
		return zombies == 0
	}, 10*time.Second, 10*time.Millisecond)
	for range 20 { // and takes no status that somebody waits for
		require.Equal(t, 7, exitCode(t, p.Command("sh", "-c", "exit 7").Run(t.Context())))
	}
}

// TestWorkerDrains asks a worker to end while a command runs: the command gets its time, its end arrives, nothing new is
// taken, and presence knows.
func TestWorkerDrains(t *testing.T) {
	n := newNetwork(t)
	w, _ := n.rolled(t)
	p := n.place(t, n.hub.URL())
	c := p.Command("sh", "-c", "echo $$ >a; while [ ! -e go ]; do sleep 0.05; done; echo done")
	var out lockedBuffer
	c.Stdout = &out
	require.NoError(t, c.Start(t.Context()))
	appears(t, p, "a")
	require.NoError(t, w.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool {
		err := p.Command("true").Run(t.Context())
		return errors.Is(err, harnesslib.ErrBusy) && strings.Contains(fmt.Sprint(err), "stopping")
	}, 60*time.Second, 5*time.Millisecond, "it accepts nothing new")
	require.Eventually(t, func() bool {
		info, err := p.Info(t.Context())
		return err == nil && info.Draining
	}, 60*time.Second, 5*time.Millisecond, "and says so")
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "go"), nil, 0o600))
	require.NoError(t, c.Wait())
	require.Equal(t, "done\n", out.String())
	require.NoError(t, w.Wait())
	require.Eventually(t, func() bool {
		return errors.Is(p.Command("true").Run(t.Context()), harnesslib.ErrUnknownSandbox)
	}, 60*time.Second, 10*time.Millisecond, "it said goodbye")
}
