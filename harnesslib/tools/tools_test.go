package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
)

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 51200: "50.0KB", 1 << 20: "1.0MB", 3 << 30: "3.0GB"} {
		require.Equal(t, want, FormatSize(n))
	}
}

func TestWrite(t *testing.T) {
	f := newFakeFiles(nil)
	f.alike["~/é.txt"] = "/home/é.txt"
	f.dirs["/home"] = true
	tools := f.tools(Config{Dir: "/w"})
	for _, c := range []struct{ path, content, file, text string }{
		{"a/b/c.txt", "héllo", "/w/a/b/c.txt", "Wrote 6 bytes to a/b/c.txt"},
		{"/tmp/x", "", "/tmp/x", "Wrote 0 bytes to /tmp/x"},
		{"~/é.txt", "x", "/home/é.txt", "Wrote 1 bytes to ~/é.txt"},
	} {
		r, err := tools.Write(t.Context(), WriteParams{Path: c.path, Content: c.content})
		require.NoError(t, err)
		require.Equal(t, &WriteResult{Text: c.text, Path: c.file, Bytes: len(c.content)}, r)
		require.Equal(t, c.content, string(f.files[c.file]))
	}
	_, err := tools.Write(t.Context(), WriteParams{})
	require.ErrorContains(t, err, "the path is empty")
}

func TestEditParams(t *testing.T) {
	pair := []Replacement{{"a", "b"}}
	for _, c := range []struct {
		data, fault string
		want        EditParams
	}{
		{`{"path":"f","edits":[{"oldText":"a","newText":"b"}]}`, "", EditParams{"f", pair}},
		{`{"path":"f","edits":"[{\"oldText\":\"a\",\"newText\":\"b\"}]"}`, "", EditParams{"f", pair}},
		{`{"path":"f","oldText":"a","newText":"b"}`, "", EditParams{"f", pair}},
		{`{"path":"f","edits":[{"oldText":"a","newText":"b"}],"oldText":"c","newText":""}`, "", EditParams{"f", append(pair[:1:1], Replacement{"c", ""})}},
		{`{"path":"f","edits":null}`, "", EditParams{Path: "f"}},
		{`{"path":"f","oldText":"a"}`, "oldText without newText", EditParams{}},
		{`{"path":"f","newText":"a"}`, "newText without oldText", EditParams{}},
		{`{"path":"f","edits":{"a":1}}`, "want a list of {oldText, newText}", EditParams{}},
		{`{"path":"f","edits":"no json"}`, "want a list of {oldText, newText}", EditParams{}},
		{`[]`, "cannot unmarshal", EditParams{}},
	} {
		var p EditParams
		err := json.Unmarshal([]byte(c.data), &p)
		if c.fault != "" {
			require.ErrorContains(t, err, c.fault)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, p)
	}
}

func TestEdit(t *testing.T) {
	e := &fakeEditor{done: Edited{Diff: "@@ -1 +1 @@\n-a\n+b\n", FirstChangedLine: 1}}
	tools := New(Config{Editor: e, Dir: "/w"})
	r, err := tools.Edit(t.Context(), EditParams{"f", []Replacement{{"a", "b"}}})
	require.NoError(t, err)
	require.Equal(t, &EditResult{Text: "Replaced 1 block in f", Blocks: 1, Diff: e.done.Diff, FirstChangedLine: 1}, r)
	require.Equal(t, "/w/f", e.path)
	r, err = tools.Edit(t.Context(), EditParams{"f", []Replacement{{"a", "b"}, {"c", ""}}})
	require.NoError(t, err)
	require.Equal(t, "Replaced 2 blocks in f", r.Text)
	require.Equal(t, []Replacement{{"a", "b"}, {"c", ""}}, e.edits)

	e.err = errors.New("edit 1: the old text is in the file 3 times")
	for _, c := range []struct {
		edits []Replacement
		want  string
	}{
		{nil, "edit f: there are no edits"},
		{[]Replacement{{"a", "b"}, {"", "c"}}, "edit f: edit 2: oldText is empty"},
		{[]Replacement{{"a", "a"}}, "edit f: edit 1: oldText and newText are the same"},
		{[]Replacement{{"a", "b"}}, "edit f: edit 1: the old text is in the file 3 times"},
	} {
		_, err := tools.Edit(t.Context(), EditParams{"f", c.edits})
		require.ErrorContains(t, err, c.want)
	}
	_, err = New(Config{}).Edit(t.Context(), EditParams{"f", []Replacement{{"a", "b"}}})
	require.ErrorContains(t, err, "has no such tool")
}

func entries(n int, name string) []harnesslib.Entry {
	var out []harnesslib.Entry
	for i := range n {
		out = append(out, harnesslib.Entry{Path: fmt.Sprintf(name, i)})
	}
	return out
}

