package bothsides

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
)

// failingReader gives some bytes, runs a function, and fails.
type failingReader struct {
	give int
	then func()
}

var errSource = errors.New("the source broke")

func (r *failingReader) Read(b []byte) (int, error) {
	if r.give == 0 {
		r.then()
		return 0, errSource
	}
	n := min(len(b), r.give)
	r.give -= n
	return n, nil
}

func TestC55WriteIsWhole(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	t.Run("a broken upload leaves the old content", func(t *testing.T) {
		b.put(t, "a", "old", 0o755)
		err := b.CopyTo(ctx, "a", &failingReader{give: 3 << 20, then: func() { require.Equal(t, "old", b.get(t, "a")) }}, 0o644)
		require.ErrorIs(t, err, errSource)
		require.Equal(t, "old", b.get(t, "a"))
		require.EventuallyWithT(t, func(c *assert.CollectT) { // the worker's end of it
			names, err := filepath.Glob(b.path(".sandbus-*"))
			require.NoError(c, err)
			require.Empty(c, names)
		}, 5*time.Second, 10*time.Millisecond)
	})
	t.Run("a reader sees the old or the new", func(t *testing.T) {
		old, new := strings.Repeat("o", 300_000), strings.Repeat("n", 200_000)
		b.put(t, "b", old, 0o644)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := os.ReadFile(b.path("b"))
				if err != nil || (string(got) != old && string(got) != new) {
					t.Errorf("%d bytes, error %v", len(got), err)
					return
				}
			}
		})
		for i := range 20 {
			content := old
			if i%2 == 0 {
				content = new
			}
			require.NoError(t, b.WriteFile(ctx, "b", []byte(content), 0o644))
		}
		close(stop)
		wg.Wait()
	})
	t.Run("mode 0755 stays, a symlink stays a symlink", func(t *testing.T) {
		b.put(t, "real/script", "#!/bin/sh\n", 0o755)
		require.NoError(t, os.Symlink("real/script", b.path("l1")))
		require.NoError(t, os.Symlink("./l1", b.path("l2")))
		for _, write := range []func() error{
			func() error { return b.WriteFile(ctx, "l2", []byte("new"), 0o600) },
			func() error { return b.CopyTo(ctx, "l2", strings.NewReader("new"), 0o600) },
		} {
			require.NoError(t, write())
			require.Equal(t, "new", b.get(t, "real/script"))
			fi, err := os.Stat(b.path("real/script"))
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o755), fi.Mode())
			link, err := os.Readlink(b.path("l2"))
			require.NoError(t, err)
			require.Equal(t, "./l1", link)
		}
	})
	t.Run("through a dangling link the target is made", func(t *testing.T) {
		require.NoError(t, os.Symlink("made", b.path("dangling")))
		require.NoError(t, b.WriteFile(ctx, "dangling", []byte("x"), 0o640))
		require.Equal(t, "x", b.get(t, "made"))
		require.NoError(t, os.Symlink("loop", b.path("loop")))
		require.ErrorIs(t, b.WriteFile(ctx, "loop", []byte("x"), 0o640), syscall.ELOOP)
	})
	t.Run("preconditions", func(t *testing.T) {
		b.put(t, "p", "old", 0o644)
		_, err := b.Write(ctx, "p", []byte("new"), harnesslib.WriteOptions{MustNotExist: true})
		require.ErrorIs(t, err, fs.ErrExist)
		wrong, right := sha256.Sum256([]byte("other")), sha256.Sum256([]byte("old"))
		_, err = b.Write(ctx, "p", []byte("new"), harnesslib.WriteOptions{ExpectedSHA256: &wrong})
		require.ErrorIs(t, err, harnesslib.ErrConflict)
		_, err = b.Write(ctx, "absent", []byte("new"), harnesslib.WriteOptions{ExpectedSHA256: &wrong})
		require.ErrorIs(t, err, harnesslib.ErrConflict)
		require.Equal(t, "old", b.get(t, "p"))
		res, err := b.Write(ctx, "p", []byte("new"), harnesslib.WriteOptions{ExpectedSHA256: &right})
		require.NoError(t, err)
		require.Equal(t, harnesslib.WriteResult{Size: 3, SHA256: sha256.Sum256([]byte("new"))}, res)
		_, err = b.Write(ctx, "x/y/z", []byte("new"), harnesslib.WriteOptions{Parents: true, MustNotExist: true, Perm: 0o600})
		require.NoError(t, err)
		_, err = b.Write(ctx, "q/y/z", []byte("new"), harnesslib.WriteOptions{})
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorIs(t, b.WriteFile(ctx, "x/y/", nil, 0), syscall.EISDIR)
		require.ErrorIs(t, b.WriteFile(ctx, "x/y", nil, 0), syscall.EISDIR)
	})
	t.Run("append", func(t *testing.T) {
		b.put(t, "log", "one\n", 0o755)
		require.NoError(t, b.AppendFile(ctx, "log", []byte("two\n"), 0o600))
		res, err := b.WriteFrom(ctx, "log", strings.NewReader("three\n"), harnesslib.WriteOptions{Append: true})
		require.NoError(t, err)
		require.Equal(t, int64(14), res.Size)
		require.Equal(t, "one\ntwo\nthree\n", b.get(t, "log"))
		require.NoError(t, b.AppendFile(ctx, "newlog", []byte("x"), 0o600))
		require.Equal(t, "x", b.get(t, "newlog"))
	})
}

