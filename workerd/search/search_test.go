package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

func TestRequired(t *testing.T) {
	for _, c := range []struct {
		expr string
		want literals
	}{
		{"foo", literals{list: []string{"foo"}}},
		{"foo|bar", literals{list: []string{"bar", "foo"}}},
		{"foo|b*", literals{}},
		{"(io|os)\\.Err[A-Z]\\w*", literals{list: []string{".Err"}}},
		{"colou?r", literals{list: []string{"colo"}}},
		{"(a|b)u?", literals{list: []string{"a", "b"}}},
		{"a[bc]d", literals{list: []string{"abd", "acd"}}},
		{"\\w+Error$", literals{list: []string{"Error"}}},
		{"(ab)+", literals{list: []string{"ab"}}},
		{"(ab){2,3}", literals{list: []string{"ab"}}},
		{"(ab){0,3}", literals{}},
		{"\\d+", literals{}},
		{"(?i)Hello", literals{list: []string{"hello"}, fold: true}},
		{"(?i)Task one", literals{list: []string{" one"}, fold: true}}, // "k" also stands for U+212A
		{"(?i)ks", literals{}},
		{"x(?i:fog)", literals{list: []string{"fog"}, fold: true}},
		{"^$", literals{}},
	} {
		re, err := syntax.Parse(c.expr, syntax.Perl)
		require.NoError(t, err)
		require.Equal(t, c.want, required(re), c.expr)
	}
}

func TestAround(t *testing.T) {
	line := []byte(strings.Repeat("é", 100) + "MATCH" + strings.Repeat("日", 100))
	for _, c := range []struct {
		from, to, limit int
		want            string
	}{
		{200, 205, 1000, string(line)},
		{200, 205, 9, "éé" + "MATCH" + "日日"},
		{200, 205, 5, "MATCH"},
		{200, 205, 3, "MAT"},
		{0, 0, 3, "ééé"},
		{len(line), len(line), 4, "日日日日"},
		{200, len(line), 7, "MATCH日日"},
	} {
		start, end := around(line, c.from, c.to, c.limit)
		require.Equal(t, c.want, string(line[start:end]), "%+v", c)
	}
}

func TestComparePaths(t *testing.T) {
	order := []string{"a", "a/b", "a/b/c", "a/c", "a b", "a-b/x", "a.b", "ab"}
	for i := range order {
		for k := range order {
			require.Equal(t, i < k, comparePaths(order[i], order[k]) < 0, "%q %q", order[i], order[k])
		}
	}
}

// TestMemory holds that matches that are found ahead of their turn do not pile up: the first file takes long, the others
// have 500 MB of them.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	slow, err := os.Create(filepath.Join(dir, "000"))
	require.NoError(t, err)
	_, err = slow.WriteString(strings.Repeat("no\n", binaryProbe))
	require.NoError(t, err)
	require.NoError(t, slow.Truncate(2<<30)) // zeros, which are read at the speed of memory
	require.NoError(t, slow.Close())
	text := bytes.Repeat([]byte(strings.Repeat("x", 999)+"\n"), 5000)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "001"), text, 0o600))
	for i := range 100 {
		require.NoError(t, os.Link(filepath.Join(dir, "001"), filepath.Join(dir, fmt.Sprintf("1%02d", i))))
	}
	done := make(chan struct{})
	peak := make(chan uint64, 1)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		var top uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapAlloc)
			select {
			case <-tick.C:
			case <-done:
				peak <- top
				return
			}
		}
	}()
	resp, err := New(dir).Grep(t.Context(), &sandbusv1.GrepRequest{Path: ".", Pattern: "x", Limit: maxMatches})
	close(done)
	require.NoError(t, err)
	require.Less(t, <-peak, uint64(250<<20))
	require.True(t, resp.GetMore())
	require.True(t, resp.GetFull())
	require.Less(t, resp.GetMatches(), int64(9000))
	require.Len(t, resp.GetFiles(), 2)
}

// TestLongLine holds that of a line over the bound the beginning is searched, which is said.
func TestLongLine(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("a", maxLineBytes-100) + "NEEDLE" + strings.Repeat("b", 4<<20) + "LATE" + strings.Repeat("c", 1<<20) + "\nNEEDLE LATE\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o600))
	for pattern, want := range map[string][]int64{"NEEDLE": {1, 2}, "LATE": {2}} {
		resp, err := New(dir).Grep(t.Context(), &sandbusv1.GrepRequest{Path: "f", Pattern: pattern, MaxLine: 10})
		require.NoError(t, err)
		var got []int64
		for _, l := range resp.GetFiles()[0].GetLines() {
			got = append(got, l.GetNumber())
		}
		require.Equal(t, want, got)
		require.Equal(t, int64(1), resp.GetSkipped().GetLongLines())
	}
}

