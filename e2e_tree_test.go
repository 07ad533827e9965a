package sandbus_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// pattern is a source of any size that needs no disk. The length of its block is prime, so that a shift shows.
type pattern struct {
	size int64
	peek func(offset int64) // called before each read; nil for nobody
}

var patternBlock = func() []byte {
	block := make([]byte, 1_048_573)
	for i := range block {
		block[i] = byte(i>>12) ^ byte(i*7)
	}
	return block
}()

func (p *pattern) ReadAt(b []byte, offset int64) (int, error) {
	if p.peek != nil {
		p.peek(offset)
	}
	n := int(min(int64(len(b)), p.size-offset))
	for at := 0; at < n; {
		at += copy(b[at:n], patternBlock[(offset+int64(at))%int64(len(patternBlock)):])
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (p *pattern) sum(tb testing.TB) (sum [sha256.Size]byte) {
	tb.Helper()
	h := sha256.New()
	_, err := io.Copy(h, io.NewSectionReader(&pattern{size: p.size}, 0, p.size))
	require.NoError(tb, err)
	copy(sum[:], h.Sum(nil))
	return sum
}

// memory watches the heap, of harness, hub and worker together.
type memory struct{ start, peak uint64 }

func (m *memory) look() {
	var s runtime.MemStats
	runtime.GC() // what lives counts, not when it was looked for
	runtime.ReadMemStats(&s)
	if m.start == 0 {
		m.start = s.HeapInuse
	}
	m.peak = max(m.peak, s.HeapInuse)
}

func TestC61UploadResumes(t *testing.T) {
	const size = 1 << 30
	b := newFilesBox(t, nil)
	ctx, test := t.Context(), t
	t.Run("the worker is replaced in the middle", func(t *testing.T) {
		var mem memory
		mem.look()
		replaced := make(chan struct{})
		src := &pattern{size: size}
		last := int64(0)
		src.peek = func(offset int64) {
			if offset-last > 64<<20 {
				last = offset
				mem.look()
			}
			if offset >= size/2 {
				select {
				case <-replaced:
				default:
					close(replaced)
					b.stopWorker()
					b.startWorker(test)
				}
			}
		}
		resumedAt := []int64{}
		before := int64(-1)
		err := b.Upload(ctx, "big", src, size, harnesslib.UploadOptions{Perm: 0o640, NoSync: true, Progress: func(done, total int64) {
			require.Equal(t, int64(size), total)
			if done <= before {
				resumedAt = append(resumedAt, done)
			}
			before = done
		}})
		require.NoError(t, err)
		require.Len(t, resumedAt, 1)
		require.Greater(t, resumedAt[0], int64(size/2-8<<20)) // no more than what was on its way
		sum, err := b.Hash(ctx, "big")
		require.NoError(t, err)
		require.Equal(t, src.sum(t), sum)
		require.Less(t, mem.peak-mem.start, uint64(64<<20))
		info, err := b.Stat(ctx, "big")
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o640), info.Mode())
	})
	t.Run("and so does a download", func(t *testing.T) {
		src := &pattern{size: size}
		to, err := os.Create(filepath.Join(t.TempDir(), "down"))
		require.NoError(t, err)
		defer func() { require.NoError(t, to.Close()) }()
		giveUp, cancel := context.WithCancelCause(ctx)
		err = b.Download(giveUp, "big", to, harnesslib.DownloadOptions{Progress: func(done, _ int64) {
			if done > size/2 {
				cancel(errSource)
			}
		}})
		require.ErrorIs(t, err, errSource)
		first := int64(-1)
		require.NoError(t, b.Download(ctx, "big", to, harnesslib.DownloadOptions{Progress: func(done, _ int64) {
			if first < 0 {
				first = done
			}
		}}))
		require.Greater(t, first, int64(size/2))
		h := sha256.New()
		_, err = to.Seek(0, io.SeekStart)
		require.NoError(t, err)
		_, err = io.Copy(h, to)
		require.NoError(t, err)
		require.Equal(t, src.sum(t), [sha256.Size]byte(h.Sum(nil)))
	})
	t.Run("the harness is replaced in the middle", func(t *testing.T) {
		const size = 32 << 20
		giveUp, cancel := context.WithCancelCause(ctx)
		src := &pattern{size: size}
		src.peek = func(offset int64) {
			if offset > size/2 {
				cancel(errSource)
			}
		}
		err := b.Upload(giveUp, "deep/er/file", src, size, harnesslib.UploadOptions{ID: "u1", Parents: true})
		require.ErrorIs(t, err, errSource)
		require.NoFileExists(t, b.path("deep/er/file"))
		// Another harness, the same ID: only what is missing is sent.
		first, when := int64(-1), time.Unix(1_600_000_000, 5)
		err = b.harness(t, "second").Upload(ctx, "deep/er/file", &pattern{size: size}, size, harnesslib.UploadOptions{
			ID: "u1", ModTime: when, Progress: func(done, _ int64) {
				if first < 0 {
					first = done
				}
			},
		})
		require.NoError(t, err)
		require.Greater(t, first, int64(size/4))
		sum, err := b.Hash(ctx, "deep/er/file")
		require.NoError(t, err)
		require.Equal(t, src.sum(t), sum)
		info, err := b.Stat(ctx, "deep/er/file")
		require.NoError(t, err)
		require.True(t, info.ModTime().Equal(when))
		names, err := filepath.Glob(b.path("deep/er/.sandbus*"))
		require.NoError(t, err)
		require.Empty(t, names)
	})
	t.Run("what was kept under the ID is another's", func(t *testing.T) {
		b.put(t, ".sandbus-upload-u2", "other bytes", 0o644)
		src := &pattern{size: 1000}
		require.NoError(t, b.Upload(ctx, "f", src, 1000, harnesslib.UploadOptions{ID: "u2"}))
		sum, err := b.Hash(ctx, "f")
		require.NoError(t, err)
		require.Equal(t, src.sum(t), sum)
	})
	t.Run("refused", func(t *testing.T) {
		require.NoError(t, b.Upload(ctx, "empty", &pattern{}, 0, harnesslib.UploadOptions{}))
		require.Empty(t, b.get(t, "empty"))
		require.ErrorIs(t, b.Upload(ctx, "f", &pattern{size: 5}, 10, harnesslib.UploadOptions{}), io.ErrUnexpectedEOF)
		require.ErrorIs(t, b.Upload(ctx, "f", &pattern{size: 5}, 5, harnesslib.UploadOptions{ID: "../x"}), fs.ErrInvalid)
		require.ErrorIs(t, b.Upload(ctx, "deep", &pattern{size: 5}, 5, harnesslib.UploadOptions{}), syscall.EISDIR)
		require.ErrorIs(t, b.Upload(ctx, "no/dir", &pattern{size: 5}, 5, harnesslib.UploadOptions{}), fs.ErrNotExist)
	})
}

