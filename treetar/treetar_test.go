package treetar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func openRoot(tb testing.TB, dir string) *os.Root {
	tb.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, root.Close()) })
	return root
}

// treeOf lists a tree: name, type, permissions, time, and text or content.
func treeOf(tb testing.TB, dir string) (lines []string) {
	tb.Helper()
	require.NoError(tb, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case e.Type() == fs.ModeSymlink:
			if text, err = os.Readlink(path); err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("%q link %q", path[len(dir):], text))
			return nil
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		lines = append(lines, fmt.Sprintf("%q %s %s %q", path[len(dir):], info.Mode(), info.ModTime().UTC().Format(time.RFC3339Nano), text))
		return nil
	}))
	return lines
}

func makeTree(tb testing.TB, dir string) {
	tb.Helper()
	when := time.Unix(1_700_000_000, 123_456_789)
	file := func(name, content string, perm fs.FileMode) {
		path := dir + "/" + name
		require.NoError(tb, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(tb, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(tb, os.Chmod(path, perm))
		require.NoError(tb, os.Chtimes(path, time.Time{}, when))
	}
	file("a", "A", 0o755)
	file("d/empty", "", 0o400)
	file("d/e/large", strings.Repeat("0123456789", 100_000), 0o644)
	file("d-e", "sorts between d and d/", 0o644)
	file("names/\xff\xfe", "no UTF-8", 0o644)
	file("names/"+strings.Repeat("x", 255), "long", 0o644)
	file("names/new\nline", "", 0o644)
	file("readonly/x", "", 0o444)
	for _, link := range [][2]string{{"../a", "d/up"}, {"d", "dirlink"}, {"nowhere", "broken"}} {
		require.NoError(tb, os.Symlink(link[0], dir+"/"+link[1]))
	}
	require.NoError(tb, os.Chmod(dir+"/readonly", 0o555))
	for _, d := range []string{"d/e", "d", "names", "readonly"} {
		require.NoError(tb, os.Chtimes(dir+"/"+d, time.Time{}, when))
	}
}

func pack(tb testing.TB, dir string, o PackOptions) ([]byte, Stats) {
	tb.Helper()
	var b bytes.Buffer
	stats, err := Pack(tb.Context(), &b, openRoot(tb, dir), o)
	require.NoError(tb, err)
	return b.Bytes(), stats
}

func TestRoundTrip(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	makeTree(t, src)
	require.NoError(t, syscall.Mkfifo(src+"/fifo", 0o644))
	archive, packed := pack(t, src, PackOptions{})
	require.Equal(t, int64(1), packed.Special)
	for range 2 { // the second time over what is there
		var bytes int64
		stats, err := Extract(t.Context(), newReader(archive), openRoot(t, dst), ExtractOptions{Progress: func(_ string, n int64) { bytes += n }})
		require.NoError(t, err)
		require.Equal(t, packed, stats)
		require.Equal(t, packed.Bytes, bytes)
		require.NoError(t, os.Remove(src+"/fifo"))
		require.Equal(t, treeOf(t, src), treeOf(t, dst))
		require.NoError(t, syscall.Mkfifo(src+"/fifo", 0o644))
	}
}

func newReader(b []byte) *bytes.Reader { return bytes.NewReader(b) }

func TestPackNames(t *testing.T) {
	src := t.TempDir()
	makeTree(t, src)
	names := []string{"d", "d/e/large", "d-e", "absent", "d/up"}
	slices.SortFunc(names, Compare)
	require.Equal(t, []string{"absent", "d", "d/e/large", "d/up", "d-e"}, names)
	archive, stats := pack(t, src, PackOptions{Names: names})
	require.Equal(t, int64(1), stats.Vanished)
	dst := t.TempDir()
	_, err := Extract(t.Context(), newReader(archive), openRoot(t, dst), ExtractOptions{})
	require.NoError(t, err)
	var got []string
	for _, l := range treeOf(t, dst) {
		got = append(got, strings.Fields(l)[0])
	}
	require.Equal(t, []string{`"/d"`, `"/d/e"`, `"/d/e/large"`, `"/d/up"`, `"/d-e"`}, got)
	_, err = Pack(t.Context(), &bytes.Buffer{}, openRoot(t, src), PackOptions{Names: []string{"../x"}})
	require.Error(t, err)
}

// archiveOf makes an archive by hand.
func archiveOf(tb testing.TB, headers ...*tar.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		require.NoError(tb, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte("x"))
			require.NoError(tb, err)
		}
	}
	require.NoError(tb, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "s", PAXRecords: map[string]string{summaryRecord: "{}"}}))
	require.NoError(tb, w.Close())
	return b.Bytes()
}

