package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
)

var fileCases = []Case{
	{"write and read", writeAndRead},
	{"write keeps", writeKeeps},
	{"append", appendFile},
	{"copy", copyFiles},
	{"list", list},
	{"stat", statFiles},
	{"make directories", makeDirs},
	{"remove", removeFiles},
	{"rename", renameFiles},
	{"mode", mode},
	{"links", links},
	{"hash", hashFiles},
	{"names", names},
	{"relative paths", relativePaths},
	{"files of an aborted context", filesAborted},
}

func (t *T) write(name string, data []byte) {
	require.NoError(t, t.Files().WriteFile(t.ctx, name, data, 0o644), "write %q", name)
}

func (t *T) read(name string) []byte {
	b, err := t.Files().ReadFile(t.ctx, name)
	require.NoError(t, err, "read %q", name)
	return b
}

// same compares contents, which may be long.
func same(t *T, want, got []byte, what string) {
	require.Equal(t, sha256.Sum256(want), sha256.Sum256(got), "%s: %d bytes, want %d", what, len(got), len(want))
}

func writeAndRead(t *T) {
	dir := t.dir()
	for what, want := range map[string][]byte{
		"bytes": allBytes(), "empty": {}, "newlines": []byte("\n\n\n"), "text": []byte("it's 100% \\ \\n $HOME `x` \"q\"\n\ttab"), "no newline": []byte("x"), "nul": {0},
		"percent": []byte("%s%d%"), "backslash and nul": []byte("\\0101\x00\\\\\x00\n"), "dash": []byte("-n"), "large": bytes.Repeat(allBytes(), 12),
	} {
		t.write(dir+"/f", want)
		same(t, want, t.read(dir+"/f"), what)
	}
	entries, err := t.Files().ReadDir(t.ctx, dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "writes leave other files behind")
}

func writeKeeps(t *T) {
	dir := t.dir()
	f := t.Files()
	require.NoError(t, f.WriteFile(t.ctx, dir+"/mode", []byte("a"), 0o640))
	perm := func(name string) fs.FileMode {
		info, err := f.Stat(t.ctx, name)
		require.NoError(t, err)
		return info.Mode()
	}
	require.Equal(t, fs.FileMode(0o640), perm(dir+"/mode"))
	require.NoError(t, f.Chmod(t.ctx, dir+"/mode", 0o751))
	for _, size := range []int{1, 300_000} {
		require.NoError(t, f.WriteFile(t.ctx, dir+"/mode", make([]byte, size), 0o600))
		require.Equal(t, fs.FileMode(0o751), perm(dir+"/mode"), "a file that is replaced keeps its mode")
	}
	t.write(dir+"/target", []byte("old"))
	require.NoError(t, f.Symlink(t.ctx, "target", dir+"/link"))
	require.NoError(t, f.Symlink(t.ctx, dir+"/link", dir+"/link2"))
	t.write(dir+"/link2", []byte("new"))
	require.Equal(t, "new", string(t.read(dir+"/target")))
	info, err := f.Lstat(t.ctx, dir+"/link2")
	require.NoError(t, err)
	require.Equal(t, fs.ModeSymlink, info.Mode().Type(), "a link stays a link")
	reader := t.another()
	watched := make(chan error, 1)
	stop, cancel := context.WithCancelCause(t.ctx)
	go func() { // never half a file
		defer close(watched)
		for stop.Err() == nil {
			b, err := reader.Files().ReadFile(t.ctx, dir+"/whole")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				watched <- err
				return
			}
			if n := bytes.Count(b, []byte{b0(b)}); n != len(b) || len(b)%5000 != 0 {
				watched <- errors.New("a reader saw half a write")
				return
			}
		}
	}()
	for i := range 10 {
		t.write(dir+"/whole", bytes.Repeat([]byte{byte('a' + i)}, 5000*(i+1)*4))
	}
	cancel(errEnough)
	require.NoError(t, <-watched)
}

