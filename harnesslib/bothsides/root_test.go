package bothsides

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// fileOperations is every operation that takes a path. The first of them change nothing.
var fileOperations = []struct {
	name    string
	changes bool
	do      func(ctx context.Context, sb *harnesslib.Sandbox, path string) error
}{
	{"read", false, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.ReadFile(ctx, path)
		return err
	}},
	{"stat", false, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.Stat(ctx, path)
		return err
	}},
	{"list", false, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.ReadDir(ctx, path)
		return err
	}},
	{"hash", false, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.Hash(ctx, path)
		return err
	}},
	{"mime", false, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, _, err := sb.MIMEType(ctx, path)
		return err
	}},
	{"copy out", false, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		dst, err := os.MkdirTemp("", "sandbus-*")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dst) }() // a test's own
		_, err = sb.CopyOut(ctx, path, dst, harnesslib.TreeOptions{})
		return err
	}},
	{"write", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.WriteFile(ctx, path, []byte("x"), 0o644)
	}},
	{"append", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.AppendFile(ctx, path, []byte("x"), 0o644)
	}},
	{"upload", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.Upload(ctx, path, strings.NewReader("x"), 1, harnesslib.UploadOptions{})
	}},
	{"edit", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.Edit(ctx, path, []harnesslib.Edit{{Old: "secret", New: "x"}}, harnesslib.EditOptions{})
		return err
	}},
	{"mkdir", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.MkdirAll(ctx, path+"/new", 0o755)
	}},
	{"chmod", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.Chmod(ctx, path, 0o600)
	}},
	{"remove below", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.RemoveAll(ctx, path+"/f")
	}},
	{"rename to below", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.Rename(ctx, "inside", path+"/renamed")
	}},
	{"rename from below", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.Rename(ctx, path+"/f", "stolen")
	}},
	{"copy from", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.CopyFile(ctx, path, "stolen", harnesslib.CopyOptions{})
		return err
	}},
	{"copy to", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		_, err := sb.CopyFile(ctx, "inside", path, harnesslib.CopyOptions{})
		return err
	}},
	{"symlink below", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		return sb.Symlink(ctx, "x", path+"/link")
	}},
	{"copy in", true, func(ctx context.Context, sb *harnesslib.Sandbox, path string) error {
		src, err := os.MkdirTemp("", "sandbus-*")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(src) }() // a test's own
		_, err = sb.CopyIn(ctx, src, path+"/tree", harnesslib.TreeOptions{})
		return err
	}},
}