func TestLs(t *testing.T) {
	s := &fakeSearcher{}
	tools := New(Config{Searcher: s})
	for _, c := range []struct {
		name    string
		entries []harnesslib.Entry
		limit   int
		want    string
	}{
		{"empty", nil, 0, "(empty directory)"},
		{"order and marks", []harnesslib.Entry{
			{Path: "B"},
			{Path: "a", Type: fs.ModeDir},
			{Path: "C", Type: fs.ModeSymlink, Target: fs.ModeDir},
			{Path: "d", Type: fs.ModeSymlink, Target: fs.ModeIrregular},
			{Path: "e", Type: fs.ModeSymlink},
			{Path: ".f"},
			{Path: "g\nh", Type: fs.ModeNamedPipe},
		}, 0, ".f\na/\nB\nC/\nd (broken link)\ne\n\"g\\nh\""},
		{"exactly at the limit", entries(500, "f%03d"), 0, listText(500, "f%03d")},
		{"over the limit", entries(501, "f%03d"), 0, listText(500, "f%03d") + "\n\n[Showing 500 of 501 entries. Use limit=501 for more]"},
		{"a limit of the caller", entries(5, "f%03d"), 2, listText(2, "f%03d") + "\n\n[Showing 2 of 5 entries. Use limit=4 for more]"},
		{
			"bytes", entries(600, "f%03d"+strings.Repeat("x", 195)), 600,
			listText(256, "f%03d"+strings.Repeat("x", 195)) + "\n\n[Showing 256 of 600 entries (50.0KB limit). List a part with find]",
		},
	} {
		s.listing = &harnesslib.Listing{Entries: c.entries}
		r, err := tools.Ls(t.Context(), LsParams{Limit: c.limit})
		require.NoError(t, err)
		require.Equal(t, c.want, r.Text, c.name)
		require.Equal(t, len(c.entries), r.Total)
	}
	require.Len(t, s.walk, 6, "one request each")
	_, err := tools.Ls(t.Context(), LsParams{Limit: -1})
	require.ErrorContains(t, err, "limit -1: want 1 or more")
}

func listText(n int, name string) string {
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(name, i))
	}
	return strings.Join(lines, "\n")
}

func TestFind(t *testing.T) {
	s := &fakeSearcher{}
	tools := New(Config{Searcher: s})
	for _, c := range []struct {
		name    string
		listing harnesslib.Listing
		limit   int
		want    string
	}{
		{"none", harnesslib.Listing{}, 0, "No files found matching pattern"},
		{"some", harnesslib.Listing{Entries: []harnesslib.Entry{{Path: "a/b", Type: fs.ModeDir}, {Path: "a/b/c"}}}, 0, "a/b/\na/b/c"},
		{
			"over the limit",
			harnesslib.Listing{Entries: entries(3, "f%d"), More: true},
			3,
			"f0\nf1\nf2\n\n[3 results limit reached. Use limit=6 for more, or refine the pattern]",
		},
		{
			"bytes",
			harnesslib.Listing{Entries: entries(600, "f%03d"+strings.Repeat("x", 195)), More: true},
			600,
			listText(256, "f%03d"+strings.Repeat("x", 195)) + "\n\n[50.0KB limit reached: showing 256 results. Refine the pattern or the path]",
		},
		{
			"skipped",
			harnesslib.Listing{Skipped: harnesslib.Skipped{Unreadable: 2, FirstUnreadable: "x", TooDeep: 1}},
			0,
			"No files found matching pattern\n\n[2 unreadable entries skipped, first: x. 1 directory is too deep and was not searched]",
		},
	} {
		s.listing = &c.listing
		r, err := tools.Find(t.Context(), FindParams{Pattern: "x", Limit: c.limit})
		require.NoError(t, err)
		require.Equal(t, c.want, r.Text, c.name)
	}
	require.Equal(t, harnesslib.GlobOptions{Case: harnesslib.CaseSmart, Limit: 1000}, s.glob)
}