// evilWorker serves fs.pack with archives that no honest worker makes.
func evilWorker(t *testing.T, b *filesBox, archive []byte) {
	t.Helper()
	conn := b.bus.Connect(t, bus.RoleSandbox, "evil")
	target := bus.Target{Zone: bus.DefaultZone, Sandbox: "evil", Instance: bus.NewInstanceID()}
	srv := bus.NewServer(conn, target, nil)
	srv.HandleStream("fs.pack", func(req *bus.Request) {
		_, err := req.Decode(&sandbusv1.PackRequest{})
		require.NoError(t, err)
		out, err := req.Outgoing(0)
		require.NoError(t, err)
		started, err := proto.Marshal(&sandbusv1.PackResponse{})
		require.NoError(t, err)
		if out.Write(req.Context(), bus.FrameStarted, started) == nil && out.Write(req.Context(), bus.FrameData, archive) == nil {
			sum := sha256.Sum256(archive)
			req.EndStream(out, &sandbusv1.StreamEnd{StdoutBytes: int64(len(archive)), Sha256: sum[:]})
		}
	})
	require.NoError(t, srv.Start())
	ready := make(chan struct{})
	life, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	announcer := &bus.Announcer{Conn: conn, Target: target, Hello: &sandbusv1.Hello{Slots: 1, Arch: "amd64", Os: "linux", Version: "evil", Trust: "untrusted"}, Ready: func() { close(ready) }, Beat: func(*sandbusv1.Beat) {}}
	ended := make(chan error, 1)
	go func() { ended <- announcer.Run(life) }()
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		require.NoError(t, <-ended)
		stop, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		srv.Stop(stop)
	})
	select {
	case <-ready:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the registrar did not accept the hello")
	}
}