func TestFilesRoot(t *testing.T) {
	outer := t.TempDir()
	outside := outer + "/outside"
	require.NoError(t, os.MkdirAll(outer+"/root/d", 0o755))
	require.NoError(t, os.Mkdir(outside, 0o755))
	require.NoError(t, os.WriteFile(outside+"/f", []byte("secret"), 0o644))
	require.NoError(t, os.WriteFile(outer+"/root/inside", []byte("inside"), 0o644))
	require.NoError(t, os.Symlink("../outside", outer+"/root/rel"))
	require.NoError(t, os.Symlink(outside, outer+"/root/abs"))
	require.NoError(t, os.Symlink("../../outside/f", outer+"/root/d/file"))
	require.NoError(t, os.Symlink("d/file", outer+"/root/twice"))
	require.NoError(t, os.Symlink("../inside", outer+"/root/d/good"))
	require.NoError(t, os.Symlink(outer+"/root", outer+"/alias"))
	b := newFilesBox(t, func(c *workerd.Config) { c.Dir, c.Root = "", outer+"/alias" })
	ctx := t.Context()
	before := snapshot(t, outer)
	for _, path := range []string{
		"../outside", outside, "rel", "abs", "d/../../outside", "/", "/etc", outer + "/root2", "rel/f", "abs/f", "d/file", "twice", "../outside/f", outside + "/f", "/dev/zero",
	} {
		for _, op := range fileOperations {
			if strings.HasSuffix(op.name, "below") && (path == "twice" || path == "d/file") || (op.name == "mkdir" || op.name == "copy in") && path == "twice" {
				continue // a file has nothing below it
			}
			err := op.do(ctx, b.Sandbox, path)
			require.ErrorIs(t, err, fs.ErrPermission, "%s %s", op.name, path)
			require.ErrorContains(t, err, "(rule: root)", "%s %s", op.name, path)
		}
	}
	for _, target := range []string{"/etc", "../outside", "d/../../outside"} {
		err := b.Symlink(ctx, target, "newlink")
		require.ErrorIs(t, err, fs.ErrPermission)
		require.ErrorContains(t, err, "(rule: root)")
	}
	require.Equal(t, before, snapshot(t, outer))

	t.Run("what stays inside works", func(t *testing.T) {
		for _, path := range []string{"inside", "d/good", outer + "/root/inside", outer + "/alias/d/good", "d/../inside", "./inside", outer + "/alias//inside"} {
			got, err := b.ReadFile(ctx, path)
			require.NoError(t, err, path)
			require.Equal(t, "inside", string(got))
		}
		link, err := b.ReadLink(ctx, "rel") // the link itself is inside
		require.NoError(t, err)
		require.Equal(t, "../outside", link)
		info, err := b.Lstat(ctx, "abs")
		require.NoError(t, err)
		require.Equal(t, fs.ModeSymlink, info.Mode().Type())
		require.NoError(t, b.WriteFile(ctx, "d/good", []byte("new"), 0o644)) // through the link
		require.Equal(t, "new", string(must(t)(os.ReadFile(outer+"/root/inside"))))
		_, err = b.Write(ctx, "a/b/c", []byte("deep"), harnesslib.WriteOptions{Parents: true})
		require.NoError(t, err)
		require.NoError(t, b.MkdirAll(ctx, "a/b/c2/d", 0o750))
		require.NoError(t, b.Mkdir(ctx, "a/e", 0o750))
		require.NoError(t, b.Rename(ctx, "a/b/c", "a/e/c"))
		require.NoError(t, b.Chmod(ctx, "a/e/c", 0o601))
		require.NoError(t, b.Symlink(ctx, "../e/c", "a/b/up"))
		_, err = b.Edit(ctx, "a/b/up", []harnesslib.Edit{{Old: "deep", New: "deeper"}}, harnesslib.EditOptions{})
		require.NoError(t, err)
		_, err = b.CopyFile(ctx, "a/b/up", "copy", harnesslib.CopyOptions{})
		require.NoError(t, err)
		require.NoError(t, b.AppendFile(ctx, "copy", []byte("!"), 0o644))
		require.Equal(t, "deeper!", string(must(t)(os.ReadFile(outer+"/root/copy"))))
		require.NoError(t, b.Upload(ctx, "up", strings.NewReader("u"), 1, harnesslib.UploadOptions{}))
		_, err = b.CopyIn(ctx, outer+"/root/a", "a2", harnesslib.TreeOptions{SkipEqual: true})
		require.NoError(t, err)
		require.NoError(t, fstest.TestFS(b.DirFS(ctx, "a2"), "e/c", "b/up"))
		require.NoError(t, b.Remove(ctx, "rel")) // the link, not what it leads to
		require.NoError(t, b.RemoveAll(ctx, "a"))
		require.DirExists(t, outside)
		require.NoDirExists(t, outer+"/root/a")
		require.ErrorIs(t, b.RemoveAll(ctx, outer+"/alias"), fs.ErrInvalid)
		_, err = b.ReadFile(ctx, "absent")
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorIs(t, b.Mkdir(ctx, ".", 0o755), fs.ErrExist)
	})
	t.Run("a root that is none", func(t *testing.T) {
		cfg := b.cfg
		cfg.Root, cfg.Dir = outer+"/absent", ""
		_, err := workerd.New(cfg)
		require.Error(t, err)
		cfg.Root, cfg.Dir = outer+"/root", outside
		_, err = workerd.New(cfg)
		require.ErrorContains(t, err, "want one below the root")
	})
}

func TestFilesReadOnly(t *testing.T) {
	b := newFilesBox(t, func(c *workerd.Config) { c.Root, c.ReadOnly = c.Dir, true })
	b.put(t, "inside", "secret", 0o644)
	b.put(t, "d/f", "secret", 0o644)
	before := snapshot(t, b.dir)
	for _, op := range fileOperations {
		for _, path := range []string{"inside", "d"} {
			err := op.do(t.Context(), b.Sandbox, path)
			if op.changes {
				require.ErrorIs(t, err, fs.ErrPermission, op.name)
				require.ErrorContains(t, err, "(rule: read-only)", op.name)
			} else if err != nil {
				require.NotErrorIs(t, err, fs.ErrPermission, op.name)
			}
		}
	}
	require.Equal(t, before, snapshot(t, b.dir))
	got, err := b.ReadFile(t.Context(), "inside")
	require.NoError(t, err)
	require.Equal(t, "secret", string(got))
}

// snapshot is all that a tree holds.
func snapshot(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	all := map[string]string{}
	require.NoError(tb, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		all[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all[path] += string(content)
		}
		return nil
	}))
	return all
}

// must unwraps a result that has no error.
func must(tb testing.TB) func(b []byte, err error) []byte {
	tb.Helper()
	return func(b []byte, err error) []byte {
		tb.Helper()
		require.NoError(tb, err)
		return b
	}
}