func reg(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name} }
func dir(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }

func link(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

// unsafeArchives are what a sandbox that means harm may send.
var unsafeArchives = map[string][]*tar.Header{
	"parent":                  {reg("../x")},
	"parent below":            {reg("a/../../x")},
	"parent inside":           {reg("a/../b")},
	"absolute":                {reg("/etc/x")},
	"dot":                     {reg("./x")},
	"double slash":            {reg("a//b")},
	"the root itself":         {dir("./")},
	"parent as a directory":   {dir("../")},
	"absolute link":           {link("l", "/etc")},
	"link out":                {link("l", "../x")},
	"link out from below":     {dir("d/"), link("d/l", "../../x")},
	"link with .. inside":     {dir("a/"), dir("a/b/"), link("a/b/l", "../.."), link("m", "a/b/l/../x")},
	"through a link":          {link("l", "."), reg("l/x")},
	"through a link, deeper":  {dir("d/"), link("d/l", ".."), reg("d/l/d/x")},
	"directory on a link":     {dir("d/"), link("l", "d"), dir("l/"), reg("l/x")},
	"hard link":               {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../x"}},
	"FIFO":                    {{Typeflag: tar.TypeFifo, Name: "f"}},
	"device":                  {{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3}},
	"a long name":             {reg(strings.Repeat("d/", 2100) + "x")},
	"through the user's link": {reg("userlink/x")},
}

func TestExtractRefuses(t *testing.T) {
	for name, headers := range unsafeArchives {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			require.NoError(t, os.Mkdir(outer+"/dst", 0o755))
			require.NoError(t, os.Mkdir(outer+"/elsewhere", 0o755))
			require.NoError(t, os.Symlink("../elsewhere", outer+"/dst/userlink"))
			_, err := Extract(t.Context(), newReader(archiveOf(t, headers...)), openRoot(t, outer+"/dst"), ExtractOptions{})
			var ue *UnsafeError
			require.ErrorAs(t, err, &ue)
			checkOutside(t, outer)
		})
	}
}

// checkOutside holds that nothing was made beside dst, and that no link in it leads out but the user's own.
func checkOutside(tb testing.TB, outer string) {
	tb.Helper()
	entries, err := os.ReadDir(outer)
	require.NoError(tb, err)
	for _, e := range entries {
		require.Contains(tb, []string{"dst", "elsewhere"}, e.Name())
	}
	entries, err = os.ReadDir(outer + "/elsewhere")
	require.NoError(tb, err)
	require.Empty(tb, entries)
	root := openRoot(tb, outer+"/dst")
	require.NoError(tb, filepath.WalkDir(outer+"/dst", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSymlink || e.Name() == "userlink" {
			return err
		}
		if _, err := root.Stat(strings.TrimPrefix(path, outer+"/dst/")); err != nil && strings.Contains(err.Error(), "escapes") {
			return err
		}
		return nil
	}))
}

