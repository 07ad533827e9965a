package hub

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestHubIsFoundWhileItRuns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	_, _, found, err := Find(dir)
	require.NoError(t, err)
	require.False(t, found)

	h, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	st, minter, found, err := Find(dir)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, h.URL(), st.URL)
	require.Equal(t, os.Getpid(), st.PID)
	fi, err := os.Stat(filepath.Join(dir, stateFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())

	cred, err := minter.Issue(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "me"})
	require.NoError(t, err)
	c, err := bus.Connect(t.Context(), bus.Config{URL: st.URL, Credential: cred})
	require.NoError(t, err)
	c.Close()
	c.Close()

	_, err = Start(t.Context(), Config{Dir: dir})
	require.ErrorIs(t, err, ErrRunning)
	h.Stop()
	h.Stop()
	_, _, found, err = Find(dir)
	require.NoError(t, err)
	require.False(t, found)

	// What a killed hub leaves is not taken for a hub.
	require.NoError(t, os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"url":"nats://127.0.0.1:1","key":"x"}`), 0o600))
	_, _, found, err = Find(dir)
	require.NoError(t, err)
	require.False(t, found)
}

func TestTakenPortIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = Start(t.Context(), Config{Dir: t.TempDir(), Port: port})
	require.ErrorContains(t, err, strconv.Itoa(port))
	_, err = Start(t.Context(), Config{Port: 70000})
	require.ErrorContains(t, err, "65535")
}

func TestHubWithoutADirectoryLeavesNothing(t *testing.T) {
	h, err := Start(t.Context(), Config{})
	require.NoError(t, err)
	dir := h.state.dir
	require.DirExists(t, dir)
	h.Stop()
	require.NoDirExists(t, dir)
}

// TestTokensOutliveTheHub has a hub start anew on the directory of one that was stopped.
func TestTokensOutliveTheHub(t *testing.T) {
	dir := t.TempDir()
	h, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	cred, err := h.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "me"})
	require.NoError(t, err)
	h.Stop()
	fi, err := os.Stat(filepath.Join(dir, keyFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	h, err = Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	defer h.Stop()
	c, err := bus.Connect(t.Context(), bus.Config{URL: h.URL(), Credential: cred})
	require.NoError(t, err)
	c.Close()
	h.Stop()

	require.NoError(t, os.WriteFile(filepath.Join(dir, keyFile), []byte("no key\n"), 0o600))
	_, err = Start(t.Context(), Config{Dir: dir})
	require.ErrorContains(t, err, keyFile)
}
