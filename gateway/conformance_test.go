package gateway_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
)

// TestConformance holds the relay transport to the seam's contract, over the gateway and over the plain relay.
func TestConformance(t *testing.T) {
	r := startRig(t)
	for name, c := range map[string]struct {
		addr string
		fast transport.FastTier
	}{
		"gateway": {r.gateway(nil).addr, transport.FastShell},
		"plain":   {plainRelay(t, r.dir), transport.FastNone},
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(tb testing.TB) transport.Transport {
				tb.Helper()
				tr, err := relay.New(relay.Config{Addr: c.addr, Sandbox: "box", Token: harnessToken, FastTier: c.fast})
				require.NoError(tb, err)
				return tr
			}, transport.Declaration{FastTier: c.fast, StopMechanism: transport.StopRemoteAbort, Streams: true})
		})
	}
}
