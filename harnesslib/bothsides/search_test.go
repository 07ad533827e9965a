package bothsides

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// searchSandbox is a real worker in dir, behind a real hub.
func searchSandbox(tb testing.TB, dir string) *harnesslib.Sandbox {
	tb.Helper()
	b := bustest.Start(tb)
	cfg := b.Config(tb, bus.RoleSandbox, "box")
	ready := make(chan struct{})
	w, err := workerd.New(workerd.Config{
		URL: cfg.URL, Dial: cfg.Dial, Credential: cfg.Credential, Dir: dir, OnReady: func() { close(ready) },
	})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	tb.Cleanup(func() {
		cancel(errors.New("the test is over"))
		require.NoError(tb, <-ended)
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		require.NoError(tb, err)
	}
	cred, err := b.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "tests"})
	require.NoError(tb, err)
	h, err := harnesslib.Connect(tb.Context(), harnesslib.Config{URL: b.URL(), Dial: b.Dial, Token: cred.Token()})
	require.NoError(tb, err)
	tb.Cleanup(h.Close)
	sb, err := h.Sandbox("box")
	require.NoError(tb, err)
	return sb
}

// tree makes files; a name with a slash at its end is a directory.
func tree(tb testing.TB, dir string, files map[string]string) {
	tb.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			require.NoError(tb, os.MkdirAll(path, 0o755))
			continue
		}
		require.NoError(tb, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(tb, os.WriteFile(path, []byte(content), 0o600))
	}
}

func paths(l *harnesslib.Listing) []string {
	out := []string{}
	for _, e := range l.Entries {
		if e.Type.IsDir() {
			e.Path += "/"
		}
		out = append(out, e.Path)
	}
	return out
}

