package bothsides

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub/hubtest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// TestC52NetworkIsCut cuts a sandbox off for good, so that the hub sees its connection end, and so that nothing comes
// any more on connections that stay open.
func TestC52NetworkIsCut(t *testing.T) {
	for name, cut := range map[string]func(*hubtest.Proxy){"closed": (*hubtest.Proxy).Cut, "silent": (*hubtest.Proxy).Lose} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			way := hubtest.NewProxy(t, n.hub.URL())
			n.workerProcess(t, way.URL())
			p := n.place(t, n.hub.URL())
			var wg sync.WaitGroup
			var ended [2]error
			wg.Go(func() {
				ended[0] = p.Command("sh", "-c", "echo $$ >a; while [ ! -e stop ]; do sleep 0.1; done").Run(t.Context())
			})
			wg.Go(func() {
				_, ended[1] = p.ScriptCommand("echo $$ >b; while [ ! -e stop ]; do sleep 0.1; done").Output(t.Context())
			})
			for _, f := range []string{"a", "b"} {
				require.Eventually(t, func() bool {
					b, err := os.ReadFile(filepath.Join(n.dir, f))
					return err == nil && len(b) > 0
				}, 60*time.Second, 5*time.Millisecond)
			}
			cut(way)
			if name == "closed" { // while the two still wait for a word
				require.Eventually(t, func() bool {
					_, err := p.Info(t.Context())
					return errors.Is(err, harnesslib.ErrUnknownSandbox)
				}, 15*time.Second, 5*time.Millisecond, "noticed before presence would expire")
				_, err := p.ReadFile(t.Context(), "a")
				require.ErrorIs(t, err, harnesslib.ErrUnknownSandbox)
			}
			wg.Wait() // never a hang
			for i, err := range ended {
				require.ErrorIs(t, err, harnesslib.ErrLost, i)
			}
			require.Eventually(t, func() bool {
				_, err := p.Info(t.Context())
				return errors.Is(err, harnesslib.ErrUnknownSandbox)
			}, 60*time.Second, 10*time.Millisecond)
			way.Mend("")
			require.NoError(t, os.WriteFile(filepath.Join(n.dir, "stop"), nil, 0o600)) // the worker ends sooner
		})
	}
}

// clustered is a sandbox at a hub of three servers: the worker is at the first, the harness at the second, and the
// registrar at the third.
func clustered(t *testing.T) (*hubtest.Cluster, *place) {
	t.Helper()
	c := hubtest.Start(t, 3)
	c.Registrar(t, 2, "r", bus.RegistrarConfig{Replicas: 3, System: c.System(t, 2)})
	dir := t.TempDir()
	ready := make(chan struct{})
	w, err := workerd.New(workerd.Config{
		URL: c.URL(0), Credential: c.Credential(t, bus.RoleSandbox, "box"), Dir: dir, StopGrace: 100 * time.Millisecond,
		Logger: bustest.Logger(t), OnReady: func() { close(ready) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		require.NoError(t, <-ended)
	})
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err, "worker")
	}
	h, err := harnesslib.Connect(t.Context(), harnesslib.Config{
		URL: c.URL(1), Token: c.Credential(t, bus.RoleHarness, "test").Token(), Logger: bustest.Logger(t),
	})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	sb, err := h.Sandbox("box")
	require.NoError(t, err)
	return c, &place{Sandbox: sb, hub: h, dir: dir}
}

// TestC53AHubServerIsKilled kills one of three servers, that of the worker and that of the harness: what runs goes on, and
// so do new requests.
func TestC53AHubServerIsKilled(t *testing.T) {
	for i, of := range []string{"the worker's", "the harness's"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			c, p := clustered(t)
			require.NoError(t, p.WriteFile(t.Context(), "f", []byte("content"), 0o600))
			cmd := p.Command("sh", "-c", "for i in $(seq 1 100); do echo $i; sleep 0.03; done; while [ ! -e stop ]; do sleep 0.05; done; echo end")
			var out lockedBuffer
			cmd.Stdout = &out
			require.NoError(t, cmd.Start(t.Context()))
			require.Eventually(t, func() bool { return strings.Contains(out.String(), "10\n") }, 60*time.Second, time.Millisecond)
			c.Kill(t, i)
			// One request may have been on its way through the server that died; those that follow it arrive.
			require.Eventually(t, func() bool {
				_, err := p.ReadFile(t.Context(), "f")
				return err == nil
			}, 60*time.Second, 10*time.Millisecond)
			for range 20 {
				b, err := p.ReadFile(t.Context(), "f")
				require.NoError(t, err)
				require.Equal(t, "content", string(b))
				fresh, err := p.hub.Sandbox("box") // looked up anew
				require.NoError(t, err)
				require.NoError(t, fresh.Command("true").Run(t.Context()))
			}
			require.NoError(t, p.WriteFile(t.Context(), "stop", nil, 0o600))
			require.NoError(t, cmd.Wait())
			var want strings.Builder
			for i := 1; i <= 100; i++ {
				fmt.Fprintln(&want, i)
			}
			require.Equal(t, want.String()+"end\n", out.String(), "all lines, once")
			require.Eventually(t, func() bool { // presence goes on, too: a beat is written by the servers that are left
				before, err := p.Info(t.Context())
				if err != nil {
					return false
				}
				return !before.Suspect
			}, 60*time.Second, 50*time.Millisecond)
		})
	}
}