func b0(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

func appendFile(t *T) {
	name := t.dir() + "/f"
	want := []byte{}
	for _, piece := range [][]byte{[]byte("one\n"), {0, 255, '\\'}, {}, bytes.Repeat([]byte("large"), 40_000), []byte("end")} {
		require.NoError(t, t.Files().AppendFile(t.ctx, name, piece, 0o600))
		want = append(want, piece...)
		same(t, want, t.read(name), "append")
	}
	info, err := t.Files().Stat(t.ctx, name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
}

func copyFiles(t *T) {
	dir := t.dir()
	f := t.Files()
	for _, size := range []int{0, 1, 65_536, 65_537, 262_144, 262_145, 3 << 20} {
		want := bytes.Repeat(allBytes(), size/(1<<16)+1)[:size]
		require.NoError(t, f.CopyTo(t.ctx, dir+"/f", bytes.NewReader(want), 0o644))
		var got bytes.Buffer
		require.NoError(t, f.CopyFrom(t.ctx, dir+"/f", &got))
		same(t, want, got.Bytes(), "copy")
	}
	t.write(dir+"/kept", []byte("kept"))
	err := f.CopyTo(t.ctx, dir+"/kept", io.MultiReader(bytes.NewReader(make([]byte, 200_000)), iotest.ErrReader(errEnough)), 0o644)
	require.ErrorIs(t, err, errEnough)
	require.Equal(t, "kept", string(t.read(dir+"/kept")), "a source that failed changed the file")
	require.ErrorIs(t, f.CopyFrom(t.ctx, dir+"/f", brokenWriter{}), errWriter)
	require.ErrorIs(t, f.CopyFrom(t.ctx, dir+"/absent", io.Discard), fs.ErrNotExist)
	entries, err := f.ReadDir(t.ctx, dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "a copy that failed leaves other files behind")
}

func list(t *T) {
	dir := t.dir()
	f := t.Files()
	entries, err := f.ReadDir(t.ctx, dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	t.script("cd " + dir + " && mkdir d .d && echo abc >f && : >.h && : >..g && ln -s f l && ln -s nowhere broken && mkfifo p && i=0; while [ $i -lt 300 ]; do : >d/n$i; i=$((i+1)); done")
	entries, err = f.ReadDir(t.ctx, dir)
	require.NoError(t, err)
	types := map[string]fs.FileMode{
		"..g": 0, ".d": fs.ModeDir, ".h": 0, "broken": fs.ModeSymlink, "d": fs.ModeDir, "f": 0, "l": fs.ModeSymlink, "p": fs.ModeNamedPipe,
	}
	require.Len(t, entries, len(types))
	last := ""
	for _, e := range entries {
		require.Less(t, last, e.Name(), "the order of the names' bytes")
		last = e.Name()
		want, ok := types[e.Name()]
		require.True(t, ok, e.Name())
		require.Equal(t, want, e.Type(), e.Name())
		info, err := e.Info()
		require.NoError(t, err)
		if e.Name() == "f" {
			require.Equal(t, int64(4), info.Size())
		}
	}
	entries, err = f.ReadDir(t.ctx, dir+"/d")
	require.NoError(t, err)
	require.Len(t, entries, 300)
}

func statFiles(t *T) {
	dir := t.dir()
	f := t.Files()
	t.write(dir+"/f", []byte("12345"))
	t.script("cd " + dir + " && chmod 4711 f && ln -s f l && ln -s nowhere broken && mkfifo p && mkdir d && chmod 1777 d")
	now := time.Now()
	info, err := f.Stat(t.ctx, dir+"/f")
	require.NoError(t, err)
	require.Equal(t, "f", info.Name())
	require.Equal(t, int64(5), info.Size())
	require.Equal(t, 0o711|fs.ModeSetuid, info.Mode())
	require.WithinDuration(t, now, info.ModTime(), time.Hour)
	sys, ok := info.Sys().(*harnesslib.FileStat)
	require.True(t, ok)
	require.Equal(t, uint64(1), sys.Links)
	require.NotZero(t, sys.Inode)
	info, err = f.Stat(t.ctx, dir+"/l")
	require.NoError(t, err)
	require.True(t, info.Mode().IsRegular())
	require.Equal(t, int64(5), info.Size())
	info, err = f.Lstat(t.ctx, dir+"/l")
	require.NoError(t, err)
	require.Equal(t, fs.ModeSymlink, info.Mode().Type())
	require.Equal(t, "f", info.Sys().(*harnesslib.FileStat).LinkTarget)
	info, err = f.Lstat(t.ctx, dir+"/broken")
	require.NoError(t, err)
	require.Equal(t, "nowhere", info.Sys().(*harnesslib.FileStat).LinkTarget)
	info, err = f.Stat(t.ctx, dir+"/p")
	require.NoError(t, err)
	require.Equal(t, fs.ModeNamedPipe, info.Mode().Type())
	info, err = f.Stat(t.ctx, dir+"/d")
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|fs.ModeSticky|0o777, info.Mode())
	info, err = f.Stat(t.ctx, "/dev/null")
	require.NoError(t, err)
	require.Equal(t, fs.ModeDevice|fs.ModeCharDevice, info.Mode().Type())
	_, err = f.Stat(t.ctx, dir+"/broken")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func makeDirs(t *T) {
	dir := t.dir()
	f := t.Files()
	require.NoError(t, f.Mkdir(t.ctx, dir+"/a", 0o700))
	info, err := f.Stat(t.ctx, dir+"/a")
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|0o700, info.Mode())
	require.ErrorIs(t, f.Mkdir(t.ctx, dir+"/a", 0o755), fs.ErrExist)
	require.ErrorIs(t, f.Mkdir(t.ctx, dir+"/x/y", 0o755), fs.ErrNotExist)
	require.NoError(t, f.MkdirAll(t.ctx, dir+"/x/y/z", 0o755))
	require.NoError(t, f.MkdirAll(t.ctx, dir+"/x/y/z", 0o755))
	t.write(dir+"/x/y/z/f", []byte("f"))
	require.ErrorIs(t, f.MkdirAll(t.ctx, dir+"/x/y/z/f", 0o755), syscall.ENOTDIR)
	require.ErrorIs(t, f.Mkdir(t.ctx, dir+"/x/y/z/f", 0o755), fs.ErrExist)
	require.ErrorIs(t, f.MkdirAll(t.ctx, dir+"/x/y/z/f/g", 0o755), syscall.ENOTDIR)
}

func removeFiles(t *T) {
	dir := t.dir()
	f := t.Files()
	t.script("cd " + dir + " && mkdir -p d/e full && : >full/f && : >f && chmod 444 f && ln -s full l && ln -s nowhere broken && mkfifo p")
	for _, name := range []string{"f", "l", "broken", "p", "d/e", "d"} {
		require.NoError(t, f.Remove(t.ctx, dir+"/"+name), name)
		_, err := f.Lstat(t.ctx, dir+"/"+name)
		require.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	require.ErrorIs(t, f.Remove(t.ctx, dir+"/f"), fs.ErrNotExist)
	require.ErrorIs(t, f.Remove(t.ctx, dir+"/full"), syscall.ENOTEMPTY)
	_, err := f.Stat(t.ctx, dir+"/full/f")
	require.NoError(t, err, "what a link led to was removed")
	t.script("cd " + dir + " && mkdir -p t/u/v && : >t/u/v/f && ln -s ../full t/l")
	require.NoError(t, f.RemoveAll(t.ctx, dir+"/t"))
	require.NoError(t, f.RemoveAll(t.ctx, dir+"/t"), "nothing to remove")
	_, err = f.Stat(t.ctx, dir+"/full/f")
	require.NoError(t, err, "a link was followed")
	require.Error(t, f.RemoveAll(t.ctx, dir+"/full/."))
	require.Error(t, f.RemoveAll(t.ctx, dir+"/full/.."))
	_, err = f.Stat(t.ctx, dir+"/full/f")
	require.NoError(t, err)
}

func renameFiles(t *T) {
	dir := t.dir()
	f := t.Files()
	t.write(dir+"/a", []byte("a"))
	t.write(dir+"/b", []byte("b"))
	require.NoError(t, f.Rename(t.ctx, dir+"/a", dir+"/b"))
	require.Equal(t, "a", string(t.read(dir+"/b")))
	_, err := f.Lstat(t.ctx, dir+"/a")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, f.Rename(t.ctx, dir+"/absent", dir+"/c"), fs.ErrNotExist)
	require.ErrorIs(t, f.Rename(t.ctx, dir+"/b", dir+"/no/dir"), fs.ErrNotExist)
	t.script("cd " + dir + " && mkdir d e full && : >full/f && : >d/g && ln -s full l")
	require.NoError(t, f.Rename(t.ctx, dir+"/d", dir+"/e"), "onto an empty directory")
	_, err = f.Stat(t.ctx, dir+"/e/g")
	require.NoError(t, err, "the directory moved into the other one")
	require.Error(t, f.Rename(t.ctx, dir+"/e", dir+"/full"))
	require.Error(t, f.Rename(t.ctx, dir+"/b", dir+"/full"), "a file onto a directory")
	require.Error(t, f.Rename(t.ctx, dir+"/full", dir+"/b"), "a directory onto a file")
	require.Equal(t, "a", string(t.read(dir+"/b")))
	require.NoError(t, f.Rename(t.ctx, dir+"/b", dir+"/l"), "the link itself is replaced")
	require.Equal(t, "a", string(t.read(dir+"/l")))
	entries, err := f.ReadDir(t.ctx, dir+"/full")
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func mode(t *T) {
	dir := t.dir()
	f := t.Files()
	t.write(dir+"/f", nil)
	for _, m := range []fs.FileMode{0o600, 0o755, 0, 0o4755&^0o4000 | fs.ModeSetuid, 0o644} {
		require.NoError(t, f.Chmod(t.ctx, dir+"/f", m))
		info, err := f.Stat(t.ctx, dir+"/f")
		require.NoError(t, err)
		require.Equal(t, m, info.Mode())
	}
	require.ErrorIs(t, f.Chmod(t.ctx, dir+"/absent", 0o600), fs.ErrNotExist)
}

func links(t *T) {
	dir := t.dir()
	f := t.Files()
	for i, target := range []string{"f", "/absolute/nowhere", "-dash", "new\nline\n", "a b'c\"", "../.."} {
		name := dir + "/l" + string(rune('0'+i))
		require.NoError(t, f.Symlink(t.ctx, target, name))
		got, err := f.ReadLink(t.ctx, name)
		require.NoError(t, err)
		require.Equal(t, target, got)
	}
	require.ErrorIs(t, f.Symlink(t.ctx, "x", dir+"/l0"), fs.ErrExist)
	require.ErrorIs(t, f.Symlink(t.ctx, "x", dir+"/no/l"), fs.ErrNotExist)
	require.NoError(t, f.Mkdir(t.ctx, dir+"/d", 0o755))
	require.ErrorIs(t, f.Symlink(t.ctx, "x", dir+"/d"), fs.ErrExist)
	t.write(dir+"/f", []byte("f"))
	_, err := f.ReadLink(t.ctx, dir+"/f")
	require.Error(t, err)
	_, err = f.ReadLink(t.ctx, dir+"/absent")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, "f", string(t.read(dir+"/l0")))
}

func hashFiles(t *T) {
	dir := t.dir()
	for _, want := range [][]byte{{}, allBytes()} {
		t.write(dir+"/a b\\c", want)
		sum, err := t.Files().Hash(t.ctx, dir+"/a b\\c")
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256(want), sum)
	}
	_, err := t.Files().Hash(t.ctx, dir+"/absent")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func names(t *T) {
	dir := t.dir()
	f := t.Files()
	longest, err := strconv.Atoi(strings.TrimSpace(string(t.script("stat -f -c %l " + dir).Stdout))) // some file systems take fewer than 255
	if err != nil || longest > 255 {
		longest = 255
	}
	all := []string{
		"a b", "a'b\"c", "-rf", "--", "$(x)", "`x`", "tab\t", "new\nline", "end\n", "日本語", "e\u0301", "\xff\xfe", strings.Repeat("n", longest), "😀", "*", "[a]", "?", "\\", "\\n", " ", "...", "~", "#", "a=b", "!x",
	}
	for _, name := range all {
		t.write(dir+"/"+name, []byte(name))
	}
	entries, err := f.ReadDir(t.ctx, dir)
	require.NoError(t, err)
	got := map[string]bool{}
	for _, e := range entries {
		got[e.Name()] = true
	}
	require.Len(t, entries, len(all))
	for _, name := range all {
		require.True(t, got[name], "%q is not in the list", name)
		require.Equal(t, name, string(t.read(dir+"/"+name)))
		info, err := f.Lstat(t.ctx, dir+"/"+name)
		require.NoError(t, err, "%q", name)
		require.Equal(t, int64(len(name)), info.Size(), "%q", name)
		require.NoError(t, f.Rename(t.ctx, dir+"/"+name, dir+"/renamed"), "%q", name)
		require.NoError(t, f.Rename(t.ctx, dir+"/renamed", dir+"/"+name), "%q", name)
		require.NoError(t, f.Remove(t.ctx, dir+"/"+name), "%q", name)
	}
	entries, err = f.ReadDir(t.ctx, dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// relativePaths begin where commands do.
func relativePaths(t *T) {
	f := t.Files()
	wd := strings.TrimSuffix(string(t.script("pwd -P").Stdout), "\n")
	info, err := f.Stat(t.ctx, ".")
	require.NoError(t, err)
	want, err := f.Stat(t.ctx, wd)
	require.NoError(t, err)
	require.Equal(t, want.Sys().(*harnesslib.FileStat).Inode, info.Sys().(*harnesslib.FileStat).Inode)
	dir := t.dir()
	rel := strings.Repeat("../", strings.Count(wd, "/")+1) + dir[1:]
	t.write(rel+"/f", []byte("relative"))
	require.Equal(t, "relative", string(t.read(dir+"/f")))
}

// filesAborted: an operation whose context has ended does nothing.
func filesAborted(t *T) {
	dir := t.dir()
	ctx, cancel := context.WithCancelCause(t.ctx)
	cancel(errEnough)
	f := t.Files()
	require.Error(t, f.WriteFile(ctx, dir+"/f", []byte("x"), 0o644))
	_, err := f.ReadFile(ctx, "/etc/passwd")
	require.Error(t, err)
	_, err = f.Lstat(t.ctx, dir+"/f")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

var errorCases = []Case{
	{"errors of paths", pathErrors},
	{"special files", specialFiles},
	{"no such directory", noSuchDir},
	{"permission", permission},
}

func pathErrors(t *T) {
	dir := t.dir()
	f := t.Files()
	t.write(dir+"/f", []byte("f"))
	ops := map[string]func(name string) error{
		"read":  func(name string) error { _, err := f.ReadFile(t.ctx, name); return err },
		"write": func(name string) error { return f.WriteFile(t.ctx, name, []byte("x"), 0o644) },
		"large": func(name string) error { return f.WriteFile(t.ctx, name, make([]byte, 200_000), 0o644) },
		"append": func(name string) error {
			return f.AppendFile(t.ctx, name, []byte("x"), 0o644)
		},
		"hash":  func(name string) error { _, err := f.Hash(t.ctx, name); return err },
		"list":  func(name string) error { _, err := f.ReadDir(t.ctx, name); return err },
		"stat":  func(name string) error { _, err := f.Stat(t.ctx, name); return err },
		"lstat": func(name string) error { _, err := f.Lstat(t.ctx, name); return err },
	}
	for what, op := range ops {
		for name, want := range map[string]error{dir + "/no/such": fs.ErrNotExist, dir + "/f/x": syscall.ENOTDIR} {
			err := op(name)
			require.ErrorIs(t, err, want, "%s %s", what, name)
			var pe *fs.PathError
			require.ErrorAs(t, err, &pe, what)
			require.Equal(t, name, pe.Path, what)
		}
		if what != "list" && !strings.HasSuffix(what, "stat") {
			require.ErrorIs(t, op(dir), syscall.EISDIR, what)
		}
		require.Error(t, op("with\x00nul"), what)
	}
	require.ErrorIs(t, ops["list"](dir+"/f"), syscall.ENOTDIR)
	for _, what := range []string{"read", "hash", "list", "stat", "lstat"} {
		require.ErrorIs(t, ops[what](dir+"/absent"), fs.ErrNotExist, what)
	}
	require.ErrorIs(t, ops["write"](dir+"/"+strings.Repeat("n", 256)), syscall.ENAMETOOLONG)
}

// specialFiles are refused, and never waited for.
func specialFiles(t *T) {
	dir := t.dir()
	t.script("mkfifo " + dir + "/p; ln -s p " + dir + "/l")
	f := t.Files()
	for _, name := range []string{dir + "/p", dir + "/l", "/dev/zero"} {
		_, err := f.ReadFile(t.ctx, name)
		require.ErrorIs(t, err, harnesslib.ErrNotRegular, "read %s", name)
		_, err = f.Hash(t.ctx, name)
		require.ErrorIs(t, err, harnesslib.ErrNotRegular, "hash %s", name)
		require.ErrorIs(t, f.CopyFrom(t.ctx, name, io.Discard), harnesslib.ErrNotRegular, "copy %s", name)
		if name != "/dev/zero" {
			require.ErrorIs(t, f.WriteFile(t.ctx, name, []byte("x"), 0o644), harnesslib.ErrNotRegular, "write %s", name)
		}
	}
}

// noSuchDir: a command never runs in another directory than the one it was to run in.
func noSuchDir(t *T) {
	dir := t.dir()
	t.write(dir+"/f", nil)
	for _, name := range []string{dir + "/absent", dir + "/f"} {
		both(t, func(form string, run func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error)) {
			_, _, err := run(t.ctx, transport.Command{Script: "echo >" + dir + "/ran", Dir: name})
			var ee *harnesslib.ExitError
			require.ErrorAs(t, err, &ee, form)
			require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind, form)
			require.Equal(t, "cwd", ee.Outcome.Stage, form)
			require.ErrorContains(t, err, name, form)
		})
	}
	_, err := t.Files().Stat(t.ctx, dir+"/ran")
	require.ErrorIs(t, err, fs.ErrNotExist, "it ran all the same")
}

// permission has no meaning for root, who may all; then the case holds only what root may not.
func permission(t *T) {
	dir := t.dir()
	f := t.Files()
	if string(t.script("id -u").Stdout) == "0\n" {
		require.Error(t, f.WriteFile(t.ctx, "/proc/self/sandbus", []byte("x"), 0o644))
		return
	}
	t.write(dir+"/f", nil)
	require.NoError(t, f.Chmod(t.ctx, dir+"/f", 0))
	_, err := f.ReadFile(t.ctx, dir+"/f")
	require.ErrorIs(t, err, os.ErrPermission)
	t.script("mkdir " + dir + "/d; chmod 0 " + dir + "/d")
	_, err = f.ReadDir(t.ctx, dir+"/d")
	require.ErrorIs(t, err, os.ErrPermission)
	_, err = f.Stat(t.ctx, dir+"/d/f")
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorIs(t, f.WriteFile(t.ctx, dir+"/d/f", []byte("x"), 0o644), os.ErrPermission)
}