// strangeNames are legal names that have tripped others.
var strangeNames = []string{
	"a b", `a'b"c`, "-rf", "$(x)", "tab\t", "new\nline", "日本語", "e\u0301", "\u00e9", "\xff\xfe invalid", strings.Repeat("x", 255),
	"\U0001f600", "*", "?[a]", `back\slash`, " lead", "trail ", ".hidden", "~", "a:b", "#", "%s", "\x01\x7f", "...",
}

func TestC56Names(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	for _, name := range strangeNames {
		t.Run(fmt.Sprintf("%.40q", name), func(t *testing.T) {
			dir := "d-" + fmt.Sprint(len(name)) + name[:min(len(name), 40)]
			require.NoError(t, b.Mkdir(ctx, dir, 0o755))
			path := dir + "/" + name
			require.NoError(t, b.WriteFile(ctx, path, []byte(name), 0o644))
			require.Equal(t, name, b.get(t, path))
			got, err := b.ReadFile(ctx, path)
			require.NoError(t, err)
			require.Equal(t, name, string(got))
			fi, err := b.Stat(ctx, path)
			require.NoError(t, err)
			require.Equal(t, name, fi.Name())
			require.NoError(t, b.Symlink(ctx, name, dir+"/link"))
			link, err := b.ReadLink(ctx, dir+"/link")
			require.NoError(t, err)
			require.Equal(t, name, link)
			require.NoError(t, b.Remove(ctx, dir+"/link"))
			entries, err := b.ReadDir(ctx, dir)
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.Equal(t, name, entries[0].Name())
			require.NoError(t, b.Rename(ctx, path, dir+"/plain"))
			require.NoError(t, b.Rename(ctx, dir+"/plain", path))
			_, err = b.CopyFile(ctx, path, dir+"/copy", harnesslib.CopyOptions{})
			require.NoError(t, err)
			_, err = b.Edit(ctx, path, []harnesslib.Edit{{Old: name, New: "edited", Bytes: true}}, harnesslib.EditOptions{})
			require.NoError(t, err)
			require.Equal(t, "edited", b.get(t, path))
			require.NoError(t, b.Chmod(ctx, path, 0o600))
			require.NoError(t, b.Remove(ctx, path))
			_, err = b.Stat(ctx, path)
			require.ErrorIs(t, err, fs.ErrNotExist)
			var pe *fs.PathError
			require.ErrorAs(t, err, &pe)
			require.Equal(t, path, pe.Path)
			require.NoError(t, b.RemoveAll(ctx, dir))
		})
	}
	t.Run("refused", func(t *testing.T) {
		for _, name := range []string{"", "nul\x00", strings.Repeat("x", 256), strings.Repeat("x/", 2100)} {
			_, err := b.ReadFile(ctx, name)
			require.Error(t, err)
			require.Error(t, b.WriteFile(ctx, name, nil, 0o644))
			require.Error(t, b.Mkdir(ctx, name, 0o755))
		}
		for _, name := range []string{"/", ".", "..", "./", "../", "/.", "/..", "x/..", "//"} {
			require.ErrorIs(t, b.RemoveAll(ctx, name), fs.ErrInvalid, name)
		}
	})
	t.Run("a file at the longest path", func(t *testing.T) {
		dir := b.dir
		for len(dir) < 4095-2*202 {
			dir += "/" + strings.Repeat("d", 200)
		}
		dir += "/" + strings.Repeat("e", 4095-3-len(dir))
		require.NoError(t, b.MkdirAll(ctx, dir, 0o755))
		path := dir + "/f" // 4095 bytes: no room for the name of a temporary file beside it
		require.Len(t, path, 4095)
		require.NoError(t, b.WriteFile(ctx, path, []byte("x"), 0o644))
		got, err := b.ReadFile(ctx, path)
		require.NoError(t, err)
		require.Equal(t, "x", string(got))
	})
}

