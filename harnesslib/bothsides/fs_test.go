package bothsides

import (
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestFilesFS(t *testing.T) {
	b := newFilesBox(t, nil)
	large := strings.Repeat("0123456789abcdef", 50_000) // 800 kB: several pieces
	b.put(t, "tree/a.go", "package a\n", 0o644)
	b.put(t, "tree/empty", "", 0o600)
	b.put(t, "tree/sub/deep/large", large, 0o755)
	b.put(t, "tree/sub/日本 語", "x", 0o644)
	require.NoError(t, os.Mkdir(b.path("tree/emptydir"), 0o755))
	require.NoError(t, os.Symlink("a.go", b.path("tree/link")))
	require.NoError(t, os.Symlink("sub", b.path("tree/dirlink")))
	expected := []string{"a.go", "empty", "sub/deep/large", "sub/日本 語", "emptydir", "link", "dirlink"}

	require.NoError(t, fstest.TestFS(b.DirFS(t.Context(), "tree"), expected...))
	require.NoError(t, fstest.TestFS(b.DirFS(t.Context(), b.path("tree")), expected...))
	b.put(t, "top", "", 0o644)
	fsys := b.FS(t.Context())
	require.NoError(t, fstest.TestFS(fsys, "top", "tree/a.go"))

	t.Run("a file is also a ReaderAt and a Seeker", func(t *testing.T) {
		f, err := fsys.Open("tree/sub/deep/large")
		require.NoError(t, err)
		require.NoError(t, iotest.TestReader(f, []byte(large)))
		got := make([]byte, 16)
		_, err = f.(io.ReaderAt).ReadAt(got, 300_000)
		require.NoError(t, err)
		require.Equal(t, large[300_000:300_016], string(got))
		require.NoError(t, f.Close())
		_, err = f.Read(got)
		require.ErrorIs(t, err, fs.ErrClosed)
	})
	t.Run("links", func(t *testing.T) {
		require.NoError(t, os.Symlink("nowhere", b.path("tree/broken"))) // of which TestFS makes an error
		link, err := fs.ReadLink(fsys, "tree/broken")
		require.NoError(t, err)
		require.Equal(t, "nowhere", link)
		_, err = fs.Stat(fsys, "tree/broken")
		require.ErrorIs(t, err, fs.ErrNotExist)
		info, err := fs.Lstat(fsys, "tree/broken")
		require.NoError(t, err)
		require.Equal(t, fs.ModeSymlink, info.Mode().Type())
	})
	t.Run("glob", func(t *testing.T) {
		names, err := fs.Glob(fsys, "tree/*/d*")
		require.NoError(t, err)
		require.Equal(t, []string{"tree/dirlink/deep", "tree/sub/deep"}, names)
		_, err = fs.Glob(fsys, "[")
		require.Error(t, err)
	})
	t.Run("what is no path of io/fs", func(t *testing.T) {
		for _, name := range []string{"", "/tree", "../x", "tree/", "./tree"} {
			_, err := fsys.Open(name)
			require.ErrorIs(t, err, fs.ErrInvalid, name)
		}
	})
}