func TestAbort(t *testing.T) {
	dir := goSource(t)
	for _, after := range []int{0, 1, 200} {
		ctx, cancel := context.WithCancelCause(t.Context())
		n := 0
		w := &walker{ctx: ctx, root: New(dir), scope: scope{list: mustScope(t).list, depth: maxDepth}, emit: func(entry) error {
			if n++; n >= after {
				cancel(bus.ErrAborted)
			}
			return nil
		}}
		root, err := New(dir).openDir(dir)
		require.NoError(t, err)
		require.ErrorIs(t, w.walk(root), bus.ErrAborted)
		require.Less(t, n, 1000)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(bus.ErrAborted)
	_, err := New(dir).Grep(ctx, &sandbusv1.GrepRequest{Path: ".", Pattern: "x"})
	be, ok := errors.AsType[*bus.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, sandbusv1.Code_CODE_ABORTED, be.Code)
}

func mustScope(t *testing.T) scope {
	t.Helper()
	s, err := newScope(nil)
	require.NoError(t, err)
	return s
}

func FuzzGlob(f *testing.F) {
	for _, p := range []string{"*.go", "a/**/b", "{a,b}*", "[!x]?", `\*`, "**", "/x", "{{a,b},c}/[^-z]"} {
		f.Add(p, "a/b c.go")
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		for _, mode := range []sandbusv1.CaseMode{sandbusv1.CaseMode_CASE_MODE_SENSITIVE, sandbusv1.CaseMode_CASE_MODE_SMART} {
			g, err := newGlob(pattern, mode)
			if err != nil {
				be, ok := errors.AsType[*bus.Error](err)
				require.True(t, ok)
				require.Equal(t, sandbusv1.Code_CODE_INVALID, be.Code)
				continue
			}
			_ = g.match(path[strings.LastIndexByte(path, '/')+1:], path)
		}
	})
}

// FuzzGrep compares with a plain loop over the lines: literals, windows and the cutting must not change what is found.
func FuzzGrep(f *testing.F) {
	f.Add("foo|bar", "a foo\nb\n\nbar", false)
	f.Add("(?i)task", "TAS\u212a\ntask\n", true)
	f.Add("^a*$", "aaa\n\nb\n", false)
	f.Add("[ab]c?d+", "xacdd\r\nbd", true)
	f.Add(`\bx\B`, "xy\nyx\n", false)
	f.Add(`[^a]$|^\W`, "\xff\u00e9\n\n a", true)
	f.Add(`(?s:.)\pL{2,}x*?$`, "a\u00e9\u65e5x\r\n\u212a", true)
	f.Add(`\A\z|(?m:^b$)`, "a\n\nb", false)
	f.Add(`a*\Bb+\b.c`, "aab c\nab", false)
	f.Fuzz(func(t *testing.T, expr, text string, fold bool) {
		req := &sandbusv1.GrepRequest{Pattern: expr}
		if fold {
			req.CaseMode = sandbusv1.CaseMode_CASE_MODE_INSENSITIVE
		}
		p, err := newPattern(req)
		if err != nil {
			return
		}
		plain := &pattern{re: p.re}
		var got, want []hit
		for _, c := range []struct {
			p   *pattern
			out *[]hit
		}{{p, &got}, {plain, &want}} {
			if c.p.re == nil && !c.p.exact {
				return // one literal: there is nothing to compare with
			}
			m := newMatcher(c.p)
			if c.p == plain {
				m.dfa = nil
			}
			m.reset([]byte(text))
			for pos := 0; ; {
				h, ok := m.next(pos)
				if !ok {
					break
				}
				*c.out = append(*c.out, h)
				pos = h.end + 1
			}
		}
		require.Equal(t, want, got, "%q in %q, literals %+v", expr, text, p.lits)
	})
}

func FuzzResolve(f *testing.F) {
	f.Add("@~/a b", "x\u202fy")
	f.Fuzz(func(t *testing.T, path, dir string) {
		resp, err := New(t.TempDir()).Resolve(&sandbusv1.ResolveRequest{Path: path, Dir: dir})
		if err != nil {
			return
		}
		require.True(t, strings.HasPrefix(bus.FromText(resp.GetPath(), resp.GetPathRaw()), "/"))
	})
}

