package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
	"github.com/sandbus/sandbus/internal/testenv"
)

// shells are prefixes that end in each of the shells of this machine, with an empty environment, as in a container.
func shells(tb testing.TB) map[string][]string {
	tb.Helper()
	found := map[string][]string{}
	for name, path := range testenv.Shells(tb) {
		found[name] = []string{"env", "-i", path}
		if name == "busybox" {
			found[name] = append(found[name], "sh")
		}
	}
	return found
}

func open(tb testing.TB, cfg command.Config) *command.Transport {
	tb.Helper()
	tr, err := command.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, tr.Close()) })
	return tr
}

func openPerCall(tb testing.TB, cfg command.Config) *command.PerCall {
	tb.Helper()
	tr, err := command.NewPerCall(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, tr.Close()) })
	return tr
}

func opener(cfg command.Config) func(tb testing.TB) transport.Transport {
	return func(tb testing.TB) transport.Transport {
		tb.Helper()
		return open(tb, cfg)
	}
}

func perCallOpener(cfg command.Config) func(tb testing.TB) transport.Transport {
	return func(tb testing.TB) transport.Transport {
		tb.Helper()
		return openPerCall(tb, cfg)
	}
}

var (
	declared        = transport.Declaration{FastTier: transport.FastShell, StopMechanism: transport.StopRemoteAbort, Streams: true}
	declaredPerCall = transport.Declaration{FastTier: transport.FastNone, StopMechanism: transport.StopRemoteAbort, Streams: true}
)

func TestConformance(t *testing.T) {
	for name, prefix := range shells(t) {
		cfg := command.Config{Prefix: prefix, PrefixIsShell: true}
		t.Run(name, func(t *testing.T) { conformance.Run(t, opener(cfg), declared) })
	}
	t.Run("per call", func(t *testing.T) {
		conformance.Run(t, perCallOpener(command.Config{Prefix: []string{"sh"}, PrefixIsShell: true}), declaredPerCall)
	})
}
