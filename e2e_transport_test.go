package sandbus_test

import (
	"testing"

	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/busx"
)

// TestConformanceOverBus holds the transport over the bus to the contract that all transports keep.
func TestConformanceOverBus(t *testing.T) {
	p := start(t, nil)
	conformance.Run(t, func(testing.TB) transport.Transport { return busx.New(p.Sandbox) },
		transport.Declaration{FastTier: transport.FastNative, StopMechanism: transport.StopRemoteAbort, Streams: true})
}