func TestC62UnsafeArchive(t *testing.T) {
	for name, headers := range evilArchives() {
		t.Run(name, func(t *testing.T) {
			b := newFilesBox(t, nil)
			evilWorker(t, b, headers)
			sb, err := b.hub.Sandbox("evil")
			require.NoError(t, err)
			outer := t.TempDir()
			dst := outer + "/dst"
			_, err = sb.CopyOut(t.Context(), "tree", dst, harnesslib.TreeOptions{})
			var ue *harnesslib.UnsafeEntryError
			require.ErrorAs(t, err, &ue)
			entries, err := os.ReadDir(outer)
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.NoError(t, filepath.WalkDir(dst, func(_ string, e fs.DirEntry, err error) error {
				if err == nil && e.Type()&fs.ModeSymlink != 0 && e.Name() != "l" {
					err = fmt.Errorf("link %s", e.Name())
				}
				return err
			}))
		})
	}
	t.Run("a real tree with a link out", func(t *testing.T) {
		b := newFilesBox(t, nil)
		b.put(t, "tree/f", "x", 0o644)
		require.NoError(t, os.Symlink("/etc/passwd", b.path("tree/out")))
		_, err := b.CopyOut(t.Context(), "tree", t.TempDir(), harnesslib.TreeOptions{})
		var ue *harnesslib.UnsafeEntryError
		require.ErrorAs(t, err, &ue)
		require.ErrorContains(t, err, `archive entry "out" refused: a link to an absolute path: "/etc/passwd"`)
		dst := t.TempDir()
		var refused []string
		res, err := b.CopyOut(t.Context(), "tree", dst, harnesslib.TreeOptions{Refused: func(e *harnesslib.UnsafeEntryError) { refused = append(refused, e.Name) }})
		require.NoError(t, err)
		require.Equal(t, []string{"out"}, refused)
		require.Equal(t, int64(1), res.Refused)
		require.FileExists(t, dst+"/f")
	})
}

func TestFilesCopyTree(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	src := t.TempDir()
	write := func(name, content string, perm fs.FileMode) {
		require.NoError(t, os.MkdirAll(filepath.Dir(src+"/"+name), 0o755))
		require.NoError(t, os.WriteFile(src+"/"+name, []byte(content), 0o600))
		require.NoError(t, os.Chmod(src+"/"+name, perm))
	}
	for i := range 300 {
		write(fmt.Sprintf("many/%d/%d", i%7, i), fmt.Sprint(i), 0o644)
	}
	write("exec", "#!/bin/sh\n", 0o755)
	write("large", strings.Repeat("l", 3<<20), 0o644)
	write("names/\xff", "", 0o644)
	write("names-", "", 0o644)
	write("names/new\nline", "x", 0o600)
	require.NoError(t, os.Symlink("../exec", src+"/many/link"))
	require.NoError(t, os.Symlink("/absolute", src+"/names/out")) // into the sandbox it may go
	require.NoError(t, os.Mkdir(src+"/emptydir", 0o700))

	var last harnesslib.TreeProgress
	o := harnesslib.TreeOptions{SkipEqual: true, Progress: func(p harnesslib.TreeProgress) { last = p }}
	res, err := b.CopyIn(ctx, src, "new/tree", o)
	require.NoError(t, err)
	require.Equal(t, last.TotalBytes, last.Bytes)
	require.Equal(t, last.TotalEntries, last.Entries)
	require.Equal(t, res.Entries, last.Entries)
	require.Equal(t, res.Bytes, last.Bytes)
	sameTree(t, src, b.path("new/tree"))

	t.Run("what is equal is skipped", func(t *testing.T) {
		again, err := b.CopyIn(ctx, src, "new/tree", o)
		require.NoError(t, err)
		require.Equal(t, harnesslib.TreeResult{Equal: res.Entries}, again)
		write("exec", "#!/bin/bash\n", 0o755)
		write("many/1/1", "x", 0o644) // the same size
		again, err = b.CopyIn(ctx, src, "new/tree", o)
		require.NoError(t, err)
		require.Equal(t, harnesslib.TreeResult{Entries: 2, Bytes: 13, Equal: res.Entries - 2}, again)
		sameTree(t, src, b.path("new/tree"))
		// Only the time differs: the checksum tells.
		require.NoError(t, os.Chtimes(src+"/large", time.Time{}, time.Unix(1, 0)))
		byHash := o
		byHash.Checksum = true
		again, err = b.CopyIn(ctx, src, "new/tree", byHash)
		require.NoError(t, err)
		require.Equal(t, harnesslib.TreeResult{Equal: res.Entries}, again)
	})
	t.Run("and out again", func(t *testing.T) {
		require.NoError(t, os.Remove(src+"/names/out"))
		require.NoError(t, os.Remove(b.path("new/tree/names/out")))
		for _, o := range []harnesslib.TreeOptions{{}, o} {
			dst := t.TempDir() + "/made"
			out, err := b.CopyOut(ctx, "new/tree", dst, o)
			require.NoError(t, err)
			require.Equal(t, res.Entries-1, out.Entries)
			sameTree(t, b.path("new/tree"), dst)
			require.NoError(t, os.WriteFile(dst+"/exec", nil, 0o755))
			out, err = b.CopyOut(ctx, "new/tree", dst, harnesslib.TreeOptions{SkipEqual: true})
			require.NoError(t, err)
			require.Equal(t, harnesslib.TreeResult{Entries: 1, Bytes: 12, Equal: res.Entries - 2}, out)
		}
	})
	t.Run("errors", func(t *testing.T) {
		_, err := b.CopyOut(ctx, "absent", t.TempDir(), harnesslib.TreeOptions{})
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = b.CopyOut(ctx, "new/tree/exec", t.TempDir(), harnesslib.TreeOptions{})
		require.ErrorIs(t, err, syscall.ENOTDIR)
		_, err = b.CopyIn(ctx, src, "new/tree/exec", harnesslib.TreeOptions{})
		require.ErrorIs(t, err, syscall.ENOTDIR)
		_, err = b.CopyIn(ctx, src+"/absent", "x", harnesslib.TreeOptions{})
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = b.CopyOut(ctx, "new/tree", t.TempDir(), harnesslib.TreeOptions{MaxBytes: 1000})
		require.ErrorContains(t, err, "more than 1000 bytes")
	})
}