// duplicate starts a second worker process for the sandbox and returns what it says when it ends.
func (n *network) duplicate(t *testing.T) (said string, status int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+n.hub.URL(), "SANDBUS_TOKEN="+n.token(t, bus.RoleSandbox, "box"),
		"SANDBUS_DIR="+n.dir, "SANDBUS_STATE_DIR="+t.TempDir(), "SANDBUS_LOG_LEVEL=error")
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	require.ErrorAs(t, err, &ee)
	return string(out), ee.ExitCode()
}

// TestC54TwoWorkersOfOneID has a second worker that is refused, one that takes over when the first has died, and one that
// was cut off, whose place was taken, and that comes back.
func TestC54TwoWorkersOfOneID(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	first := n.workerProcess(t, n.hub.URL())
	p := n.place(t, n.hub.URL())
	holder, err := p.Info(t.Context())
	require.NoError(t, err)
	said, status := n.duplicate(t)
	require.Equal(t, 1, status)
	require.Contains(t, said, "another live worker has this sandbox id")
	require.Contains(t, said, string(holder.Instance), "it says who")
	require.NoError(t, p.Command("true").Run(t.Context()), "the first one goes on")

	require.NoError(t, first.Process.Signal(syscall.SIGKILL))
	_ = first.Wait() // killed
	way := hubtest.NewProxy(t, n.hub.URL())
	second := n.workerProcess(t, way.URL()) // takes over
	live := func(not bus.InstanceID) bus.InstanceID {
		var now harnesslib.SandboxInfo
		require.Eventually(t, func() bool {
			now, err = p.Info(t.Context())
			return err == nil && now.Instance != not
		}, 60*time.Second, 10*time.Millisecond)
		return now.Instance
	}
	secondID := live(holder.Instance)
	require.NoError(t, p.Command("true").Run(t.Context()))

	way.Cut()
	n.workerProcess(t, n.hub.URL())
	thirdID := live(secondID)
	way.Mend("")
	err = second.Wait() // it is told, and ends
	var ee *exec.ExitError
	require.ErrorAs(t, err, &ee)
	require.Equal(t, 1, ee.ExitCode())
	now, err := p.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, thirdID, now.Instance, "what the stale one says does not count")
	require.NoError(t, p.Command("true").Run(t.Context()))
}

// TestSandboxesWatch watches with a selector.
func TestSandboxesWatch(t *testing.T) {
	b := bustest.Start(t)
	h := connect(t, b)
	label := func(team string) func(*workerd.Config) {
		return func(c *workerd.Config) {
			c.Dir = t.TempDir()
			c.Labels = map[string]string{"team": team}
		}
	}
	startWorker(t, b, "old", label("alpha"))
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var told []string
	var stop func()
	for e, err := range h.Sandboxes(ctx, harnesslib.Selector{Labels: map[string]string{"team": "alpha"}}) {
		require.NoError(t, err)
		if e.Kind == harnesslib.SandboxChanged {
			continue
		}
		told = append(told, string(e.Kind)+" "+string(e.Sandbox.Sandbox))
		if e.Kind == harnesslib.SandboxListed {
			startWorker(t, b, "other", label("beta"))
			stop = startWorker(t, b, "new", label("alpha"))
		}
		if e.Kind == harnesslib.SandboxLive && e.Sandbox.Sandbox == "new" {
			stop()
		}
		if e.Kind == harnesslib.SandboxGone {
			break
		}
	}
	require.Equal(t, []string{"live old", "listed ", "live new", "gone new"}, told)
	for _, err := range h.Sandboxes(ctx, harnesslib.Selector{Trust: "some"}) {
		require.ErrorContains(t, err, "some")
	}
}

// TestHubIsGoneUntilTheDeadline has calls under way and new calls when the hub goes: they wait until their own deadline,
// then say which hub is gone.
func TestHubIsGoneUntilTheDeadline(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.workerProcess(t, n.hub.URL())
	way := hubtest.NewProxy(t, n.hub.URL())
	p := n.place(t, way.URL())
	require.NoError(t, p.Command("true").Run(t.Context()))
	cmd := p.Command("sh", "-c", "while [ ! -e stop ]; do sleep 0.1; done")
	running, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	require.NoError(t, cmd.Start(running))
	way.Cut()
	for name, call := range map[string]func(context.Context) error{
		"file": func(ctx context.Context) error { return second(p.ReadFile(ctx, "f")) },
		"fast": func(ctx context.Context) error { return second(p.ScriptCommand("true").Output(ctx)) },
		"exec": func(ctx context.Context) error { return p.Command("true").Run(ctx) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := call(ctx)
		cancel()
		var gone *harnesslib.HubGoneError
		require.ErrorAs(t, err, &gone, "%s: %v", name, err)
		require.Equal(t, way.URL(), gone.URL)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
	}
	err := cmd.Wait()
	var gone *harnesslib.HubGoneError
	require.ErrorAs(t, err, &gone)
	require.ErrorIs(t, err, harnesslib.ErrLost, "it had left")
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "stop"), nil, 0o600))
}
