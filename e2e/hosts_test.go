package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

// TestUnits has systemd itself read the units.
func TestUnits(t *testing.T) {
	enabled(t)
	analyze := testenv.Tool(t, "systemd-analyze")
	dir := t.TempDir()
	bin := t.TempDir()
	for _, b := range []string{"sandbus", "workerd"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, b), []byte("#!/bin/sh\n"), 0o755))
	}
	must(t, "deploy/systemd/install.sh", "--root", dir, "--bin", bin, "all")
	units := filepath.Join(dir, "etc/systemd/system")
	// verify wants all that a unit names where the unit says that it is: in the tree below --root.
	must(t, "cp", "-r", "--parents", "/usr/lib/systemd/system", dir)
	require.NoError(t, os.Symlink("sandbus-worker@.service", filepath.Join(units, "sandbus-worker@box1.service")))
	verify := func(unit string) result {
		return run(t.Context(), t, nil, analyze, "--root", dir, "--man=no", "verify", filepath.Join("/etc/systemd/system", unit))
	}
	for _, unit := range []string{"sandbus-hub.service", "sandbus-worker@box1.service"} {
		r := verify(unit)
		require.NotContains(t, r.stdout+r.stderr, "sandbus", "%s", unit)
		require.Zero(t, r.code, "%s: %s%s", unit, r.stdout, r.stderr)
	}
	// The check can fail.
	broken := filepath.Join(units, "sandbus-broken.service")
	require.NoError(t, os.WriteFile(broken, []byte("[Service]\nExecStart=relative\n"), 0o644))
	require.NotZero(t, verify("sandbus-broken.service").code)
}

func TestInstall(t *testing.T) {
	enabled(t)
	script := "deploy/systemd/install.sh"
	dir, bin := t.TempDir(), t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "want one of hub, worker, all"},
		{[]string{"everything"}, 2, "everything: want hub, worker or all"},
		{[]string{"--wrong", "hub"}, 2, "unknown flag --wrong"},
		{[]string{"--root"}, 2, "--root: want a directory"},
		{[]string{"--root", dir, "--bin", bin, "worker"}, 1, "workerd is no program"},
	} {
		r := run(t.Context(), t, nil, script, c.args...)
		require.Equal(t, c.code, r.code, r.stderr)
		require.Contains(t, r.stderr, c.want)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "a refused call has done something")

	require.NoError(t, os.WriteFile(filepath.Join(bin, "workerd"), []byte("#!/bin/sh\necho new\n"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/sandbus"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/sandbus/box1.env"), []byte("mine\n"), 0o600))
	for range 2 {
		require.Contains(t, must(t, script, "--root", dir, "--bin", bin, "worker"), "/usr/local/bin/workerd")
	}
	require.Equal(t, "new", must(t, filepath.Join(dir, "usr/local/bin/workerd")))
	kept, err := os.ReadFile(filepath.Join(dir, "etc/sandbus/box1.env"))
	require.NoError(t, err)
	require.Equal(t, "mine\n", string(kept))
	_, err = os.Stat(filepath.Join(dir, "etc/systemd/system/sandbus-hub.service"))
	require.ErrorIs(t, err, os.ErrNotExist, "the hub was not asked for")
}
