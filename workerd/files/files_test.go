package files

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// childDir makes this test binary the writer that TestC55Killed kills.
const childDir = "SANDBUS_TEST_WRITER"

// TestC55Killed kills a process in the middle of its writes, again and again: what is there is always the whole of one
// of the contents, with its mode, behind its link.
func TestC55Killed(t *testing.T) {
	contents := [][]byte{bytes.Repeat([]byte("old"), 100_000), bytes.Repeat([]byte("new!"), 100_000)}
	if dir := os.Getenv(childDir); dir != "" {
		r := New(dir)
		for i := 0; ; i++ {
			_, err := r.write(&sandbusv1.WriteRequest{Path: "link", NoSync: i%3 == 0}, &inline{contents[i%2]})
			require.NoError(t, err)
		}
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/f", contents[0], 0o755))
	require.NoError(t, os.Symlink("f", dir+"/link"))
	for i := range 15 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestC55Killed$")
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		require.NoError(t, cmd.Start())
		limit := time.Now().Add(10 * time.Second)
		before, err := os.Stat(dir + "/f")
		require.NoError(t, err)
		for { // until it writes, and then a bit
			now, err := os.Stat(dir + "/f")
			require.NoError(t, err)
			if !os.SameFile(before, now) {
				break
			}
			require.True(t, time.Now().Before(limit), "the writer does not write")
		}
		timer := time.NewTimer(time.Duration(i) * 700 * time.Microsecond)
		<-timer.C
		require.NoError(t, cmd.Process.Kill())
		var ee *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &ee)
		got, err := os.ReadFile(dir + "/f")
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, contents[0]) || bytes.Equal(got, contents[1]), "%d bytes", len(got))
		info, err := os.Stat(dir + "/f")
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o755), info.Mode())
		_, err = os.Readlink(dir + "/link")
		require.NoError(t, err)
	}
}

func TestWriteUnsynced(t *testing.T) {
	r := New(t.TempDir())
	require.NoError(t, os.WriteFile(r.dir+"/f", []byte("old"), 0o751))
	for _, content := range []string{"new", "newer"} {
		resp, err := r.write(&sandbusv1.WriteRequest{Path: "f", NoSync: true}, &inline{[]byte(content)})
		require.NoError(t, err)
		require.False(t, resp.GetCreated())
		got, err := os.ReadFile(r.dir + "/f")
		require.NoError(t, err)
		require.Equal(t, content, string(got))
	}
	info, err := os.Stat(r.dir + "/f")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o751), info.Mode())
	entries, err := os.ReadDir(r.dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Empty(t, r.locks.held)
}

// failing gives a piece of content and then an error.
type failing struct{ gave bool }

var errContent = errors.New("no more")

func (f *failing) next() ([]byte, error) {
	if f.gave {
		return nil, errContent
	}
	f.gave = true
	return []byte("half"), nil
}

func TestAppendIsWhole(t *testing.T) {
	r := New(t.TempDir())
	require.NoError(t, os.WriteFile(r.dir+"/f", []byte("old"), 0o644))
	_, err := r.write(&sandbusv1.WriteRequest{Path: "f", Append: true}, &failing{})
	require.Error(t, err)
	got, err := os.ReadFile(r.dir + "/f")
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
	_, err = r.write(&sandbusv1.WriteRequest{Path: "f", Append: true, MustNotExist: true}, &inline{[]byte("x")})
	var be *bus.Error
	require.ErrorAs(t, err, &be)
	require.Equal(t, sandbusv1.Code_CODE_EXISTS, be.Code)
}