// TestConfined holds that nothing outside of a confined root is seen, by whatever way it is named.
func TestConfined(t *testing.T) {
	outer := t.TempDir()
	dir := filepath.Join(outer, "in")
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(outer, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(outer, name), []byte(text), 0o600))
	}
	write(".gitignore", "seen.txt\n") // is outside and does not count
	write("out/secret.txt", "SECRET\n")
	write("in/sub/seen.txt", "SECRET of our own\n")
	write("in/.gitignore", "not-seen.txt\n")
	write("in/sub/not-seen.txt", "SECRET\n")
	require.NoError(t, os.Symlink("../../out", filepath.Join(dir, "sub/up")))
	require.NoError(t, os.Symlink(filepath.Join(outer, "out/secret.txt"), filepath.Join(dir, "sub/abs")))
	require.NoError(t, os.Symlink("seen.txt", filepath.Join(dir, "sub/own")))
	require.NoError(t, os.Symlink("in", filepath.Join(outer, "alias")))
	for _, name := range []string{dir, filepath.Join(outer, "alias")} {
		r, err := Open(Config{Dir: filepath.Join(name, "sub"), Root: name})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		for _, path := range []string{".", "..", name, name + "/sub", "../sub/."} {
			resp, err := r.Grep(t.Context(), &sandbusv1.GrepRequest{Path: path, Pattern: "SECRET"})
			require.NoError(t, err, path)
			require.Len(t, resp.GetFiles(), 1, path)
			require.Equal(t, "SECRET of our own", resp.GetFiles()[0].GetLines()[0].GetText())
		}
		walk, err := r.Walk(t.Context(), &sandbusv1.WalkRequest{Path: ".", Targets: true})
		require.NoError(t, err)
		for i, want := range []struct {
			path   string
			target sandbusv1.FileType
		}{{"abs", 0}, {"own", sandbusv1.FileType_FILE_TYPE_REGULAR}, {"seen.txt", 0}, {"up", 0}} {
			require.Equal(t, want.path, walk.GetEntries()[i].GetPath())
			require.Equal(t, want.target, walk.GetEntries()[i].GetTargetType(), want.path)
		}
		for _, path := range []string{"../..", "/", outer, filepath.Join(outer, "out/secret.txt"), "up", "abs", "up/secret.txt", name + "/../out"} {
			_, err := r.Grep(t.Context(), &sandbusv1.GrepRequest{Path: path, Pattern: "SECRET"})
			require.ErrorContains(t, err, "(rule: root)", path)
			be, ok := errors.AsType[*bus.Error](err)
			require.True(t, ok)
			require.Equal(t, sandbusv1.Code_CODE_PERMISSION, be.Code)
			_, err = r.Glob(t.Context(), &sandbusv1.GlobRequest{Path: path, Pattern: "*"})
			require.ErrorContains(t, err, "(rule: root)", path)
			resp, err := r.Resolve(&sandbusv1.ResolveRequest{Path: path})
			require.NoError(t, err)
			require.NotEqual(t, sandbusv1.FileType_FILE_TYPE_REGULAR, resp.GetType(), path)
			require.Less(t, resp.GetSize(), int64(200), path)
		}
		resp, err := r.Resolve(&sandbusv1.ResolveRequest{Path: "@seen.txt"})
		require.NoError(t, err)
		require.True(t, resp.GetExists())
	}
	_, err := Open(Config{Dir: outer, Root: dir})
	require.ErrorContains(t, err, "want one below the root")
	_, err = Open(Config{Dir: dir, Root: filepath.Join(dir, "nowhere")})
	require.ErrorContains(t, err, "nowhere")
}

// TestGrepPathsAreBounded holds that long paths count as long texts do.
func TestGrepPathsAreBounded(t *testing.T) {
	dir := t.TempDir()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 14)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, deep), 0o755))
	for i := range 3000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, deep, fmt.Sprint(10_000+i)), []byte("x"), 0o600))
	}
	resp, err := New(dir).Grep(t.Context(), &sandbusv1.GrepRequest{Path: ".", Pattern: "x", Limit: maxMatches, Mode: sandbusv1.GrepMode_GREP_MODE_FILES})
	require.NoError(t, err)
	require.True(t, resp.GetFull())
	require.True(t, resp.GetMore())
	require.Len(t, resp.GetFiles(), maxAnswerBytes/len(deep+"10000")+1)
	require.Equal(t, int64(len(resp.GetFiles())), resp.GetSearched())
}

// TestFIFOsAreNotOpened holds that nobody who waits for a reader at a FIFO gets one.
func TestFIFOsAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pipe", ".gitignore", "sub/.gitignore"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub/f"), []byte("x\n"), 0o600))
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(events)) })
	for _, name := range []string{"pipe", ".gitignore", "sub/.gitignore"} {
		_, err = unix.InotifyAddWatch(events, filepath.Join(dir, name), unix.IN_OPEN)
		require.NoError(t, err)
	}
	for _, path := range []string{".", "sub"} {
		resp, err := New(dir).Grep(t.Context(), &sandbusv1.GrepRequest{Path: path, Pattern: "x"})
		require.NoError(t, err)
		require.Len(t, resp.GetFiles(), 1)
		require.Positive(t, resp.GetSkipped().GetSpecial())
		require.Positive(t, resp.GetSkipped().GetIgnoreFiles())
	}
	_, err = New(dir).Grep(t.Context(), &sandbusv1.GrepRequest{Path: "pipe", Pattern: "x"})
	require.ErrorContains(t, err, "no regular file")
	_, err = New(dir).Walk(t.Context(), &sandbusv1.WalkRequest{Path: "pipe"})
	require.ErrorContains(t, err, "not a directory")
	_, err = unix.Read(events, make([]byte, 4096))
	require.ErrorIs(t, err, unix.EAGAIN, "one was opened")
	fd, err := opened(unix.AT_FDCWD, filepath.Join(dir, "pipe"), 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	_, err = unix.Read(events, make([]byte, 4096))
	require.NoError(t, err, "an open goes unnoticed: this test shows nothing")
}
