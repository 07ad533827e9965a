package bothsides

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/tools"
)

// TestTools runs the seven tools against a real worker.
func TestTools(t *testing.T) {
	dir := t.TempDir()
	home := t.TempDir()
	t.Setenv("HOME", home)
	tree(t, dir, map[string]string{
		"w/a.txt":                    "one\ntwo\nthree\n",
		"w/sub/B.go":                 "package b\n\nfunc B() {}\n",
		"w/sub/c.go":                 "package b\n",
		"w/.gitignore":               "ignored/\n",
		"w/ignored/d.go":             "package d\n",
		"w/node_modules/e.go":        "",
		"w/.hidden":                  "one\n",
		"w/It\u2019s.txt":            "curly",
		"w/cafe\u0301.txt":           "nfd",
		"w/Shot 10.00\u202fAM.png":   "no png",
		"w/dir e\u0301/It\u2019s/x.": "deep",
		"w/bin":                      "\x7fELF\x00",
		"w/empty/":                   "",
	})
	require.NoError(t, os.WriteFile(filepath.Join(home, "notes.txt"), []byte("home"), 0o600))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "w/broken")))
	require.NoError(t, os.Symlink("sub", filepath.Join(dir, "w/linked")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "w/pipe"), 0o600))
	sb := searchSandbox(t, dir)
	tl := tools.For(sb, tools.Config{Dir: filepath.Join(dir, "w"), SpillDir: dir})
	ctx := t.Context()

	t.Run("read and paths", func(t *testing.T) {
		for path, want := range map[string]string{
			"a.txt": "one\ntwo\nthree\n", "@a.txt": "one\ntwo\nthree\n", "~/notes.txt": "home", "../w/a.txt": "one\ntwo\nthree\n",
			"It's.txt": "curly", "caf\u00e9.txt": "nfd", "Shot 10.00 AM.png": "no png", "Shot\u00a010.00\u202fAM.png": "no png",
			"dir \u00e9/It's/x.": "deep", "linked/c.go": "package b\n",
		} {
			r, err := tl.Read(ctx, tools.ReadParams{Path: path})
			require.NoError(t, err, path)
			require.Equal(t, want, r.Text, path)
		}
		for path, want := range map[string]string{
			"nowhere.txt": "read nowhere.txt: not found", "sub": "is a directory", "pipe": "fifo", "broken": "not found", "~/x": "not found",
			"bin": "binary file (application/octet-stream, 5B)", "@": "nothing behind the @",
		} {
			_, err := tl.Read(ctx, tools.ReadParams{Path: path})
			require.ErrorContains(t, err, want, path)
		}
		_, err := tl.Read(ctx, tools.ReadParams{Path: "nowhere.txt"})
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("read of a large file", func(t *testing.T) {
		var b strings.Builder
		for i := range 200_000 {
			fmt.Fprintf(&b, "line %d\n", i+1)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "w/large"), []byte(b.String()), 0o600))
		r, err := tl.Read(ctx, tools.ReadParams{Path: "large", Offset: 150_000, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, "line 150000\nline 150001\n\n[49999 more lines in file. Use offset=150002 to continue]", r.Text)
	})
	t.Run("write", func(t *testing.T) {
		r, err := tl.Write(ctx, tools.WriteParams{Path: "new/deep/f.txt", Content: "héllo"})
		require.NoError(t, err)
		require.Equal(t, "Wrote 6 bytes to new/deep/f.txt", r.Text)
		data, err := os.ReadFile(filepath.Join(dir, "w/new/deep/f.txt"))
		require.NoError(t, err)
		require.Equal(t, "héllo", string(data))
		_, err = tl.Write(ctx, tools.WriteParams{Path: "~/made\u00a0up.txt", Content: "x"})
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(home, "made up.txt"))
		_, err = tl.Write(ctx, tools.WriteParams{Path: "caf\u00e9.txt", Content: "a file of its own"})
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(dir, "w/caf\u00e9.txt"))
		_, err = tl.Write(ctx, tools.WriteParams{Path: "sub", Content: "x"})
		require.ErrorContains(t, err, "write sub: is a directory")
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "w/new")))
	})
	t.Run("ls", func(t *testing.T) {
		r, err := tl.Ls(ctx, tools.LsParams{Limit: 9})
		require.NoError(t, err)
		require.Equal(t, ".gitignore\n.hidden\na.txt\nbin\nbroken (broken link)\ncafe\u0301.txt\ncaf\u00e9.txt\ndir e\u0301/\nempty/\n\n"+
			"[Showing 9 of 17 entries. Use limit=17 for more]", r.Text)
		r, err = tl.Ls(ctx, tools.LsParams{Path: "empty"})
		require.NoError(t, err)
		require.Equal(t, "(empty directory)", r.Text)
		r, err = tl.Ls(ctx, tools.LsParams{Path: "linked"})
		require.NoError(t, err)
		require.Equal(t, "B.go\nc.go", r.Text)
		for path, want := range map[string]string{"a.txt": "ls a.txt: not a directory", "nowhere": "ls nowhere: not found"} {
			_, err = tl.Ls(ctx, tools.LsParams{Path: path})
			require.EqualError(t, err, want)
		}
	})
	t.Run("find", func(t *testing.T) {
		for pattern, want := range map[string]string{
			"*.go": "sub/B.go\nsub/c.go", "b.go": "sub/B.go", "C.go": "No files found matching pattern", "sub/*.go": "sub/B.go\nsub/c.go",
			"sub": "sub/", "ignored/d.go": "No files found matching pattern", ".hid*": ".hidden", "broken": "broken",
		} {
			r, err := tl.Find(ctx, tools.FindParams{Pattern: pattern})
			require.NoError(t, err)
			require.Equal(t, want, r.Text, pattern)
		}
		r, err := tl.Find(ctx, tools.FindParams{Pattern: "*.go", Path: "~/../" + filepath.Base(home), Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "No files found matching pattern", r.Text)
		r, err = tl.Find(ctx, tools.FindParams{Pattern: "*.go", Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "sub/B.go\n\n[1 results limit reached. Use limit=2 for more, or refine the pattern]", r.Text)
		_, err = tl.Find(ctx, tools.FindParams{Pattern: "[a"})
		require.ErrorContains(t, err, "malformed")
	})
	t.Run("grep", func(t *testing.T) {
		for _, c := range []struct {
			p    tools.GrepParams
			want string
		}{
			{tools.GrepParams{Pattern: "^two$", Context: 1}, "a.txt-1- one\na.txt:2: two\na.txt-3- three"},
			{tools.GrepParams{Pattern: "two", Path: "a.txt"}, "a.txt:2: two"},
			{tools.GrepParams{Pattern: "-two", Path: "a.txt"}, "No matches found"},
			{tools.GrepParams{Pattern: "PACKAGE", IgnoreCase: true, Glob: "c.*"}, "sub/c.go:1: package b"},
			{tools.GrepParams{Pattern: "B()", Literal: true, Path: "sub"}, "B.go:3: func B() {}"},
			{tools.GrepParams{Pattern: "package", Limit: 1}, "sub/B.go:1: package b\n\n[1 matches limit reached. Use limit=2 for more, or refine the pattern"},
		} {
			r, err := tl.Grep(ctx, c.p)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(r.Text, c.want), "%+v: %s", c.p, r.Text)
		}
		r, err := tl.Grep(ctx, tools.GrepParams{Pattern: "one"})
		require.NoError(t, err)
		require.Equal(t, ".hidden:1: one\na.txt:1: one\n\n[1 binary file skipped. 1 FIFO, socket or device skipped]", r.Text)
		_, err = tl.Grep(ctx, tools.GrepParams{Pattern: "a(b"})
		require.ErrorContains(t, err, "missing closing )")
		require.ErrorIs(t, err, fs.ErrInvalid)
	})
	t.Run("bash", func(t *testing.T) {
		r, err := tl.Bash(ctx, tools.BashParams{Command: "pwd; echo err >&2; echo \"in:$(cat)\"; case $- in *i*) echo interactive;; esac"})
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, "w")+"\nerr\nin:", r.Text)
		r, err = tl.Bash(ctx, tools.BashParams{Command: "true"})
		require.NoError(t, err)
		require.Equal(t, "(no output)", r.Text)
		for command, want := range map[string]string{
			"echo x; exit 3": "x\n\nCommand exited with code 3", "kill -9 $$": "Command killed by signal KILL",
			"echo x; cd /nowhere || exit 7": "Command exited with code 7",
		} {
			_, err := tl.Bash(ctx, tools.BashParams{Command: command})
			require.ErrorContains(t, err, want)
		}
		short := 0.3
		_, err = tl.Bash(ctx, tools.BashParams{Command: "echo before; sleep 60", Timeout: &short})
		require.EqualError(t, err, "before\n\nCommand timed out after 0.3 seconds")
		require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	})
	t.Run("bash aborted", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(ctx)
		began := make(chan struct{})
		go func() {
			<-began
			cancel(errors.New("the user pressed escape"))
		}()
		first := true
		_, err := tl.Bash(ctx, tools.BashParams{Command: "echo started; sleep 60", OnUpdate: func(string) {
			if first {
				first = false
				close(began)
			}
		}})
		require.EqualError(t, err, "started\n\nCommand aborted")
	})
	t.Run("bash spills where read finds it", func(t *testing.T) {
		r, err := tl.Bash(ctx, tools.BashParams{Command: "printf '\\033[1m'; seq 1 100000"})
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(r.Text, "98001\n"), r.Text[:20])
		require.Contains(t, r.Text, "[Showing lines 98001-100000 of 100000. Full output: "+r.FullOutput+"]")
		full, err := tl.Read(ctx, tools.ReadParams{Path: r.FullOutput, Offset: 50_000, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "50000\n\n[50000 more lines in file. Use offset=50001 to continue]", full.Text)
		fi, err := os.Stat(r.FullOutput)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), fi.Mode().Perm())
		_, err = tl.Bash(ctx, tools.BashParams{Command: "seq 1 5000; exit 1"})
		be, ok := errors.AsType[*tools.BashError](err)
		require.True(t, ok)
		require.Contains(t, be.Error(), "Full output: "+be.Result.FullOutput+"]\n\nCommand exited with code 1")
		require.FileExists(t, be.Result.FullOutput)
	})
	t.Run("aborted file tools", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		_, err := tl.Read(ctx, tools.ReadParams{Path: "a.txt"})
		require.EqualError(t, err, "Operation aborted")
		_, err = tl.Grep(ctx, tools.GrepParams{Pattern: "x"})
		require.EqualError(t, err, "Operation aborted")
		_, err = tl.Write(ctx, tools.WriteParams{Path: "aborted.txt"})
		require.EqualError(t, err, "Operation aborted")
		require.NoFileExists(t, filepath.Join(dir, "w/aborted.txt"))
	})
}