func TestC57NotRegular(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, syscall.Mkfifo(b.path("fifo"), 0o644))
	short := t.TempDir() // a socket's path has at most 107 bytes
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", short+"/s")
	require.NoError(t, err)
	defer func() { _ = l.Close() }() // nobody connects
	require.NoError(t, os.Mkdir(b.path("dir"), 0o755))
	for name, want := range map[string]error{
		"fifo": harnesslib.ErrNotRegular, short + "/s": harnesslib.ErrNotRegular, "/dev/zero": harnesslib.ErrNotRegular,
		"/dev/tty": nil, "dir": syscall.EISDIR,
	} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			check := func(err error) {
				t.Helper()
				if want == nil { // the error depends on whether there is a terminal
					require.Error(t, err)
				} else {
					require.ErrorIs(t, err, want)
				}
			}
			_, err := b.ReadFile(ctx, name)
			check(err)
			_, err = b.Hash(ctx, name)
			check(err)
			_, _, err = b.MIMEType(ctx, name)
			check(err)
			check(b.WriteFile(ctx, name, []byte("x"), 0o644))
			check(b.AppendFile(ctx, name, []byte("x"), 0o644))
			_, err = b.CopyFile(ctx, name, "copy", harnesslib.CopyOptions{})
			check(err)
			_, err = b.Edit(ctx, name, []harnesslib.Edit{{Old: "a", New: "b"}}, harnesslib.EditOptions{})
			check(err)
			_, err = b.Stat(ctx, name)
			require.NoError(t, err)
		})
	}
	t.Run("a sparse file of 3 GB", func(t *testing.T) {
		f, err := os.Create(b.path("sparse"))
		require.NoError(t, err)
		require.NoError(t, f.Truncate(3<<30))
		_, err = f.WriteAt([]byte("end"), 3<<30-3)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		_, err = b.ReadFile(ctx, "sparse")
		require.ErrorIs(t, err, harnesslib.ErrTooLarge)
		require.ErrorContains(t, err, "3221225472 bytes, the bound is 1073741824")
		got, err := b.ReadRange(ctx, "sparse", 3<<30-5, 1000)
		require.NoError(t, err)
		require.Equal(t, "\x00\x00end", string(got))
		_, err = b.Edit(ctx, "sparse", []harnesslib.Edit{{Old: "end", New: "x"}}, harnesslib.EditOptions{})
		require.ErrorIs(t, err, harnesslib.ErrTooLarge)
		results, err := b.Batch(ctx, harnesslib.ReadOp("sparse", 0, 0))
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, harnesslib.ErrTooLarge)
		// A download that the caller gives up ends at the worker, too: its slot comes back.
		giveUp, stop := context.WithCancelCause(ctx)
		err = b.CopyFrom(giveUp, "sparse", writerFunc(func(p []byte) (int, error) { stop(errSource); return len(p), nil }))
		require.ErrorIs(t, err, errSource)
	})
	t.Run("files that do not tell their length", func(t *testing.T) {
		want, err := os.ReadFile("/proc/version")
		require.NoError(t, err)
		got, err := b.ReadFile(ctx, "/proc/version")
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
		got, err = b.ReadRange(ctx, "/proc/version", 2, 3)
		require.NoError(t, err)
		require.Equal(t, string(want[2:5]), string(got))
		n, err := b.CopyFile(ctx, "/proc/version", "version", harnesslib.CopyOptions{})
		require.NoError(t, err)
		require.Equal(t, int64(len(want)), n)
		// Over one message: whole too.
		got, err = b.ReadFile(ctx, "/proc/kallsyms")
		if err == nil {
			require.True(t, len(got) < 256<<10 || got[len(got)-1] == '\n', "%d bytes", len(got))
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestC58ParallelWrites(t *testing.T) {
	b := newFilesBox(t, nil)
	var wg sync.WaitGroup
	errs := make([]error, 100)
	for i := range errs {
		wg.Go(func() {
			path := fmt.Sprintf("new/tree/%d/%d/file", i%3, i)
			_, errs[i] = b.Write(t.Context(), path, fmt.Append(nil, i), harnesslib.WriteOptions{Parents: true})
		})
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), b.get(t, fmt.Sprintf("new/tree/%d/%d/file", i%3, i)))
	}
}

func TestC65LargeDirectory(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	n := 100_000
	require.NoError(t, os.Mkdir(b.path("big"), 0o755))
	for i := range n {
		require.NoError(t, os.Symlink("x", b.path(fmt.Sprintf("big/%06d", i)))) // cheaper than files
	}
	i := 0
	for e, err := range b.Entries(ctx, "big") {
		require.NoError(t, err)
		if e.Name() != fmt.Sprintf("%06d", i) {
			require.Equal(t, fmt.Sprintf("%06d", i), e.Name())
		}
		i++
	}
	require.Equal(t, n, i)
	t.Run("entries vanish meanwhile", func(t *testing.T) {
		seen := 0
		for e, err := range b.Entries(ctx, "big") {
			require.NoError(t, err)
			if seen == 0 { // the whole second page, and what is behind it in part
				for i := 10_000; i < 25_000; i++ {
					require.NoError(t, os.Remove(b.path(fmt.Sprintf("big/%06d", i))))
				}
			}
			require.False(t, e.Name() >= "010000" && e.Name() < "025000", e.Name())
			seen++
		}
		require.Equal(t, n-15_000, seen)
	})
	t.Run("break ends it", func(t *testing.T) {
		for _, err := range b.Entries(ctx, "big") {
			require.NoError(t, err)
			break
		}
	})
	results, err := b.Batch(ctx, harnesslib.ListOp("big", 7))
	require.NoError(t, err)
	require.Len(t, results[0].Entries, 7)
	require.True(t, results[0].More)
}

func TestC66Exact(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	for name, content := range map[string]string{
		"empty": "", "no final newline": "a\nb", "newline only": "\n", "nul": "\x00\x00", "crlf": "a\r\nb\r",
		"inline bound": strings.Repeat("i", 256<<10), "over the inline bound": strings.Repeat("i", 256<<10+1),
		"inline write bound": strings.Repeat("i", 512<<10), "large": strings.Repeat("0123456789abcdef", 200_000),
	} {
		t.Run(name, func(t *testing.T) {
			for _, write := range []func() error{
				func() error { return b.WriteFile(ctx, "f", []byte(content), 0o644) },
				func() error { return b.CopyTo(ctx, "f", strings.NewReader(content), 0o644) },
			} {
				require.NoError(t, write())
				require.True(t, content == b.get(t, "f"))
				got, err := b.ReadFile(ctx, "f")
				require.NoError(t, err)
				require.NotNil(t, got)
				require.True(t, content == string(got))
				var w bytes.Buffer
				require.NoError(t, b.CopyFrom(ctx, "f", &w))
				require.True(t, content == w.String())
				sum, err := b.Hash(ctx, "f")
				require.NoError(t, err)
				require.Equal(t, sha256.Sum256([]byte(content)), sum)
			}
			require.NoError(t, b.WriteFile(ctx, "f", nil, 0o644)) // make it empty
			require.Empty(t, b.get(t, "f"))
		})
	}
	t.Run("parts", func(t *testing.T) {
		b.put(t, "f", "0123456789", 0o644)
		for _, c := range []struct {
			offset, length int64
			want           string
		}{{0, 1, "0"}, {3, 4, "3456"}, {8, 100, "89"}, {10, 1, ""}, {1000, 1, ""}} {
			got, err := b.ReadRange(ctx, "f", c.offset, c.length)
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
			sum, err := b.HashRange(ctx, "f", c.offset, c.length)
			require.NoError(t, err)
			require.Equal(t, sha256.Sum256([]byte(c.want)), sum)
		}
		_, err := b.ReadRange(ctx, "f", -1, 1)
		require.ErrorIs(t, err, fs.ErrInvalid)
	})
	t.Run("copy", func(t *testing.T) {
		for _, size := range []int{0, 1, 5 << 20} {
			b.put(t, "src", strings.Repeat("c", size), 0o751)
			n, err := b.CopyFile(ctx, "src", "deep/er/dst", harnesslib.CopyOptions{Parents: true})
			require.NoError(t, err)
			require.Equal(t, int64(size), n)
			require.Equal(t, b.get(t, "src"), b.get(t, "deep/er/dst"))
			fi, err := os.Stat(b.path("deep/er/dst"))
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o751), fi.Mode())
			_, err = b.CopyFile(ctx, "src", "deep/er/dst", harnesslib.CopyOptions{NoReplace: true})
			require.ErrorIs(t, err, fs.ErrExist)
		}
	})
}