// sameTree compares names, types, permissions, times of files, and content.
func sameTree(tb testing.TB, want, got string) {
	tb.Helper()
	list := func(dir string) (lines []string) {
		require.NoError(tb, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || path == dir {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			line := fmt.Sprintf("%q %s", path[len(dir):], info.Mode())
			switch {
			case e.Type().IsRegular():
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %d %x", info.ModTime().UnixNano(), sha256.Sum256(content))
			case e.Type() == fs.ModeSymlink:
				text, err := os.Readlink(path)
				if err != nil {
					return err
				}
				line += " " + text
			}
			lines = append(lines, line)
			return nil
		}))
		return lines
	}
	require.Equal(tb, list(want), list(got))
}

// evilArchives are what a sandbox that means harm may send; treetar's own test has more of them.
func evilArchives() map[string][]byte {
	one := func(headers ...*tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o755
			_ = w.WriteHeader(h) // into memory
		}
		_ = w.Close() // likewise
		return b.Bytes()
	}
	return map[string][]byte{
		"../x":           one(&tar.Header{Typeflag: tar.TypeReg, Name: "../x"}),
		"/etc/x":         one(&tar.Header{Typeflag: tar.TypeReg, Name: "/etc/sandbus-c62"}),
		"a link out":     one(&tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "../../etc"}),
		"absolute link":  one(&tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "/etc"}),
		"through a link": one(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "."}, &tar.Header{Typeflag: tar.TypeReg, Name: "l/x"}),
		"hard link":      one(&tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}),
		"device":         one(&tar.Header{Typeflag: tar.TypeBlock, Name: "sda"}),
	}
}

func TestFilesDownloadOfAChangingFile(t *testing.T) {
	b := newFilesBox(t, nil)
	b.put(t, "log", strings.Repeat("x", 4<<20), 0o644)
	to, err := os.Create(filepath.Join(t.TempDir(), "down"))
	require.NoError(t, err)
	defer func() { require.NoError(t, to.Close()) }()
	once := false
	err = b.Download(t.Context(), "log", to, harnesslib.DownloadOptions{Progress: func(done, _ int64) {
		if !once {
			once = true
			b.put(t, "log", strings.Repeat("y", 4<<20), 0o644)
		}
	}})
	require.ErrorIs(t, err, harnesslib.ErrConflict)
	// A local file that is no beginning of it is dropped.
	_, err = to.WriteAt([]byte("zzz"), 0)
	require.NoError(t, err)
	require.NoError(t, b.Download(t.Context(), "log", to, harnesslib.DownloadOptions{}))
	got, err := os.ReadFile(to.Name())
	require.NoError(t, err)
	require.True(t, strings.Repeat("y", 4<<20) == string(got))
}
