package bothsides

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
	"github.com/sandbus/sandbus/workerd"
)

const relayToken = "harness-token-0123456789"

// serving runs something on a free port of the loopback for the length of the test.
func serving(t *testing.T, serve func(context.Context, net.Listener) error) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	running(t, func(ctx context.Context) error { return serve(ctx, ln) })
	return ln.Addr().String()
}

func running(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		if err := <-ended; err != nil {
			t.Logf("it ended: %v", err)
		}
	})
}

// TestConformanceOverRelays holds the relay transport to the seam's contract, over the gateway to a sandbox of the bus, and
// over the plain relay.
func TestConformanceOverRelays(t *testing.T) {
	b := bustest.Start(t)
	dir := t.TempDir()
	startWorker(t, b, "box", func(c *workerd.Config) { c.Dir = dir })
	file := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(file, []byte("harness ci "+relayToken+"\n"), 0o600))
	tokens, err := gateway.OpenTokens(file)
	require.NoError(t, err)
	cred, err := b.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "gateway"})
	require.NoError(t, err)
	g, err := gateway.New(gateway.Config{
		Hub: harnesslib.Config{URL: b.URL(), Dial: b.Dial, Token: cred.Token()}, Tokens: tokens, Logger: bustest.Logger(t), Grace: 200 * time.Millisecond,
		WorkerBus: func(bus.SandboxID) (bus.Config, error) { return bus.Config{}, os.ErrPermission }, // none attaches
	})
	require.NoError(t, err)

	plain := plainrelay.NewRelay(relayToken)
	addr := serving(t, plain.Serve)
	running(t, (&plainrelay.Worker{Relay: addr, Token: relayToken, Sandbox: "box", Dir: dir, Slots: 16}).Run)
	require.Eventually(t, func() bool { return plain.Attached("box") }, time.Minute, 10*time.Millisecond)

	for name, c := range map[string]struct {
		addr string
		fast transport.FastTier
	}{
		"gateway": {serving(t, g.Serve), transport.FastShell},
		"plain":   {addr, transport.FastNone},
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(tb testing.TB) transport.Transport {
				tb.Helper()
				tr, err := relay.New(relay.Config{Addr: c.addr, Sandbox: "box", Token: relayToken, FastTier: c.fast})
				require.NoError(tb, err)
				return tr
			}, transport.Declaration{FastTier: c.fast, StopMechanism: transport.StopRemoteAbort, Streams: true})
		})
	}
}
