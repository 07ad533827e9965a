package gitignore

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		rules string
		path  string // with a slash behind it: a directory
		want  Decision
	}{
		{"foo", "foo", Ignore},
		{"foo", "a/b/foo", Ignore},
		{"foo", "a/foobar", None},
		{"/foo", "foo", Ignore},
		{"/foo", "a/foo", None},
		{"a/foo", "a/foo", Ignore},
		{"a/foo", "b/a/foo", None},
		{"foo/", "foo", None},
		{"foo/", "a/foo/", Ignore},
		{"*.o", "a/b.o", Ignore},
		{"*.o\n!keep.o", "keep.o", Include},
		{"!keep.o\n*.o", "keep.o", Ignore},
		{"a/*.o", "a/b/c.o", None},
		{"**/foo/bar", "x/y/foo/bar", Ignore},
		{"**/foo/bar", "foo/bar", Ignore},
		{"a/**/b", "a/b", Ignore},
		{"a/**/b", "a/x/y/b", Ignore},
		{"a/**", "a/x/y", Ignore},
		{"a/**", "a/", None},
		{"a**b/c", "axxb/c", Ignore},
		{"a**b/c", "ax/xb/c", None},
		{"[a-c]x", "bx", Ignore},
		{"[!a-c]x", "dx", Ignore},
		{"[^a-c]x", "bx", None},
		{"[]x]y", "]y", Ignore},
		{"[[:digit:]]", "7", Ignore},
		{"[[:nothing:]]", "n", None},
		{"[a", "[a", None},
		{`\#x`, "#x", Ignore},
		{"#x", "#x", None},
		{`\!x`, "!x", Ignore},
		{`x\ `, "x ", Ignore},
		{"x   ", "x", Ignore},
		{"  x", "  x", Ignore},
		{`x\`, `x\`, None},
		{`\*`, "*", Ignore},
		{`\*`, "x", None},
		{"x\r\ny\r\n", "x", Ignore},
		{"\xef\xbb\xbfx", "x", Ignore},
		{"?", "é", None},
		{"??", "é", Ignore},
		{"\xff*", "\xffx", Ignore},
		{"/", "x/", None},
		{"!", "x", None},
		{"", "x", None},
		{"{a,b}", "a", None},
		{"{a,b}", "{a,b}", Ignore},
	} {
		path, isDir := strings.CutSuffix(c.path, "/")
		require.Equal(t, c.want, Parse([]byte(c.rules)).Match(path, isDir), "%q on %q", c.rules, c.path)
	}
}

// TestMatchIsLinear holds that a pattern on which backtracking explodes does not hold us.
func TestMatchIsLinear(t *testing.T) {
	f := Parse([]byte(strings.Repeat("**/a*", 200) + "/b"))
	require.Equal(t, None, f.Match(strings.Repeat("aaaa/", 800)+"c", false))
}

// glued is "**" behind a letter, where git does not do what gitignore(5) says: see the package's doc.
var glued = regexp.MustCompile(`[^/*]\*\*`)

// ignored asks as a walker does: what lies below an ignored directory is ignored.
func ignored(f *File, path string, isDir bool) bool {
	for i := 0; i < len(path); i++ {
		if path[i] == '/' && f.Match(path[:i], true) == Ignore {
			return true
		}
	}
	return f.Match(path, isDir) == Ignore
}

// TestAgainstGit compares random ignore files with git's own answer.
func TestAgainstGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("SANDBUS_REQUIRE"), ","), "git") {
			require.FailNow(t, "SANDBUS_REQUIRE names git and there is none")
		}
		t.Skip("NOT TESTED: there is no git to compare with")
	}
	dir := t.TempDir()
	run := func(stdin string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), git, args...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.Output()
		if ee, ok := err.(*exec.ExitError); ok && ee.ExitCode() == 1 { //nolint:errorlint // of check-ignore: nothing is ignored
			return ""
		}
		require.NoError(t, err)
		return string(out)
	}
	run("", "init", "-q")
	names := []string{"a", "b", "ab", "a.b", "ba", "]", "-", "é", "!", "#", " ", "a ", "^", `\`, "A", "*", "{a,b}", "\xff"}
	var paths []string
	for _, n1 := range names {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, n1, "a", "b"), 0o755))
		paths = append(paths, n1, n1+"/a", n1+"/a/b")
		for _, n2 := range names[1:] {
			for _, p := range []string{n1 + "/" + n2, n1 + "/a/b/" + n2, "f" + n2} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, p), nil, 0o600))
				paths = append(paths, p)
			}
		}
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	rnd := rand.New(rand.NewPCG(1, 2))
	pieces := []string{
		"a", "b", "a", "b", "f", "/", "/", "*", "*", "**", "**/", "/**", "?", "[ab]", "[!a]", "[^b]", "[]]", "[a-c]", "[[:alpha:]]",
		"[[:x:]]", "[[:", "[", "]", "-", "!", "#", " ", `\`, `\*`, `\ `, ".", "é", "A", "{a,b}", "\xff", "[--0]", "[a-]", "[\\]]", "^", "***",
	}
	rounds := 400
	if testing.Short() {
		rounds = 40
	}
	for range rounds {
		var rules strings.Builder
		for range 1 + rnd.IntN(4) {
			if rnd.IntN(4) == 0 {
				rules.WriteByte('!')
			}
			line := ""
			for range 1 + rnd.IntN(5) {
				line += pieces[rnd.IntN(len(pieces))]
			}
			if glued.MatchString(line) {
				continue
			}
			rules.WriteString(line + []string{"\n", "\n", "/\n", "\r\n"}[rnd.IntN(4)])
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(rules.String()), 0o600))
		out := run(strings.Join(paths, "\x00"), "check-ignore", "--no-index", "-z", "--stdin")
		want := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
		f := Parse([]byte(rules.String()))
		got := []string{}
		for _, p := range paths {
			fi, err := os.Lstat(filepath.Join(dir, p))
			require.NoError(t, err)
			if ignored(f, p, fi.IsDir()) {
				got = append(got, p)
			}
		}
		if len(got) == 0 {
			got = []string{""}
		}
		require.Equal(t, want, got, "rules %q", rules.String())
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"*.o\n!k", "[[:alpha:]-z]", "a/**/b\\", "**/**/x", "[!]-]", "\\ ", "[\\"} {
		f.Add([]byte(s), "a/b c.o")
	}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		file := Parse(data)
		require.LessOrEqual(t, file.Len(), bytes.Count(data, []byte("\n"))+1)
		_ = file.Match(path, true)
		// A rule that quotes every byte of a name matches it, whatever is in it.
		name := path[strings.LastIndexByte(path, '/')+1:]
		if name == "" || strings.ContainsAny(name, "\n\x00") || strings.HasSuffix(name, "\r") {
			return
		}
		var rule []byte
		for i := range len(name) {
			rule = append(rule, '\\', name[i])
		}
		require.Equal(t, Ignore, Parse(rule).Match(name, false), "%q on %q", rule, name)
	})
}
