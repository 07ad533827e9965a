package bus

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPermissionsOfTheContract pins the table of protocol.md: a change of these lists is a change of the contract.
func TestPermissionsOfTheContract(t *testing.T) {
	sandbox := Identity{Role: RoleSandbox, Zone: "z", Name: "x"}.Permissions()
	require.Equal(t, []string{"sbx.z.x.>", "_I.z.x.>", "bc.z"}, sandbox.Subscribe)
	require.Equal(t, []string{"rep.z.x.>", "hb.z.x", "evt.z.x.>"}, sandbox.Publish)
	harness := Identity{Role: RoleHarness, Zone: "main", Name: "h"}.Permissions()
	require.Equal(t, []string{"rep.*.*.h.>", "_G.h.>"}, harness.Subscribe)
	require.Contains(t, harness.Publish, "sbx.>")
	require.NotContains(t, harness.Publish, "$KV.presence.>")
	registrar := Identity{Role: RoleRegistrar, Zone: "main", Name: "r"}.Permissions()
	require.Equal(t, []string{"hb.>", "evt.>", "_G.r.>"}, registrar.Subscribe)
	require.Subset(t, registrar.Publish, []string{"bc.>", "_I.>", "$KV.presence.>"})
}

func TestMinter(t *testing.T) {
	m := NewMinter()
	id := Identity{Role: RoleSandbox, Zone: "main", Name: "box1"}
	c, err := m.Issue(id)
	require.NoError(t, err)
	got, err := m.Verify(c.Token())
	require.NoError(t, err)
	require.Equal(t, id, got)

	same, err := ParseMinter(m.Key())
	require.NoError(t, err)
	_, err = same.Verify(c.Token())
	require.NoError(t, err)

	_, err = NewMinter().Verify(c.Token())
	require.ErrorIs(t, err, ErrForged)
	other := "sbt1.sandbox.main.box2." + c.Proof()
	_, err = m.Verify(other)
	require.ErrorIs(t, err, ErrForged, "a proof is for one identity")
	_, err = m.Verify("sbt1.harness.main.box1." + c.Proof())
	require.ErrorIs(t, err, ErrForged)
	for _, bad := range []string{"", "x", "sbt1.sandbox.main.box1.", "sbt1.sandbox.main.*.p", "sbt1.root.main.box1.p"} {
		_, err := m.Verify(bad)
		require.ErrorIs(t, err, ErrCredential, "%q", bad)
	}
	_, err = m.Issue(Identity{Role: RoleSandbox, Zone: "main", Name: "*"})
	require.Error(t, err, "a key to everything")
	require.NotContains(t, c.String(), c.Proof())
}
