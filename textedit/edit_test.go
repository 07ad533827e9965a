package textedit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestApply(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	for _, c := range []struct {
		name, content string
		edits         []Edit
		want          string
	}{
		{"one line", "a\nb\nc\n", []Edit{{Old: "b", New: "B"}}, "a\nB\nc\n"},
		{"deletion", "a\nb\nc\n", []Edit{{Old: "b\n", New: ""}}, "a\nc\n"},
		{"no final newline", "a\nb", []Edit{{Old: "b", New: "B"}}, "a\nB"},
		{"to a final newline", "a\nb", []Edit{{Old: "a\nb", New: "a\nB\n"}}, "a\nB\n"},
		{"several, out of order, growing and shrinking", "one two three four", []Edit{{Old: "four", New: "4"}, {Old: "one", New: "uno uno"}, {Old: "two ", New: ""}}, "uno uno three 4"},
		{"each against the original", "a b", []Edit{{Old: "a", New: "b"}, {Old: "b", New: "a"}}, "b a"},
		{"neighbours", "abcd", []Edit{{Old: "ab", New: "1"}, {Old: "cd", New: "2"}}, "12"},
		{"CRLF", "a\r\nb\r\nc\r\n", []Edit{{Old: "a\nb\n", New: "A\nB\nX\n"}}, "A\r\nB\r\nX\r\nc\r\n"},
		{"CRLF, one line becomes two", "a\r\nb\r\n", []Edit{{Old: "a", New: "a1\na2"}}, "a1\r\na2\r\nb\r\n"},
		{"mixed endings keep theirs", "a\r\nb\nc\r\nd\n", []Edit{{Old: "a\nb\nc", New: "A\nB\nC"}}, "A\r\nB\nC\r\nd\n"},
		{"mixed endings, in the LF part", "a\r\nb\nc\nd\n", []Edit{{Old: "b", New: "b1\nb2"}}, "a\r\nb1\nb2\nc\nd\n"},
		{"a match that begins with the line break", "a\r\nb\r\nc", []Edit{{Old: "\nb", New: "\nB"}}, "a\r\nB\r\nc"},
		{"a match that ends before the line break", "x\r\na\r\nb", []Edit{{Old: "x\na", New: "y"}}, "y\r\nb"},
		{"the last line, no ending behind", "a\r\nb", []Edit{{Old: "b", New: "b\nc"}}, "a\r\nb\r\nc"},
		{"a CR is meant byte for byte", "a\nb\n", []Edit{{Old: "a\n", New: "a\r\n"}}, "a\r\nb\n"},
		{"CR in the old text", "a\r\nb\na\nb\n", []Edit{{Old: "a\r\nb", New: "x"}}, "x\na\nb\n"},
		{"BOM", bom + "a\nb\n", []Edit{{Old: "a", New: "A"}}, bom + "A\nb\n"},
		{"BOM in the old text", bom + "a\nb\n", []Edit{{Old: bom + "a", New: "A"}}, bom + "A\nb\n"},
		{"BOM in both texts", bom + "a\nb\n", []Edit{{Old: bom + "a", New: bom + "A"}}, bom + "A\nb\n"},
		{"exact before fuzzy", "it's\nit\u2019s\n", []Edit{{Old: "it's", New: "X"}}, "X\nit\u2019s\n"},
		{"smart quotes", "say \u201chi\u201d, it\u2019s \u2018me\u2019\n", []Edit{{Old: `say "hi", it's 'me'`, New: "bye"}}, "bye\n"},
		{"smart quotes in the old text", `say "hi"`, []Edit{{Old: "say \u201chi\u201d", New: "x"}}, "x"},
		{"dashes", "a \u2013 b \u2014 c \u2212 d \u2011 e", []Edit{{Old: "a - b - c - d - e", New: "x"}}, "x"},
		{"spaces", "a\u00a0b\u2003c\u3000d\u202fe", []Edit{{Old: "a b c d e", New: "x"}}, "x"},
		{"NFKC: NFD in the file", "caf\x65\u0301 ol\u00e9\n", []Edit{{Old: "caf\u00e9", New: "tea"}}, "tea ol\u00e9\n"},
		{"NFKC: a ligature", "e\ufb03cient code\n", []Edit{{Old: "efficient", New: "fast"}}, "fast code\n"},
		{"trailing spaces in the file", "if x:  \n\ty \n\tz  \nend\n", []Edit{{Old: "if x:\n\ty\n\tz", New: "if w:\n\tv"}}, "if w:\n\tv  \nend\n"},
		{"trailing spaces in the old text", "a\nb\n", []Edit{{Old: "a  \nb \n", New: "x\n"}}, "x\n"},
		{"trailing spaces and CRLF", "a  \r\nb\r\nc\r\n", []Edit{{Old: "a\nb", New: "x\ny"}}, "x\r\ny\r\nc\r\n"},
		{"fuzzy with CRLF in both texts, LF in the file", "a \nb\n", []Edit{{Old: "a\r\nb", New: "x\r\ny"}}, "x\ny\n"},
		{"untouched lines keep their fancy characters", "\u201cone\u201d\n\u201ctwo\u201d\n\u201cthree\u201d \n", []Edit{{Old: `"two"`, New: "2"}}, "\u201cone\u201d\n2\n\u201cthree\u201d \n"},
		{"invalid UTF-8 elsewhere", "\xff\nab\n\xfe", []Edit{{Old: "ab", New: "x"}}, "\xff\nx\n\xfe"},
		{"bytes", "a\xffb", []Edit{{Old: "\xff", New: "\xfe", Bytes: true}}, "a\xfeb"},
		{"to nothing", "a", []Edit{{Old: "a", New: ""}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, places, faults := Apply([]byte(c.content), c.edits, false)
			require.Empty(t, faults)
			require.Equal(t, c.want, string(got))
			require.Len(t, places, len(c.edits))
			checkDiff(t, c.content, c.want, places)
		})
	}
}

