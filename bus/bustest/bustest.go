// Package bustest gives tests a real hub in their own process, without a port.
package bustest

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
)

// Bus is a hub that ends with its test.
type Bus struct {
	*hub.Hub
}

// Start runs a hub for the length of the test.
func Start(tb testing.TB) *Bus {
	tb.Helper()
	h, err := hub.Start(tb.Context(), hub.Config{Port: hub.NoListen, Logger: Logger(tb)})
	require.NoError(tb, err)
	tb.Cleanup(h.Stop)
	return &Bus{h}
}

// Config is what a client of an identity needs to connect.
func (b *Bus) Config(tb testing.TB, role bus.Role, name string) bus.Config {
	tb.Helper()
	cred, err := b.Credential(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name})
	require.NoError(tb, err)
	return bus.Config{URL: b.URL(), Dial: b.Dial, Credential: cred, Logger: Logger(tb)}
}

// Connect connects an identity for the length of the test.
func (b *Bus) Connect(tb testing.TB, role bus.Role, name string) *bus.Conn {
	tb.Helper()
	c, err := bus.Connect(tb.Context(), b.Config(tb, role, name))
	require.NoError(tb, err)
	tb.Cleanup(c.Close)
	return c
}

// Logger writes to the test's log.
func Logger(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
