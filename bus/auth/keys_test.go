package auth_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
)

func sandbox(name string) bus.Identity {
	return bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: name}
}

func TestCredentialsComeBackFromEachForm(t *testing.T) {
	keys := bustest.NewKeys(t)
	for _, id := range []bus.Identity{
		{Role: bus.RoleSandbox, Zone: "eu", Name: "box1"},
		{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"},
		{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h2", Zones: []bus.Zone{"eu", "us"}},
		{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: "r1"},
		{Role: bus.RoleSite, Zone: "eu", Name: "s1"},
		{Role: bus.RoleSystem, Zone: bus.DefaultZone, Name: "watch"},
	} {
		cred, err := keys.Issue(auth.DefaultTenant, id, time.Hour)
		require.NoError(t, err)
		require.Equal(t, id, cred.Identity())
		require.WithinDuration(t, time.Now().Add(time.Hour), cred.Expires(), time.Minute)

		one, err := bus.ParseCredential(cred.Token() + "\n")
		require.NoError(t, err)
		require.Equal(t, id, one.Identity())
		require.Equal(t, cred.Token(), one.Token())
		require.NotContains(t, cred.Token(), "\n")

		path := filepath.Join(t.TempDir(), "creds")
		require.NoError(t, cred.WriteFile(path, 0o600))
		file, err := bus.LoadCredential(path)
		require.NoError(t, err)
		require.Equal(t, cred.Token(), file.Token())

		seed := cred.Token()[strings.LastIndexByte(cred.Token(), '.')+1:]
		require.True(t, strings.HasPrefix(seed, "SU"))
		require.NotContains(t, cred.String(), seed)
	}
}

func TestUnreadableCredentialsSayWhy(t *testing.T) {
	keys := bustest.NewKeys(t)
	cred, err := keys.Issue(auth.DefaultTenant, sandbox("box1"), 0)
	require.NoError(t, err)
	other, err := keys.Issue(auth.DefaultTenant, sandbox("box2"), 0)
	require.NoError(t, err)
	parts := strings.Split(cred.Token(), ".")
	foreign := strings.Split(other.Token(), ".")
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "0 bytes"},
		"garbage":           {"hello", "5 bytes"},
		"another's seed":    {strings.Join(append(parts[:4:4], foreign[4]), "."), "the seed is not that of the user JWT"},
		"no seed":           {strings.Join(append(parts[:4:4], "x"), "."), "seed is not readable"},
		"another's body":    {strings.Join([]string{parts[0], parts[1], foreign[2], parts[3], parts[4]}, "."), "user JWT"},
		"a file cut short":  {"-----BEGIN NATS USER JWT-----\n" + parts[1] + "\n", "credentials file"},
		"an account's JWT":  {"sbt2." + account(t, keys) + "." + parts[4], "user JWT"},
		"a JWT without tag": {"sbt2.a.b.c." + parts[4], "user JWT"},
	} {
		_, err := bus.ParseCredential(c.text)
		require.ErrorIs(t, err, bus.ErrCredential, name)
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), parts[4], "%s: the seed is told", name)
		require.NotContains(t, err.Error(), "\n", "%s: want one line", name)
	}
}

func account(t *testing.T, keys *auth.Keys) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(keys.Dir(), "tenants", "main", "account.jwt"))
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func TestMinterChecksNames(t *testing.T) {
	keys := bustest.NewKeys(t)
	for _, name := range []string{"*", ">", "", "a.b", "A", " ", "box 1", "{{name()}}", "-x", strings.Repeat("a", 64)} {
		_, err := keys.Issue(auth.DefaultTenant, sandbox(name), 0)
		require.Error(t, err, "%q", name)
		_, err = keys.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleSandbox, Zone: bus.Zone(name), Name: "x"}, 0)
		require.Error(t, err, "zone %q", name)
		_, err = keys.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleHarness, Zone: "main", Name: "x", Zones: []bus.Zone{bus.Zone(name)}}, 0)
		require.Error(t, err, "zones %q", name)
		_, err = keys.Issue(name, sandbox("x"), 0)
		require.Error(t, err, "tenant %q", name)
	}
	_, err := keys.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleSandbox, Zone: "a", Name: "x", Zones: []bus.Zone{"b"}}, 0)
	require.ErrorContains(t, err, "only a harness")
	_, err = keys.Issue(auth.DefaultTenant, sandbox("x"), time.Millisecond)
	require.ErrorContains(t, err, "1ms: want at least 1s")
	m, err := keys.Minter(auth.DefaultTenant, bus.RoleSandbox)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	_, err = m.Issue(bus.Identity{Role: bus.RoleHarness, Zone: "main", Name: "x"}, 0)
	require.ErrorContains(t, err, "the key is that of role sandbox")
	list, err := keys.Issued()
	require.NoError(t, err)
	require.Empty(t, list, "what was refused is not in the register")
}

