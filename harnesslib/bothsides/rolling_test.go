package bothsides

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
)

// rolled starts a worker process for the sandbox that takes the place of another one. said is what it logs.
func (n *network) rolled(t *testing.T) (cmd *exec.Cmd, said *lockedBuffer) {
	t.Helper()
	cmd, said = exec.Command(os.Args[0]), &lockedBuffer{}
	cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+n.hub.URL(), "SANDBUS_TOKEN="+n.token(t, bus.RoleSandbox, "box"),
		"SANDBUS_DIR="+n.dir, "SANDBUS_STATE_DIR="+t.TempDir(), "SANDBUS_TAKE_OVER=5m", "SANDBUS_STOP_GRACE=2m")
	cmd.Stderr = said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = cmd.Wait()                          // its status does not matter
		}
		if t.Failed() {
			t.Logf("worker %d:\n%s", cmd.Process.Pid, said)
		}
	})
	return cmd, said
}

// successor is rolled, and returns when the worker stands by.
func (n *network) successor(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd, said := n.rolled(t)
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "worker stands by") }, 60*time.Second, 5*time.Millisecond)
	return cmd
}

// TestRollingUpdate replaces the worker of a sandbox three times under load: a successor stands by, the worker is told to
// end, and no request of harnesses that go on calling fails meanwhile. The command that ran when its worker was told so
// ends as it should.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	worker, _ := n.rolled(t)
	p := n.place(t, n.hub.URL())
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "f"), []byte("content"), 0o600))
	stop := make(chan struct{})
	var calls sync.WaitGroup
	failed := make(chan error, 3)
	var served [3]int
	for i, call := range []func(*harnesslib.Sandbox) error{
		func(sb *harnesslib.Sandbox) error { return second(sb.ReadFile(t.Context(), "f")) },
		func(sb *harnesslib.Sandbox) error { return second(sb.ScriptCommand(":").Output(t.Context())) },
		func(sb *harnesslib.Sandbox) error { return sb.Command("true").Run(t.Context()) },
	} {
		calls.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := call(p.Sandbox); err != nil {
					failed <- err
					return
				}
				served[i]++
			}
		})
	}
	for range 3 {
		before, err := p.Info(t.Context())
		require.NoError(t, err)
		long := p.Command("sh", "-c", "echo $$ >long; while [ ! -e go ]; do sleep 0.05; done; exit 7")
		require.NoError(t, long.Start(t.Context()))
		appears(t, p, "long")
		next := n.successor(t)
		require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
		var now harnesslib.SandboxInfo
		require.Eventually(t, func() bool {
			now, err = p.Info(t.Context())
			return err == nil && now.Instance != before.Instance
		}, 60*time.Second, 5*time.Millisecond, "the successor has the place while the predecessor still works")
		require.NoError(t, os.WriteFile(filepath.Join(n.dir, "go"), nil, 0o600))
		require.Equal(t, 7, exitCode(t, long.Wait()))
		require.NoError(t, worker.Wait())
		require.NoError(t, os.Remove(filepath.Join(n.dir, "go")))
		require.NoError(t, os.Remove(filepath.Join(n.dir, "long")))
		worker = next
	}
	close(stop)
	calls.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	for i, k := range served {
		require.Greater(t, k, 3, i)
	}
}

// TestStandbyTakesTheFreedPlace has an idle worker leave at once: its place is never seen empty.
func TestStandbyTakesTheFreedPlace(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	worker, _ := n.rolled(t)
	p := n.place(t, n.hub.URL())
	n.successor(t)
	before, err := p.Info(t.Context())
	require.NoError(t, err)
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	require.NoError(t, worker.Wait())
	for {
		now, err := p.Info(t.Context())
		require.False(t, errors.Is(err, harnesslib.ErrUnknownSandbox), "the place is empty")
		require.NoError(t, err)
		if now.Instance != before.Instance {
			break
		}
	}
	require.NoError(t, p.Command("true").Run(t.Context()))
}