func TestC63Glob(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{
		".gitignore":                "*.log\n/build/\n!keep.log\n",
		"src/a.ts":                  "",
		"src/x/y/b.ts":              "",
		"src/x/B.TS":                "",
		"src/.hidden/c.ts":          "",
		"deep/src/d.ts":             "",
		"a.log":                     "",
		"keep.log":                  "",
		"build/out.ts":              "",
		"sub/build/out.ts":          "",
		"all/.gitignore":            "*\n!.gitignore\n!kept.ts\n!in/\n",
		"all/gone.ts":               "",
		"all/kept.ts":               "",
		"all/in/gone.ts":            "",
		"all/in/kept.ts":            "",
		"all/out.d/kept.log":        "",
		"node_modules/m/index.ts":   "",
		".git/hook.ts":              "",
		"sub/node_modules/index.ts": "",
		"re/.gitignore":             "closed/\n!closed/a.ts\n",
		"re/closed/a.ts":            "",
		"new\nline.ts":              "",
		"bad\xff.ts":                "",
		"repo/.git/HEAD":            "",
		"repo/own.log":              "",
	})
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "src/broken.ts")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "src/pipe.ts"), 0o600))
	sb := searchSandbox(t, dir)
	for _, c := range []struct {
		name, root, pattern string
		opts                harnesslib.GlobOptions
		want                []string
	}{
		{"a path", ".", "src/**/*.ts", harnesslib.GlobOptions{}, []string{
			"deep/src/d.ts", "src/.hidden/c.ts", "src/a.ts", "src/broken.ts", "src/pipe.ts", "src/x/y/b.ts",
		}},
		{"a path from the root", ".", "/src/**/*.ts", harnesslib.GlobOptions{}, []string{
			"src/.hidden/c.ts", "src/a.ts", "src/broken.ts", "src/pipe.ts", "src/x/y/b.ts",
		}},
		{"smart case", "src/x", "*.ts", harnesslib.GlobOptions{Case: harnesslib.CaseSmart}, []string{"B.TS", "y/b.ts"}},
		{"smart case with a capital", "src/x", "*.TS", harnesslib.GlobOptions{Case: harnesslib.CaseSmart}, []string{"B.TS"}},
		{"braces", ".", "{a,keep,own}.log", harnesslib.GlobOptions{}, []string{"keep.log", "repo/own.log"}},
		{"nested star with negation", "all", "*", harnesslib.GlobOptions{}, []string{".gitignore", "in/", "in/kept.ts", "kept.ts"}},
		{"the rules above the root count", "sub", "*", harnesslib.GlobOptions{}, []string{"build/", "build/out.ts"}},
		{"nothing comes back below an ignored directory", "re", "*.ts", harnesslib.GlobOptions{}, []string{}},
		{"an ignored directory named by the pattern", ".", "/build/*", harnesslib.GlobOptions{}, []string{}},
		{"an ignored directory named as the root", "build", "*", harnesslib.GlobOptions{}, []string{"out.ts"}},
		{"default ignore list", ".", "index.ts", harnesslib.GlobOptions{}, []string{}},
		{"own ignore list", ".", "{index,hook}.ts", harnesslib.GlobOptions{
			Scope: harnesslib.Scope{NoDefaultIgnore: true, Ignore: []string{"/sub/"}},
		}, []string{".git/hook.ts", "node_modules/m/index.ts"}},
		{"without gitignore", ".", "*.log", harnesslib.GlobOptions{Scope: harnesslib.Scope{NoGitignore: true}}, []string{
			"a.log", "all/out.d/kept.log", "keep.log", "repo/own.log",
		}},
		{"names are bytes", ".", "{bad,new}*", harnesslib.GlobOptions{}, []string{"bad\xff.ts", "new\nline.ts"}},
		{"directories", ".", "x", harnesslib.GlobOptions{}, []string{"src/x/"}},
		{"no match", ".", "*.nothing", harnesslib.GlobOptions{}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := sb.Glob(t.Context(), c.root, c.pattern, c.opts)
			require.NoError(t, err)
			require.Equal(t, c.want, paths(l))
			require.False(t, l.More)
		})
	}
	t.Run("limits are stated", func(t *testing.T) {
		l, err := sb.Glob(t.Context(), ".", "*.ts", harnesslib.GlobOptions{Limit: 2})
		require.NoError(t, err)
		require.Equal(t, []string{"all/in/kept.ts", "all/kept.ts"}, paths(l))
		require.True(t, l.More)
		require.Equal(t, 2, l.Limit)
		l, err = sb.Walk(t.Context(), "src", harnesslib.WalkOptions{Scope: harnesslib.Scope{MaxDepth: 1}})
		require.NoError(t, err)
		require.Equal(t, []string{".hidden/", "a.ts", "broken.ts", "pipe.ts", "x/"}, paths(l))
		require.Equal(t, int64(2), l.Skipped.TooDeep)
	})
	t.Run("a walk in pages", func(t *testing.T) {
		whole, err := sb.Walk(t.Context(), ".", harnesslib.WalkOptions{})
		require.NoError(t, err)
		require.Greater(t, len(whole.Entries), 20)
		var pages []string
		for after, more := "", true; more; {
			l, err := sb.Walk(t.Context(), ".", harnesslib.WalkOptions{Limit: 3, After: after})
			require.NoError(t, err)
			pages = append(pages, paths(l)...)
			after, more = l.Entries[len(l.Entries)-1].Path, l.More
		}
		require.Equal(t, paths(whole), pages)
	})
	t.Run("details", func(t *testing.T) {
		l, err := sb.Walk(t.Context(), "all", harnesslib.WalkOptions{Details: true})
		require.NoError(t, err)
		require.Equal(t, ".gitignore", l.Entries[0].Path)
		require.Equal(t, int64(28), l.Entries[0].Size)
		require.Equal(t, fs.FileMode(0o600), l.Entries[0].Perm)
		require.WithinDuration(t, time.Now(), l.Entries[0].ModTime, time.Hour)
	})
	t.Run("refusals", func(t *testing.T) {
		for _, c := range []struct {
			root, pattern string
			opts          harnesslib.GlobOptions
			is            error
			says          string
		}{
			{"nowhere", "*", harnesslib.GlobOptions{}, fs.ErrNotExist, "not found"},
			{"a.log", "*", harnesslib.GlobOptions{}, syscall.ENOTDIR, "not a directory"},
			{".", "[a", harnesslib.GlobOptions{}, fs.ErrInvalid, "malformed"},
			{".", "", harnesslib.GlobOptions{}, fs.ErrInvalid, "empty"},
			{".", strings.Repeat("{a,b}", 9), harnesslib.GlobOptions{}, fs.ErrInvalid, "the bound is 8"},
			{".", "*", harnesslib.GlobOptions{Limit: 100_001}, fs.ErrInvalid, "limit 100001: want 1 to 100000"},
			{".", "*", harnesslib.GlobOptions{Scope: harnesslib.Scope{MaxDepth: 201}}, fs.ErrInvalid, "max_depth 201"},
		} {
			_, err := sb.Glob(t.Context(), c.root, c.pattern, c.opts)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
		}
	})
}