func TestApplyFaults(t *testing.T) {
	for _, c := range []struct {
		name, content string
		edits         []Edit
		exact         bool
		want          []Fault
	}{
		{"empty", "a", []Edit{{New: "x"}}, false, []Fault{{Reason: Empty}}},
		{"no match", "alpha beta\ngamma delta\n", []Edit{{Old: "gamma delte", New: "x"}}, false, []Fault{{Reason: NoMatch, Closest: "gamma delta", ClosestLine: 2}}},
		{"no match, nothing like it", "alpha\n", []Edit{{Old: "0123456789", New: "x"}}, false, []Fault{{Reason: NoMatch}}},
		{"no match, several lines", "a\nfunc main() {\n\tprint(1)\n}\n", []Edit{{Old: "func main() {\n\tprint(2)\n}", New: "x"}}, false, []Fault{{Reason: NoMatch, Closest: "func main() {\n\tprint(1)\n}", ClosestLine: 2}}},
		{"twice", "a\nb\na\n", []Edit{{Old: "a", New: "x"}}, false, []Fault{{Reason: Ambiguous, Count: 2, Lines: []int{1, 3}}}},
		{"overlapping matches", "aaa", []Edit{{Old: "aa", New: "x"}}, false, []Fault{{Reason: Ambiguous, Count: 2, Lines: []int{1, 1}}}},
		{"twice in different endings", "a\r\nb\r\na\nb\n", []Edit{{Old: "a\nb", New: "x"}}, false, []Fault{{Reason: Ambiguous, Count: 2, Lines: []int{1, 3}}}},
		{"twice, fuzzy", "\u2018a\u2019\n\u2019a\u2019\n", []Edit{{Old: "'a'", New: "x"}}, false, []Fault{{Reason: Ambiguous, Count: 2, Lines: []int{1, 2}}}},
		{"very often", strings.Repeat("a", 5000), []Edit{{Old: "a", New: "x"}}, false, []Fault{{Reason: Ambiguous, Count: MaxCount, Lines: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}}},
		{"overlap", "abcdef", []Edit{{Old: "cdef", New: "x"}, {Old: "abcd", New: "y"}}, false, []Fault{{Index: 1, Reason: Overlap, Other: 0}}},
		{"the same twice", "abc", []Edit{{Old: "b", New: "x"}, {Old: "b", New: "y"}}, false, []Fault{{Index: 1, Reason: Overlap, Other: 0}}},
		{"identical", "abc", []Edit{{Old: "b", New: "b"}}, false, []Fault{{Reason: Identical}}},
		{"identical but for endings", "a\r\nb", []Edit{{Old: "a\nb", New: "a\nb"}}, false, []Fault{{Reason: Identical}}},
		{"one of two is at fault", "abc", []Edit{{Old: "a", New: "x"}, {Old: "z", New: "y"}}, false, []Fault{{Index: 1, Reason: NoMatch}}},
		{"exact only", "it\u2019s", []Edit{{Old: "it's", New: "x"}}, true, []Fault{{Reason: NoMatch, Closest: "it\u2019s", ClosestLine: 1}}},
		{"part of a character", "\ufb03", []Edit{{Old: "f", New: "x"}}, false, []Fault{{Reason: NoMatch}}},
		{"white space is nowhere", "a", []Edit{{Old: "  \n ", New: "x"}}, false, []Fault{{Reason: NoMatch}}},
		{"not UTF-8 around it", "x\nab\xffc\n", []Edit{{Old: "ab", New: "x"}}, false, []Fault{{Reason: NotUTF8}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, places, faults := Apply([]byte(c.content), c.edits, c.exact)
			require.Nil(t, got)
			require.Nil(t, places)
			if c.want[0].Reason == NoMatch && c.want[0].Closest == "" {
				for i := range faults {
					faults[i].Closest, faults[i].ClosestLine = "", 0
				}
			}
			require.Equal(t, c.want, faults)
			require.Contains(t, faults[0].String(), fmt.Sprintf("edit %d: ", c.want[0].Index+1))
		})
	}
	require.Contains(t, (&Fault{Reason: Ambiguous, Count: MaxCount, Lines: []int{1, 2}}).String(), "at least 1000 times (lines 1, 2)")
}

