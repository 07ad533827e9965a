//go:build linux

package bothsides

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/internal/testenv"
)

// smallDisk mounts a file system of a megabyte, and returns what fills it.
func smallDisk(t *testing.T) (dir string, fill func()) {
	t.Helper()
	dir = t.TempDir()
	err := errors.New("not root")
	if os.Geteuid() == 0 {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m")
	}
	testenv.Need(t, "root", err == nil)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir, func() {
		f, err := os.Create(filepath.Join(dir, "filler"))
		require.NoError(t, err)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		require.ErrorIs(t, err, unix.ENOSPC)
		require.NoError(t, f.Close())
	}
}

// TestHubOnAFullDisk starts a hub where nothing can be written, which says so; and fills the disk of a hub that runs, which
// goes on: presence and requests are never stored.
func TestHubOnAFullDisk(t *testing.T) {
	dir, fill := smallDisk(t)
	fill()
	_, err := hub.Start(t.Context(), hub.Config{Dir: dir})
	require.ErrorContains(t, err, "no space left on device")
	require.ErrorContains(t, err, dir)

	dir, fill = smallDisk(t)
	h, err := hub.Start(t.Context(), hub.Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	fill()
	n := &network{hub: h, dir: t.TempDir(), state: t.TempDir()}
	n.workerProcess(t, h.URL())
	p := n.place(t, h.URL())
	require.NoError(t, p.WriteFile(t.Context(), "f", []byte("x"), 0o600))
	b, err := p.ReadFile(t.Context(), "f")
	require.NoError(t, err)
	require.Equal(t, "x", string(b))
	require.NoError(t, p.Command("true").Run(t.Context()))
}