// grepText is a result as grep -n prints it.
func grepText(r *harnesslib.GrepResult) string {
	var b strings.Builder
	for _, f := range r.Files {
		for _, l := range f.Lines {
			sep := ":"
			if l.Context {
				sep = "-"
			}
			fmt.Fprintf(&b, "%s%s%d%s%s\n", f.Path, sep, l.Number, sep, l.Text)
		}
	}
	return b.String()
}

func TestC64Grep(t *testing.T) {
	dir := t.TempDir()
	long := bytes.Repeat([]byte("é"), 5<<20)
	copy(long[4<<20:], "NEEDLE")
	copy(long[4<<20+6:], "é") // at a boundary of characters
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "row %d\n", i)
	}
	tree(t, dir, map[string]string{
		"a.txt":         "one\n-two\nthree\n--three\nfour\n",
		"b/crlf.txt":    "x\r\n-two\r\n",
		"b/.hidden":     "-two",
		"b/ignored.log": "-two\n",
		"b/.gitignore":  "*.log\n",
		"long.txt":      "first\n" + string(long) + "\nNEEDLE\n",
		"many.txt":      many.String(),
		"bin/nul.bin":   "NEEDLE\x00\n",
		"bin/late.txt":  strings.Repeat("x", 9000) + "\x00\nNEEDLE\n",
		"bin/e.bin":     "\x7fELF\x00-two",
		"closed/x":      "NEEDLE\n",
		"closed.txt":    "NEEDLE\n",
		"raw":           "\xff NEEDLE \xfe\n",
		"big/1.txt":     strings.Repeat("no\n", 200_000) + "before\nBIG\nafter\n" + strings.Repeat("no\n", 200_000) + "BIG",
	})
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Symlink("a.txt", filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "broken")))
	sb := searchSandbox(t, dir)
	grep := func(t *testing.T, root, pattern string, opts harnesslib.GrepOptions) *harnesslib.GrepResult {
		t.Helper()
		r, err := sb.Grep(t.Context(), root, pattern, opts)
		require.NoError(t, err)
		return r
	}
	t.Run("a pattern that starts with a dash", func(t *testing.T) {
		for _, pattern := range []string{"-two", "^-t[v-w]o", "(?:-tw)o|-zwei"} {
			r := grep(t, ".", pattern, harnesslib.GrepOptions{})
			require.Equal(t, "a.txt:2:-two\nb/.hidden:1:-two\nb/crlf.txt:2:-two\r\n", grepText(r))
			require.Equal(t, int64(3), r.Matches)
			require.False(t, r.More)
			require.Equal(t, int64(2), r.Skipped.Binary)
			require.Equal(t, int64(1), r.Skipped.Special)
			require.Equal(t, int64(2), r.Skipped.Links)
		}
	})
	t.Run("case", func(t *testing.T) {
		for _, c := range []struct {
			pattern string
			opts    harnesslib.GrepOptions
			want    int64
		}{
			{"needle", harnesslib.GrepOptions{}, 0},
			{"needle", harnesslib.GrepOptions{Case: harnesslib.CaseInsensitive, Fixed: true}, 1},
			{"nEEdle", harnesslib.GrepOptions{Case: harnesslib.CaseInsensitive}, 1},
			{"needle", harnesslib.GrepOptions{Case: harnesslib.CaseSmart}, 1},
			{"Needle", harnesslib.GrepOptions{Case: harnesslib.CaseSmart}, 0},
			{`needle\W`, harnesslib.GrepOptions{Case: harnesslib.CaseSmart}, 1},
		} {
			c.opts.Globs = []string{"raw"}
			require.Equal(t, c.want, grep(t, ".", c.pattern, c.opts).Matches, "%q %+v", c.pattern, c.opts)
		}
	})
	t.Run("a fixed string is no expression", func(t *testing.T) {
		require.Equal(t, int64(0), grep(t, "a.txt", ".two", harnesslib.GrepOptions{Fixed: true}).Matches)
		require.Equal(t, "a.txt:2:-two\n", grepText(grep(t, "a.txt", "-tw", harnesslib.GrepOptions{Fixed: true})))
		require.Equal(t, "raw:1:\xff NEEDLE \xfe\n", grepText(grep(t, "raw", "E \xfe", harnesslib.GrepOptions{Fixed: true})))
	})
	t.Run("a line of 10 MiB", func(t *testing.T) {
		r := grep(t, "long.txt", "NEED.E", harnesslib.GrepOptions{MaxLine: 100})
		require.Len(t, r.Files, 1)
		l := r.Files[0].Lines[0]
		require.Equal(t, int64(2), l.Number)
		require.Equal(t, "NEEDLE", l.Text[l.Match[0]:l.Match[1]])
		require.Len(t, []rune(l.Text), 100)
		require.Greater(t, l.CutBefore, int64(2_000_000))
		require.Greater(t, l.CutAfter, int64(500_000))
		require.Equal(t, "NEEDLE", r.Files[0].Lines[1].Text)
		require.Equal(t, int64(3), r.Files[0].Lines[1].Number)
	})
	t.Run("10,000 matches", func(t *testing.T) {
		r := grep(t, "many.txt", "row", harnesslib.GrepOptions{})
		require.Equal(t, int64(1000), r.Matches)
		require.True(t, r.More)
		require.Equal(t, 1000, r.Limit)
		r = grep(t, "many.txt", "row", harnesslib.GrepOptions{Limit: 10_000})
		require.Equal(t, int64(10_000), r.Matches)
		require.False(t, r.More)
		r = grep(t, ".", "^row", harnesslib.GrepOptions{Mode: harnesslib.GrepCounts})
		require.Equal(t, []harnesslib.GrepFile{{Path: "many.txt", Matches: 10_000}}, r.Files)
		require.Equal(t, int64(10_000), r.Matches)
	})
	t.Run("the limit counts in all, in order", func(t *testing.T) {
		r := grep(t, ".", "two|row", harnesslib.GrepOptions{Limit: 4, After: 1})
		require.Equal(t, "a.txt:2:-two\na.txt-3-three\nb/.hidden:1:-two\nb/crlf.txt:2:-two\r\nmany.txt:1:row 0\nmany.txt-2-row 1\n", grepText(r))
		require.True(t, r.More)
	})
	t.Run("context", func(t *testing.T) {
		r := grep(t, "a.txt", "three", harnesslib.GrepOptions{Before: 2, After: 1})
		require.Equal(t, "a.txt-1-one\na.txt-2--two\na.txt:3:three\na.txt:4:--three\na.txt-5-four\n", grepText(r))
		r = grep(t, "big", "BIG", harnesslib.GrepOptions{Before: 2, After: 2})
		require.Equal(t, "1.txt-200000-no\n1.txt-200001-before\n1.txt:200002:BIG\n1.txt-200003-after\n1.txt-200004-no\n"+
			"1.txt-400002-no\n1.txt-400003-no\n1.txt:400004:BIG\n", grepText(r))
	})
	t.Run("files only", func(t *testing.T) {
		r := grep(t, ".", "-two", harnesslib.GrepOptions{Mode: harnesslib.GrepFiles, Limit: 2})
		require.Equal(t, []harnesslib.GrepFile{{Path: "a.txt"}, {Path: "b/.hidden"}}, r.Files)
		require.True(t, r.More)
	})
	t.Run("globs", func(t *testing.T) {
		require.Equal(t, "a.txt:2:-two\n", grepText(grep(t, ".", "-two", harnesslib.GrepOptions{Globs: []string{"*.txt", "!b/**"}})))
		require.Equal(t, "a.txt:2:-two\n", grepText(grep(t, ".", "-two", harnesslib.GrepOptions{Globs: []string{"!b/**"}})))
	})
	t.Run("a directory without permission", func(t *testing.T) {
		if os.Geteuid() == 0 {
			unprivileged(t)
			return
		}
		noPermission(t, dir, sb)
	})
	t.Run("refusals", func(t *testing.T) {
		for _, c := range []struct{ root, pattern, says string }{
			{".", "a(b", "missing closing )"},
			{".", "a[b", "at offset 1"},
			{".", `a\nb`, "newline"},
			{".", "a\nb", "newline"},
			{"pipe", "a", "no regular file"},
			{"nowhere", "a", "not found"},
		} {
			_, err := sb.Grep(t.Context(), c.root, c.pattern, harnesslib.GrepOptions{})
			require.ErrorContains(t, err, c.says)
		}
		for says, opts := range map[string]harnesslib.GrepOptions{
			"before 101: want": {Before: 101}, "mode 8: this worker knows 0 to 3": {Mode: 7}, "case_mode 10: this worker": {Case: 9},
			"globs: 101": {Globs: make([]string, 101)}, "limit 100001: want 1 to 100000, or 0 for 1000": {Limit: 100_001},
			"max_line 65537": {MaxLine: 65_537},
		} {
			_, err := sb.Grep(t.Context(), ".", "x", opts)
			require.ErrorIs(t, err, fs.ErrInvalid)
			require.ErrorContains(t, err, says)
		}
	})
	t.Run("the order does not depend on luck", func(t *testing.T) {
		want := grepText(grep(t, ".", "e", harnesslib.GrepOptions{Limit: 50, MaxLine: 40, Globs: []string{"!long.txt"}}))
		for range 20 {
			require.Equal(t, want, grepText(grep(t, ".", "e", harnesslib.GrepOptions{Limit: 50, MaxLine: 40, Globs: []string{"!long.txt"}})))
		}
	})
	t.Run("an abort ends it", func(t *testing.T) {
		f, err := os.Create(filepath.Join(dir, "endless"))
		require.NoError(t, err)
		_, err = f.WriteString(strings.Repeat("no\n", 4000))
		require.NoError(t, err)
		require.NoError(t, f.Truncate(1<<42)) // 4 TiB of zeros behind it
		require.NoError(t, f.Close())
		why := errors.New("changed my mind")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, why)
		defer cancel()
		began := time.Now()
		_, err = sb.Grep(ctx, ".", "x", harnesslib.GrepOptions{Globs: []string{"endless"}})
		require.ErrorIs(t, err, why)
		require.Less(t, time.Since(began), 5*time.Second) // an abort that nobody confirms takes longer
		_, err = sb.Grep(ctx, "a.txt", "x", harnesslib.GrepOptions{})
		require.ErrorIs(t, err, why)
	})
}

func noPermission(t *testing.T, dir string, sb *harnesslib.Sandbox) {
	t.Helper()
	require.NoError(t, os.Chmod(filepath.Join(dir, "closed"), 0))
	require.NoError(t, os.Chmod(filepath.Join(dir, "closed.txt"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o700) })
	r, err := sb.Grep(t.Context(), ".", "NEEDLE", harnesslib.GrepOptions{Globs: []string{"closed*", "x", "raw"}})
	require.NoError(t, err)
	require.Equal(t, "raw:1:\xff NEEDLE \xfe\n", grepText(r))
	require.Equal(t, int64(2), r.Skipped.Unreadable)
	require.Equal(t, "closed", r.Skipped.FirstUnreadable)
}

// unprivileged runs this test again as a user for whom permissions hold.
func unprivileged(t *testing.T) {
	t.Helper()
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run="+strings.Join(parts, "/"), "-test.v")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "TMPDIR=/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}