// checkDiff lets patch(1) make the change again.
func checkDiff(t *testing.T, content, want string, places []Place) {
	t.Helper()
	for _, context := range []int{0, 1, 4} {
		diff, cut, first := Diff([]byte(content), places, context, 1<<20)
		require.False(t, cut)
		require.NotEmpty(t, diff)
		require.Equal(t, firstDifference(content, want), first)
		if _, err := exec.LookPath("patch"); err != nil || strings.Contains(content+want, "\r") || context == 0 {
			continue // the diff shows lines without their CR
		}
		file := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
		cmd := exec.CommandContext(t.Context(), "patch", "-s", "-F0", file)
		cmd.Stdin = strings.NewReader("--- a\n+++ b\n" + diff)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", out, diff)
		got, err := os.ReadFile(file)
		if want == "" && err != nil {
			continue // patch removes a file that becomes empty
		}
		require.NoError(t, err)
		require.Equal(t, want, string(got), diff)
	}
}

func firstDifference(a, b string) int {
	as, bs := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	for i := range as {
		if i >= len(bs) || as[i] != bs[i] {
			return i + 1
		}
	}
	return len(as) + 1
}

func TestDiff(t *testing.T) {
	var content strings.Builder
	for i := range 30 {
		_, _ = fmt.Fprintf(&content, "line %d\n", i+1)
	}
	_, places, faults := Apply([]byte(content.String()), []Edit{
		{Old: "line 3\n", New: "line 3\nline 3b\n"}, {Old: "line 5\n", New: ""}, {Old: "ne 25", New: "NE 25"},
	}, false)
	require.Empty(t, faults)
	diff, cut, first := Diff([]byte(content.String()), places, 1, 1<<20)
	require.False(t, cut)
	require.Equal(t, 4, first)
	require.Equal(t, `@@ -3,4 +3,4 @@
 line 3
+line 3b
 line 4
-line 5
 line 6
@@ -24,3 +24,3 @@
 line 24
-line 25
+liNE 25
 line 26
`, diff)
	diff, cut, _ = Diff([]byte(content.String()), places, 1, 20)
	require.True(t, cut)
	require.Len(t, diff, 20)
}

func FuzzApply(f *testing.F) {
	for _, s := range [][5]string{
		{"a\r\nb\nc", "a\nb", "x\ny", "c", "z"},
		{"\u201ca\u201d \n\ufb03", `"a"`, "b", "ffi", "f"},
		{"\xef\xbb\xbfa\xff", "a", "", "\xff", "b"},
		{"e\u0301\u0301\r\r\n", "\u00e9", "\n", "\n", "\r\n"},
		{"\u1100\u1161\u11a8", "\uac01", "x", "", ""},
	} {
		f.Add([]byte(s[0]), s[1], s[2], s[3], s[4], false)
	}
	f.Fuzz(func(t *testing.T, content []byte, old1, new1, old2, new2 string, asBytes bool) {
		before := bytes.Clone(content)
		edits := []Edit{{old1, new1, asBytes}, {old2, new2, asBytes}}
		got, places, faults := Apply(content, edits, false)
		require.Equal(t, before, content)
		if len(faults) > 0 {
			require.Nil(t, got)
			for _, f := range faults {
				require.NotEmpty(t, f.String())
			}
			return
		}
		// What is outside of the places is the content's, and what is inside was meant.
		rest, at := got, 0
		for _, i := range inOrder(places) {
			p := places[i]
			require.GreaterOrEqual(t, p.Offset, at)
			untouched := content[at:p.Offset]
			require.True(t, bytes.HasPrefix(rest, untouched))
			rest = rest[len(untouched):]
			require.True(t, bytes.HasPrefix(rest, []byte(p.New)))
			rest = rest[len(p.New):]
			at = p.end()
			passage := content[p.Offset:at]
			old := []byte(strings.TrimPrefix(edits[i].Old, "\xef\xbb\xbf"))
			if p.Fuzzy {
				require.Equal(t, foldAll(old), foldAll(passage))
			} else {
				require.Equal(t, bytes.ReplaceAll(old, []byte("\r\n"), newline), bytes.ReplaceAll(bytes.TrimPrefix(passage, []byte("\xef\xbb\xbf")), []byte("\r\n"), newline))
			}
		}
		require.Equal(t, content[at:], rest)
		Diff(content, places, 3, 1<<16)
	})
}

func foldAll(b []byte) string {
	var out []byte
	for i, line := range bytes.Split(b, newline) {
		if i > 0 {
			out = append(out, '\n')
		}
		out = appendFolded(out, line)
	}
	return string(out)
}