func TestFilesRenameAndChmod(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	b.put(t, "a", "A", 0o644)
	b.put(t, "b", "B", 0o644)
	require.ErrorIs(t, b.RenameNew(ctx, "a", "b"), fs.ErrExist)
	require.ErrorIs(t, b.Rename(ctx, "absent", "b"), fs.ErrNotExist)
	require.ErrorIs(t, b.Rename(ctx, "a", "no/dir"), fs.ErrNotExist)
	require.NoError(t, b.RenameNew(ctx, "a", "c"))
	require.NoError(t, b.Rename(ctx, "c", "b"))
	require.Equal(t, "A", b.get(t, "b"))
	require.NoError(t, b.Mkdir(ctx, "d", 0o755))
	b.put(t, "full/x", "", 0o644)
	require.NoError(t, b.Rename(ctx, "d/", "e/"))
	err := b.Rename(ctx, "e", "full")
	require.ErrorIs(t, err, syscall.ENOTEMPTY)
	require.ErrorIs(t, b.Rename(ctx, "b/", "z"), syscall.ENOTDIR)
	require.NoError(t, os.Symlink("b", b.path("l")))
	require.NoError(t, b.Rename(ctx, "l", "l2")) // the link itself
	link, err := b.ReadLink(ctx, "l2")
	require.NoError(t, err)
	require.Equal(t, "b", link)
	_, err = b.ReadLink(ctx, "b")
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorIs(t, b.Symlink(ctx, "x", "b"), fs.ErrExist)
	require.NoError(t, b.Chmod(ctx, "l2", 0o4711|fs.ModeSetuid))
	fi, err := b.Stat(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, 0o711|fs.ModeSetuid, fi.Mode())
}