func TestExtractPasses(t *testing.T) {
	dst := t.TempDir()
	archive := archiveOf(t, dir("a/"), dir("a/b/"), reg("a/b/f"), link("a/b/up", "../../a/b/f"), link("a/b/root", "../.."), link("l", "a/b/up"),
		&tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o4755})
	_, err := Extract(t.Context(), newReader(archive), openRoot(t, dst), ExtractOptions{})
	require.NoError(t, err)
	got, err := os.ReadFile(dst + "/l")
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
	info, err := os.Stat(dst + "/suid")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), info.Mode()) // no setuid from the other side
	t.Run("a link in a file's place is replaced, not followed", func(t *testing.T) {
		other := t.TempDir() + "/victim"
		require.NoError(t, os.WriteFile(other, []byte("safe"), 0o644))
		require.NoError(t, os.Symlink(other, dst+"/mine"))
		_, err := Extract(t.Context(), newReader(archiveOf(t, reg("mine"))), openRoot(t, dst), ExtractOptions{})
		require.NoError(t, err)
		got, err := os.ReadFile(other)
		require.NoError(t, err)
		require.Equal(t, "safe", string(got))
	})
	t.Run("refused links are told of", func(t *testing.T) {
		var refused []string
		stats, err := Extract(t.Context(), newReader(archiveOf(t, link("bad", "/etc"), reg("good"))), openRoot(t, dst), ExtractOptions{
			Refused: func(e *UnsafeError) { refused = append(refused, e.Name) },
		})
		require.NoError(t, err)
		require.Equal(t, []string{"bad"}, refused)
		require.Equal(t, int64(1), stats.Entries)
	})
	t.Run("bounds", func(t *testing.T) {
		archive := archiveOf(t, reg("1"), reg("2"), reg("3"))
		_, err := Extract(t.Context(), newReader(archive), openRoot(t, t.TempDir()), ExtractOptions{MaxEntries: 2})
		require.ErrorContains(t, err, "more than 2 entries")
		_, err = Extract(t.Context(), newReader(archive), openRoot(t, t.TempDir()), ExtractOptions{MaxBytes: 2})
		require.ErrorContains(t, err, "more than 2 bytes")
	})
	t.Run("cut off", func(t *testing.T) {
		archive := archiveOf(t, reg("1"), reg("2"))
		for _, n := range []int{0, 100, 512, 1000, 1536, 2048, len(archive) - 1024 - 600} {
			_, err := Extract(t.Context(), newReader(archive[:n]), openRoot(t, t.TempDir()), ExtractOptions{})
			require.Error(t, err, "%d of %d bytes", n, len(archive))
		}
	})
	t.Run("ended by its context", func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := Extract(ctx, newReader(archive), openRoot(t, t.TempDir()), ExtractOptions{})
		require.ErrorIs(t, err, cause)
		_, err = Pack(ctx, &bytes.Buffer{}, openRoot(t, dst), PackOptions{})
		require.ErrorIs(t, err, cause)
	})
}

func FuzzExtract(f *testing.F) {
	for _, headers := range unsafeArchives {
		f.Add(archiveOf(f, headers...))
	}
	src := f.TempDir()
	makeTree(f, src)
	archive, _ := pack(f, src, PackOptions{Names: []string{"a", "d", "d/up", "names/new\nline"}})
	f.Add(archive)
	f.Fuzz(func(t *testing.T, archive []byte) {
		outer := t.TempDir()
		require.NoError(t, os.Mkdir(outer+"/dst", 0o755))
		require.NoError(t, os.Mkdir(outer+"/elsewhere", 0o755))
		require.NoError(t, os.Symlink("../elsewhere", outer+"/dst/userlink"))
		root := openRoot(t, outer+"/dst")
		_, _ = Extract(t.Context(), newReader(archive), root, ExtractOptions{MaxBytes: 1 << 20, MaxEntries: 1000}) // what counts is what it made
		checkOutside(t, outer)
	})
}

// TestSparseFilesAreRefused takes an archive of a kilobyte that says it is a terabyte of zeros.
func TestSparseFilesAreRefused(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const records = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n30 GNU.sparse.name=some-zeros\n37 GNU.sparse.realsize=1099511627776\n"
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: 0, Mode: 0o600}))
	require.NoError(t, w.Close())
	raw := b.Bytes()
	header := func(kind byte, name string, size int) []byte {
		h := bytes.Clone(raw[:512])
		clear(h[:100])
		copy(h, name)
		copy(h[124:136], fmt.Sprintf("%011o\x00", size))
		h[156] = kind
		copy(h[148:156], "        ")
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
		return h
	}
	pad := func(s string) []byte { return append([]byte(s), make([]byte, 512-len(s))...) }
	archive := slices.Concat(header('x', "pax", len(records)), pad(records), header('0', "x", 512), pad("0\n"), make([]byte, 1024))
	_, err := Extract(t.Context(), bytes.NewReader(archive), openRoot(t, t.TempDir()), ExtractOptions{})
	var unsafe *UnsafeError
	require.ErrorAs(t, err, &unsafe)
	require.Contains(t, unsafe.Rule, "sparse")
}