func TestKeysAreForTheirOwnerOnly(t *testing.T) {
	keys := bustest.NewKeys(t)
	seeds := 0
	require.NoError(t, filepath.WalkDir(keys.Dir(), func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		fi, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, fi.Mode().Perm()&0o077, path)
		if strings.HasSuffix(path, ".nk") {
			seeds++
		}
		return nil
	}))
	require.Equal(t, 1+len(bus.Roles()), seeds)

	role := filepath.Join(keys.Dir(), "tenants", "main", "roles", "sandbox.nk")
	require.NoError(t, os.Chmod(role, 0o640))
	_, err := keys.Issue(auth.DefaultTenant, sandbox("x"), 0)
	require.ErrorContains(t, err, "sandbox.nk: its mode is 0640")
	require.NoError(t, os.Chmod(role, 0o600))
	_, err = keys.Issue(auth.DefaultTenant, sandbox("x"), 0)
	require.NoError(t, err)

	_, err = auth.Init(keys.Dir(), "", auth.DefaultTenant)
	require.ErrorContains(t, err, "tenant main: there are keys")
	_, err = auth.Init(keys.Dir(), "", "alpha")
	require.NoError(t, err)
	tenants, err := keys.Tenants()
	require.NoError(t, err)
	require.Equal(t, []string{"alpha", "main"}, tenants)
	_, err = keys.Issue("beta", sandbox("x"), 0)
	require.ErrorIs(t, err, auth.ErrNoKeys)
	_, err = auth.Open(t.TempDir(), "")
	require.ErrorIs(t, err, auth.ErrNoKeys)
}

// TestAHostThatOnlyIssues has no more than the account's claims and one role's key, in a directory that is mounted for it.
func TestAHostThatOnlyIssues(t *testing.T) {
	keys := bustest.NewKeys(t)
	dir := t.TempDir()
	for _, name := range []string{"operator.jwt", "tenants/main/account.jwt", "tenants/main/roles/sandbox.nk"} {
		b, err := os.ReadFile(filepath.Join(keys.Dir(), name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o400))
	}
	register := filepath.Join(t.TempDir(), "register")
	minting, err := auth.Open(dir, register)
	require.NoError(t, err)
	_, err = minting.Issue(auth.DefaultTenant, sandbox("box1"), 0)
	require.NoError(t, err)
	_, err = minting.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleHarness, Zone: "main", Name: "x"}, 0)
	require.ErrorContains(t, err, "harness.nk")
	require.ErrorContains(t, minting.Revoke(t.Context(), nil, auth.DefaultTenant, "U"), "operator.nk")
	require.FileExists(t, register)

	// Another role's key under this name makes nothing.
	b, err := os.ReadFile(filepath.Join(bustest.NewKeys(t).Dir(), "tenants/main/roles/harness.nk"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tenants/main/roles/harness.nk"), b, 0o600))
	_, err = minting.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleHarness, Zone: "main", Name: "x"}, 0)
	require.ErrorContains(t, err, "does not name it for a role")
}

func TestRegister(t *testing.T) {
	keys := bustest.NewKeys(t)
	cred, err := keys.Issue(auth.DefaultTenant, sandbox("box1"), time.Hour)
	require.NoError(t, err)
	_, err = keys.Issue(auth.DefaultTenant, sandbox("box2"), 0)
	require.NoError(t, err)
	found, err := keys.Find(auth.DefaultTenant, bus.RoleSandbox, bus.DefaultZone, "box1")
	require.NoError(t, err)
	require.Len(t, found, 1)
	d, _ := cred.Details()
	require.Equal(t, d.Key, found[0].Key)
	require.NoError(t, keys.Revoke(t.Context(), nil, auth.DefaultTenant, found[0].Key))
	_, err = keys.Find(auth.DefaultTenant, bus.RoleSandbox, bus.DefaultZone, "box1")
	require.ErrorIs(t, err, auth.ErrNothingToRevoke)
	list, err := keys.Issued()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.True(t, list[0].Revoked)
	require.False(t, list[1].Revoked)
	require.True(t, list[1].Expires.IsZero())
	text, err := json.Marshal(list)
	require.NoError(t, err)
	require.NotRegexp(t, `\bSU[A-Z2-7]{56}\b`, string(text), "a seed is in the register")
}

// TestMinting measures; BenchmarkMinting is the figure.
func TestMinting(t *testing.T) {
	keys := bustest.NewKeys(t)
	m, err := keys.Minter(auth.DefaultTenant, bus.RoleSandbox)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	const n = 500 // with the race detector each takes 10 ms
	begin := time.Now()
	seen := map[string]bool{}
	for range n {
		cred, err := m.Issue(sandbox("box1"), time.Hour)
		require.NoError(t, err)
		seen[cred.Token()] = true
	}
	took := time.Since(begin)
	require.Len(t, seen, n)
	list, err := keys.Issued()
	require.NoError(t, err)
	require.Len(t, list, n)
	t.Logf("%d credentials in %s: 10,000 take %s", n, took.Round(time.Millisecond), (took * 10000 / n).Round(time.Millisecond))
}

// BenchmarkMinting makes 10,000 credentials for each iteration.
func BenchmarkMinting(b *testing.B) {
	keys := bustest.NewKeys(b)
	m, err := keys.Minter(auth.DefaultTenant, bus.RoleSandbox)
	require.NoError(b, err)
	defer func() { require.NoError(b, m.Close()) }()
	for b.Loop() {
		for range 10000 {
			if _, err := m.Issue(sandbox("box1"), time.Hour); err != nil {
				b.Fatal(err)
			}
		}
	}
}
