package bus_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
)

func TestTryFindsWhatARoleMay(t *testing.T) {
	b := bustest.Start(t)
	for _, role := range []bus.Role{bus.RoleSandbox, bus.RoleHarness, bus.RoleRegistrar} {
		attempts, err := b.Connect(t, role, "someone").Try(t.Context())
		require.NoError(t, err)
		refused := 0
		for _, a := range attempts {
			require.Equal(t, a.Want, a.Allowed, "%s: %s", role, a)
			if !a.Allowed {
				refused++
			}
		}
		require.GreaterOrEqual(t, refused, 3, role)
	}
}
