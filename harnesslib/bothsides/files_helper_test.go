package bothsides

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// filesBox is a sandbox with a real hub and a real worker in this process.
type filesBox struct {
	*harnesslib.Sandbox
	bus *bustest.Bus
	dir string // the sandbox's directory
	cfg workerd.Config
	hub *harnesslib.Hub

	stopWorker func() // ends the worker that was started first
}

// newFilesBox starts a sandbox in a new directory; change may adapt its worker's configuration.
func newFilesBox(tb testing.TB, change func(*workerd.Config)) *filesBox {
	tb.Helper()
	b := &filesBox{bus: bustest.Start(tb), dir: tb.TempDir()}
	cfg := b.bus.Config(tb, bus.RoleSandbox, "box1")
	b.cfg = workerd.Config{URL: cfg.URL, Dial: cfg.Dial, Credential: cfg.Credential, Dir: b.dir, StopGrace: time.Second}
	if change != nil {
		change(&b.cfg)
	}
	b.stopWorker = b.startWorker(tb)
	b.Sandbox = b.harness(tb, "tester")
	return b
}

// startWorker runs a worker for the length of the test, or until stop.
func (b *filesBox) startWorker(tb testing.TB) (stop func()) {
	tb.Helper()
	cfg := b.cfg
	ready := make(chan struct{})
	cfg.OnReady = func() { close(ready) }
	w, err := workerd.New(cfg)
	require.NoError(tb, err)
	life, cancel := context.WithCancelCause(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(life) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel(errors.New("the test stops the worker"))
			require.NoError(tb, <-ended)
		}
	}
	tb.Cleanup(stop)
	select {
	case <-ready:
	case err := <-ended:
		cancel(nil)
		require.NoError(tb, err)
	}
	return stop
}

// harness connects another harness.
func (b *filesBox) harness(tb testing.TB, name string) *harnesslib.Sandbox {
	tb.Helper()
	cfg := b.bus.Config(tb, bus.RoleHarness, name)
	hub, err := harnesslib.Connect(tb.Context(), harnesslib.Config{URL: cfg.URL, Dial: cfg.Dial, Token: cfg.Credential.Token()})
	require.NoError(tb, err)
	tb.Cleanup(hub.Close)
	if b.hub == nil {
		b.hub = hub
	}
	sb, err := hub.Sandbox("box1")
	require.NoError(tb, err)
	return sb
}

// path is a name in the sandbox's directory as the test's own file system has it.
func (b *filesBox) path(name string) string { return b.dir + "/" + name }

// put writes a file past the sandbox.
func (b *filesBox) put(tb testing.TB, name, content string, perm os.FileMode) {
	tb.Helper()
	require.NoError(tb, os.MkdirAll(filepath.Dir(b.path(name)), 0o755))
	require.NoError(tb, os.WriteFile(b.path(name), []byte(content), perm))
	require.NoError(tb, os.Chmod(b.path(name), perm))
}

// get reads a file past the sandbox.
func (b *filesBox) get(tb testing.TB, name string) string {
	tb.Helper()
	got, err := os.ReadFile(b.path(name))
	require.NoError(tb, err)
	return string(got)
}
