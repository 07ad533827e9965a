package bus

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTokenOfALimitedHarness carries zones through the token of an embedded hub, and binds them into its proof.
func TestTokenOfALimitedHarness(t *testing.T) {
	m := NewMinter()
	id := Identity{Role: RoleHarness, Zone: DefaultZone, Name: "h1", Zones: []Zone{"eu", "us"}}
	c, err := m.Issue(id)
	require.NoError(t, err)
	got, err := m.Verify(c.Token())
	require.NoError(t, err)
	require.Equal(t, id, got)
	require.Contains(t, got.Permissions().Publish, "sbx.eu.>")
	require.NotContains(t, got.Permissions().Publish, "sbx.>")
	for _, forged := range []string{"+eu", "+eu+us+main", "main", "eu"} {
		_, err = m.Verify("sbt1.harness." + forged + ".h1." + c.Proof())
		require.ErrorIs(t, err, ErrForged, forged)
	}
	for _, bad := range []string{"+", "+eu+eu", "+*", "+eu+"} {
		_, err = m.Verify("sbt1.harness." + bad + ".h1." + c.Proof())
		require.ErrorIs(t, err, ErrCredential, bad)
	}
	_, err = m.Issue(Identity{Role: RoleSandbox, Zone: "eu", Name: "x", Zones: []Zone{"us"}})
	require.ErrorContains(t, err, "only a harness")
	one, err := m.Issue(Identity{Role: RoleHarness, Zone: DefaultZone, Name: "h1", Zones: []Zone{DefaultZone}})
	require.NoError(t, err)
	all, err := m.Issue(Identity{Role: RoleHarness, Zone: DefaultZone, Name: "h1"})
	require.NoError(t, err)
	require.NotEqual(t, one.Token(), all.Token())
}

// TestUnclearURLsAreRefused names what a hub's address may be.
func TestUnclearURLsAreRefused(t *testing.T) {
	for _, ok := range []string{"nats://hub:4222", "tls://hub", "wss://hub:443/path", "ws://127.0.0.1:80", "hub:4222", "hub"} {
		_, err := hubURL(ok)
		require.NoError(t, err, ok)
	}
	for _, bad := range []string{"http://hub", "nats://", "://", "nats://a b", "nats://hub:x"} {
		_, err := hubURL(bad)
		require.Error(t, err, bad)
	}
	require.Equal(t, "nats://u:xxxxx@hub", redacted("nats://u:secret@hub"))
}

func FuzzParseCredential(f *testing.F) {
	c, err := NewMinter().Issue(Identity{Role: RoleHarness, Zone: DefaultZone, Name: "h1", Zones: []Zone{"eu"}})
	require.NoError(f, err)
	for _, s := range []string{c.Token(), "", "sbt2.a.b.c.d", "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n", "sbt1.sandbox.main.*.p"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCredential(text)
		if err != nil {
			require.ErrorIs(t, err, ErrCredential)
			return
		}
		require.NoError(t, c.Identity().Check())
		again, err := ParseCredential(c.Token())
		require.NoError(t, err)
		require.Equal(t, c.Identity(), again.Identity())
	})
}