func TestFilesMIME(t *testing.T) {
	b := newFilesBox(t, nil)
	for content, want := range map[string]string{
		"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR": "image/png", "\xff\xd8\xff\xe0": "image/jpeg", "GIF89a": "image/gif",
		"RIFF\x00\x00\x00\x00WEBPVP8 ": "image/webp", "plain": "text/plain; charset=utf-8", "\x7fELF\x02\x01\x01": "application/x-elf",
		"\x00\x01\x02": "application/octet-stream", "": "text/plain",
	} {
		b.put(t, "f.wrong", content, 0o644)
		got, text, err := b.MIMEType(t.Context(), "f.wrong")
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, strings.HasPrefix(want, "text/"), text)
	}
}

func TestFilesBatch(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	b.put(t, "a", "AAA", 0o644)
	require.NoError(t, os.Symlink("a", b.path("l")))
	results, err := b.Batch(ctx, harnesslib.StatOp("l"), harnesslib.LstatOp("l"), harnesslib.ReadOp("a", 1, 1), harnesslib.ReadOp("absent", 0, 0),
		harnesslib.ListOp(".", 0), harnesslib.ReadLinkOp("l"), harnesslib.HashOp("a", 0, 0), harnesslib.MIMEOp("a"), harnesslib.ReadOp("", 0, 0))
	require.NoError(t, err)
	require.Equal(t, int64(3), results[0].Info.Size())
	require.Equal(t, fs.ModeSymlink, results[1].Info.Mode().Type())
	require.Equal(t, "A", string(results[2].Data))
	require.ErrorIs(t, results[3].Err, fs.ErrNotExist)
	require.Len(t, results[4].Entries, 2)
	require.Equal(t, "a", results[5].Text)
	require.Equal(t, sha256.Sum256([]byte("AAA")), results[6].SHA256)
	require.True(t, results[7].IsText)
	require.ErrorIs(t, results[8].Err, fs.ErrInvalid)
	_, err = b.Batch(ctx)
	require.ErrorContains(t, err, "0 operations: want 1 to 4096")
	t.Run("bounded", func(t *testing.T) {
		b.put(t, "big", strings.Repeat("b", 256<<10), 0o644)
		ops := make([]harnesslib.BatchOp, 100)
		for i := range ops {
			ops[i] = harnesslib.ReadOp("big", 0, 0)
		}
		results, err := b.Batch(ctx, ops...)
		require.NoError(t, err)
		require.Len(t, results[0].Data, 256<<10)
		require.ErrorIs(t, results[99].Err, harnesslib.ErrTooLarge)
	})
}