func TestGrepText(t *testing.T) {
	s := &fakeSearcher{}
	tools := New(Config{Searcher: s})
	line := func(n int64, text string, context bool) harnesslib.GrepLine {
		return harnesslib.GrepLine{Number: n, Text: text, Context: context}
	}
	var wide []harnesslib.GrepLine
	for i := range 300 {
		wide = append(wide, line(int64(i+1), strings.Repeat("x", 300), false))
	}
	for _, c := range []struct {
		name   string
		result harnesslib.GrepResult
		want   string
	}{
		{"none", harnesslib.GrepResult{}, "No matches found"},
		{"match and context", harnesslib.GrepResult{Files: []harnesslib.GrepFile{
			{Path: "a/b.go", Lines: []harnesslib.GrepLine{line(1, "x", true), line(2, "hit\r", false)}},
			{Path: "c\n", Lines: []harnesslib.GrepLine{line(7, "\xff", false)}},
		}}, "a/b.go-1- x\na/b.go:2: hit\n\"c\\n\":7: \uFFFD"},
		{
			"limit",
			harnesslib.GrepResult{Files: []harnesslib.GrepFile{{Path: "a", Lines: []harnesslib.GrepLine{line(1, "x", false)}}}, More: true},
			"a:1: x\n\n[100 matches limit reached. Use limit=200 for more, or refine the pattern]",
		},
		{"cut lines", harnesslib.GrepResult{Files: []harnesslib.GrepFile{{Path: "a", Lines: []harnesslib.GrepLine{
			{Number: 1, Text: "hit", CutBefore: 10, CutAfter: 20},
		}}}}, "a:1: [10 characters left out]…hit…[20 characters left out]\n\n[1 lines cut to 500 characters. Use read to see them whole]"},
		{
			"skipped",
			harnesslib.GrepResult{Skipped: harnesslib.Skipped{Binary: 1, Unreadable: 1, FirstUnreadable: "u"}},
			"No matches found\n\n[1 unreadable entry skipped: u. 1 binary file skipped]",
		},
		{
			"bytes",
			harnesslib.GrepResult{Files: []harnesslib.GrepFile{{Path: "a", Lines: wide}}, More: true},
			"\n\n[50.0KB limit reached: showing 166 matches. Refine the pattern or the path]",
		},
	} {
		s.result = &c.result
		r, err := tools.Grep(t.Context(), GrepParams{Pattern: "x"})
		require.NoError(t, err)
		if c.name == "bytes" {
			require.True(t, strings.HasSuffix(r.Text, c.want), r.Text[len(r.Text)-200:])
			continue
		}
		require.Equal(t, c.want, r.Text, c.name)
	}
	_, err := tools.Grep(t.Context(), GrepParams{Pattern: "-x", IgnoreCase: true, Literal: true, Context: 2, Glob: "*.go", Limit: 7})
	require.NoError(t, err)
	require.Equal(t, harnesslib.GrepOptions{
		Fixed: true, Case: harnesslib.CaseInsensitive, Globs: []string{"*.go"}, Before: 2, After: 2, Limit: 7, MaxLine: 500,
	}, s.grep)
	s.err = &fs.PathError{Op: "grep", Path: ".", Err: fs.ErrInvalid}
	_, err = tools.Grep(t.Context(), GrepParams{Pattern: "("})
	require.ErrorIs(t, err, fs.ErrInvalid)
}

func TestAbortedFileTools(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user pressed escape")
	cancel(why)
	s := &fakeSearcher{err: why}
	tools := New(Config{Searcher: s, Editor: &fakeEditor{err: why}})
	_, err1 := tools.Find(ctx, FindParams{Pattern: "x"})
	_, err2 := tools.Grep(ctx, GrepParams{Pattern: "x"})
	_, err3 := tools.Ls(ctx, LsParams{})
	_, err4 := tools.Edit(ctx, EditParams{"f", []Replacement{{"a", "b"}}})
	for _, err := range []error{err1, err2, err3, err4} {
		require.EqualError(t, err, "Operation aborted")
		require.ErrorIs(t, err, ErrAborted)
		require.ErrorIs(t, err, why)
	}
}

func FuzzEditParams(f *testing.F) {
	f.Add([]byte(`{"path":"f","edits":"[{\"oldText\":\"a\"}]"}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var p EditParams
		_ = json.Unmarshal(data, &p) // must not panic
	})
}

// TestParamNames holds that parameters have the names that models know.
func TestParamNames(t *testing.T) {
	timeout := 1.0
	for _, c := range []struct {
		p    any
		want string
	}{
		{ReadParams{"p", 1, 2}, `{"path":"p","offset":1,"limit":2}`},
		{WriteParams{"p", "c"}, `{"path":"p","content":"c"}`},
		{EditParams{"p", []Replacement{{"a", "b"}}}, `{"path":"p","edits":[{"oldText":"a","newText":"b"}]}`},
		{LsParams{"p", 1}, `{"path":"p","limit":1}`},
		{FindParams{"x", "p", 1}, `{"pattern":"x","path":"p","limit":1}`},
		{GrepParams{"x", "p", "g", true, true, 1, 2}, `{"pattern":"x","path":"p","glob":"g","ignoreCase":true,"literal":true,"context":1,"limit":2}`},
		{BashParams{Command: "c", Timeout: &timeout}, `{"command":"c","timeout":1}`},
	} {
		got, err := json.Marshal(c.p)
		require.NoError(t, err)
		require.JSONEq(t, c.want, string(got))
	}
}

// TestLsEndless holds that a sandbox that always has one more page does not hold us for ever.
func TestLsEndless(t *testing.T) {
	s := &fakeSearcher{listing: &harnesslib.Listing{Entries: entries(50_000, "f%05d"), More: true}}
	_, err := New(Config{Searcher: s}).Ls(t.Context(), LsParams{Path: "d"})
	require.EqualError(t, err, "ls d: has more than 1000000 entries. Use find with a pattern")
	require.Len(t, s.walk, 20)
	require.Equal(t, "f49999", s.walk[19].After)
}