// TestListUnsearchable reads a directory that may be read and not searched: its names are there.
func TestListUnsearchable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/name", nil, 0o644))
	require.NoError(t, os.Chmod(dir, 0o444))
	h, err := New("/").open(place{path: dir}, unix.O_RDONLY|unix.O_DIRECTORY)
	require.NoError(t, err)
	defer h.close()
	if os.Geteuid() == 0 { // root may search all: be somebody else on this thread
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before, err := unix.SetfsuidRetUid(65534)
		require.NoError(t, err)
		defer func() {
			_, err := unix.SetfsuidRetUid(before)
			require.NoError(t, err)
		}()
	}
	entries, err := describe(h.fd, []string{"name"})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "name", entries[0].GetName())
	require.Equal(t, sandbusv1.FileType_FILE_TYPE_UNSPECIFIED, entries[0].GetType())
}

// FuzzNames throws paths and link texts at a confined tree: whatever they are, nothing outside of it is read or changed.
func FuzzNames(f *testing.F) {
	for _, s := range [][2]string{
		{"a", "b"},
		{"../outside/f", "/etc"},
		{"l/../outside/f", "../outside"},
		{"d//.//../..", "d/../.."},
		{"\x00", ""},
		{"\xff/" + strings.Repeat("x", 300), "l"},
		{"l", "l"},
		{"l/l/f", "../root/../outside"},
		{"/", "."},
		{"d/l/f", ".."},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, path, link string) {
		outer := t.TempDir()
		require.NoError(t, os.MkdirAll(outer+"/root/d", 0o755))
		require.NoError(t, os.Mkdir(outer+"/outside", 0o755))
		require.NoError(t, os.WriteFile(outer+"/outside/f", []byte("secret"), 0o640))
		_ = os.Symlink(link, outer+"/root/l")   // a text that the system refuses makes no link
		_ = os.Symlink(link, outer+"/root/d/l") // likewise
		r, err := Open(Config{Dir: outer + "/root", Root: outer + "/root"})
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		text, raw := bus.ToText(path)
		to, toRaw := bus.ToText(link)
		if resp, _, err := r.read(&sandbusv1.ReadRequest{Path: text, PathRaw: raw}); err == nil {
			require.NotEqual(t, "secret", string(resp.GetData()))
		}
		// What fails is the business of other tests; here it counts that nothing outside is touched.
		_, _ = r.Stat(&sandbusv1.StatRequest{Path: text, PathRaw: raw})
		_, _ = r.List(&sandbusv1.ListRequest{Path: text, PathRaw: raw})
		_, _ = r.Symlink(&sandbusv1.SymlinkRequest{Path: text, PathRaw: raw, Target: to, TargetRaw: toRaw})
		_, _ = r.write(&sandbusv1.WriteRequest{Path: text, PathRaw: raw, NoSync: true, Parents: true}, &inline{[]byte("x")})
		_, _ = r.Edit(&sandbusv1.EditRequest{Path: text, PathRaw: raw, NoSync: true, Edits: []*sandbusv1.Edit{{OldText: "secret", NewText: "x"}}})
		_, _ = r.Chmod(&sandbusv1.ChmodRequest{Path: text, PathRaw: raw, Mode: 0o777})
		_, _ = r.Mkdir(&sandbusv1.MkdirRequest{Path: text, PathRaw: raw, Parents: true})
		_, _ = r.Rename(&sandbusv1.RenameRequest{Path: text, PathRaw: raw, To: to, ToRaw: toRaw, Parents: true})
		_, _ = r.Copy(t.Context(), &sandbusv1.CopyRequest{Path: text, PathRaw: raw, To: to, ToRaw: toRaw, NoSync: true})
		_, _ = r.Remove(&sandbusv1.RemoveRequest{Path: to, PathRaw: toRaw, Recursive: true})
		entries, err := os.ReadDir(outer)
		require.NoError(t, err)
		require.Len(t, entries, 2)
		entries, err = os.ReadDir(outer + "/outside")
		require.NoError(t, err)
		require.Len(t, entries, 1)
		got, err := os.ReadFile(outer + "/outside/f")
		require.NoError(t, err)
		require.Equal(t, "secret", string(got))
		info, err := os.Stat(outer + "/outside/f")
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o640), info.Mode())
	})
}
