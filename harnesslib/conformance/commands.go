package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

var commandCases = []Case{
	{"stdout is bytes", stdoutIsBytes},
	{"stderr apart", stderrApart},
	{"no output", noOutput},
	{"exit codes", exitCodes},
	{"signals", signals},
	{"no stdin", noStdin},
	{"stdin is bytes", stdinIsBytes},
	{"stdin not read", stdinNotRead},
	{"text verbatim", textVerbatim},
	{"commands apart", commandsApart},
	{"directory and environment", dirAndEnv},
	{"at once", atOnce},
	{"left behind", leftBehind},
	{"refusals", refusals},
}

// allBytes is every byte, in every company, without a final newline.
func allBytes() []byte {
	b := make([]byte, 0, 1<<17)
	for i := range 256 {
		b = append(b, byte(i))
	}
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same bytes each time
	for range 1 << 16 {
		b = append(b, byte(r.Uint32()))
	}
	return append(b, "\r50%\r100%\n\n\nno newline"...)
}

func stdoutIsBytes(t *T) {
	name := t.dir() + "/bytes"
	want := allBytes()
	require.NoError(t, t.Files().WriteFile(t.ctx, name, want, 0o644))
	for range 3 {
		res := t.script("cat " + name)
		require.Equal(t, sha256.Sum256(want), sha256.Sum256(res.Stdout), "%d bytes of %d", len(res.Stdout), len(want))
		require.Zero(t, t.code(res, "cat"))
	}
}

func stderrApart(t *T) {
	res := t.script(`echo out; echo err >&2; printf out; printf err >&2`)
	require.Equal(t, "out\nout", string(res.Stdout))
	require.Equal(t, "err\nerr", string(res.Stderr))
}

func noOutput(t *T) {
	res := t.script("true")
	require.Empty(t, res.Stdout)
	require.Empty(t, res.Stderr)
	require.Zero(t, t.code(res, "true"))
	require.False(t, res.Truncated)
}

func exitCodes(t *T) {
	for script, want := range map[string]int{
		"exit 0": 0, "exit 1": 1, "exit 7": 7, "exit 124": 124, "exit 255": 255, "exit 300": 44, "false": 1, "set -eu; false; exit 3": 1,
		"sandbus-no-such-program": 127, "/tmp": 126, "exec false": 1, "echo x; exit 3": 3,
	} {
		require.Equal(t, want, t.code(t.script(script), script), script)
	}
	name := t.dir() + "/runs"
	t.script("echo ran >>" + name + "; exit 3")
	require.Equal(t, "ran\n", string(t.read(name)), "a command that fails runs once")
}

// signals: 128 + N is what a shell makes of it; what nobody may make of it is a success, or another signal.
func signals(t *T) {
	for name, n := range map[string]int{"KILL": 9, "TERM": 15} {
		script := "kill -" + name + " $$; sleep 60"
		res := t.script(script)
		if res.Signal != "" {
			require.Equal(t, name, res.Signal)
			require.Nil(t, res.ExitCode)
		} else {
			require.Equal(t, 128+n, t.code(res, script))
		}
		res = t.script("sh -c '" + script + "'; echo $?")
		require.Equal(t, fmt.Sprintf("%d\n", 128+n), string(res.Stdout))
	}
	require.Equal(t, 137, t.code(t.script("exit 137"), "exit 137"))
}

func noStdin(t *T) {
	for _, script := range []string{"cat", "wc -c >/dev/null", "while read -r x; do echo $x; done"} {
		res := t.script(script)
		require.Empty(t, res.Stdout, script)
		require.Zero(t, t.code(res, script))
	}
}

func stdinIsBytes(t *T) {
	want := allBytes()
	res := t.exec(transport.Command{Script: "cat", Stdin: bytes.NewReader(want)})
	require.Equal(t, sha256.Sum256(want), sha256.Sum256(res.Stdout), "%d bytes of %d", len(res.Stdout), len(want))
	large := bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	res = t.exec(transport.Command{Script: "wc -c; echo end", Stdin: bytes.NewReader(large)})
	require.Equal(t, fmt.Sprint(len(large))+" end", strings.Join(strings.Fields(string(res.Stdout)), " "))
	res = t.exec(transport.Command{Script: "cat; echo end", Stdin: strings.NewReader("")})
	require.Equal(t, "end\n", string(res.Stdout))
}

// stdinNotRead: it is no error, and what is left of it is nothing's text.
func stdinNotRead(t *T) {
	name := t.dir() + "/made"
	evil := strings.Repeat("\ntouch "+name+"\n", 1<<15)
	res := t.exec(transport.Command{Script: "head -c 10 >/dev/null; echo $?", Stdin: strings.NewReader(evil)})
	require.Equal(t, "0\n", string(res.Stdout))
	require.Zero(t, t.code(res, "head"))
	res = t.exec(transport.Command{Script: "true", Stdin: strings.NewReader(evil)})
	require.Zero(t, t.code(res, "true"))
	require.Equal(t, "there\n", string(t.script("[ -e "+name+" ] || echo there").Stdout), "left input was run")
}

func textVerbatim(t *T) {
	for script, want := range map[string]string{
		"cat <<'X'\na $HOME `x`\n\nX":                   "a $HOME `x`\n\n",
		"echo a # a comment":                            "a\n",
		"echo 'it!s' \"a!b\"":                           "it!s a!b\n",
		`printf '%s' '$HOME'`:                           "$HOME",
		"echo a \\\nb":                                  "a b\n",
		"# only a comment":                              "",
		"f() { echo \"$1\"; }; f 'x  y'":                "x  y\n",
		"for i in 1 2; do\n\techo $i\ndone":             "1\n2\n",
		"echo ${1-none} $#":                             "none 0\n",
		"printf '%s\\n' 'a\tb' '日本語' \"'\"":             "a\tb\n日本語\n'\n",
		"x='\n\n'; printf '%s' \"$x\"":                  "\n\n",
		"printf '%s' " + strings.Repeat("x", 1<<17):     strings.Repeat("x", 1<<17),
		"exec >/dev/null; echo gone":                    "",
		"yes | head -n 1":                               "y\n",
		"printf() { :; }; echo() { :; }; cat <<X\na\nX": "a\n",
	} {
		res := t.script(script)
		require.Equal(t, want, string(res.Stdout), "%.80q", script)
		require.Zero(t, t.code(res, script))
	}
	for _, script := range []string{"echo 'unclosed", "if true; then", "(", "echo a; )"} {
		res := t.script(script)
		require.Equal(t, 2, t.code(res, script), script)
		require.NotEmpty(t, res.Stderr, script)
	}
	require.Equal(t, "alive\n", string(t.script("echo alive").Stdout))
}

// commandsApart: what one command does to its shell never reaches the next.
func commandsApart(t *T) {
	home := string(t.script("pwd").Stdout)
	for _, script := range []string{
		"cd /; export A=1; B=2; set -e; set -u; f() { :; }", "exit 7", "trap 'echo trapped' EXIT; exec 3>&- 4>&- 9>&-", "exec true", "alias printf=false", "unset PATH",
		"set -x; true", "umask 777", "ulimit -n 10", "printf() { return 1; }; echo() { return 1; }", "readonly A=9", "kill -9 $$", "IFS=x; set -- a b c", "exec 1>&- 2>&-",
	} {
		t.script(script)
		res := t.script(`pwd; echo "${A-}${B-}" $#; (exit 3); echo $?; umask; f 2>/dev/null || echo nof; false; echo end | cat`)
		got := strings.Split(string(res.Stdout), "\n")
		require.Len(t, got, 7, "behind %q: %q %q", script, res.Stdout, res.Stderr)
		require.Equal(t, strings.TrimSpace(home), got[0], script)
		require.Equal(t, []string{" 0", "3"}, got[1:3], script)
		require.NotEqual(t, "0777", got[3], script)
		require.Equal(t, []string{"nof", "end", ""}, got[4:], script)
		require.Empty(t, res.Stderr, script)
	}
}

func dirAndEnv(t *T) {
	dir := t.dir()
	name := dir + "/a 'b\" $c"
	require.NoError(t, t.Files().MkdirAll(t.ctx, name, 0o755))
	res := t.exec(transport.Command{Script: "pwd -P", Dir: name})
	require.Equal(t, "a 'b\" $c\n", string(res.Stdout[bytes.LastIndexByte(res.Stdout, '/')+1:]))
	value := "it's \"$HOME\" \\ \n\t`x` é"
	res = t.exec(transport.Command{Script: `printf '%s' "$SANDBUS_A|$SANDBUS_B"; env | grep -c '^SANDBUS_A='`, Env: []string{"SANDBUS_A=" + value, "SANDBUS_B="}})
	require.Equal(t, value+"|1\n", string(res.Stdout))
	require.Equal(t, "none\n", string(t.script("echo ${SANDBUS_A-none}").Stdout))
}

func atOnce(t *T) {
	var wg sync.WaitGroup
	out := make([]string, 8)
	errs := make([]error, len(out))
	for i := range out {
		wg.Go(func() {
			res, err := t.Exec(t.ctx, transport.Command{Script: fmt.Sprintf("for i in 1 2 3 4 5; do echo %d; done; exit %d", i, i)})
			if errs[i] = err; err == nil && res.ExitCode != nil {
				out[i] = fmt.Sprintf("%s%d", res.Stdout, *res.ExitCode)
			}
		})
	}
	wg.Wait()
	for i := range out {
		require.NoError(t, errs[i])
		require.Equal(t, strings.Repeat(fmt.Sprintf("%d\n", i), 5)+fmt.Sprint(i), out[i])
	}
}

// leftBehind: what goes on in the background is not waited for, and does not print into what comes next.
func leftBehind(t *T) {
	dir := t.dir()
	res := t.script("{ while [ ! -e " + dir + "/go ]; do sleep 0.1; done; echo late; echo done >" + dir + "/done; } & echo first")
	require.Equal(t, "first\n", string(res.Stdout))
	require.Zero(t, t.code(res, "background"))
	require.NoError(t, t.Files().WriteFile(t.ctx, dir+"/go", nil, 0o644))
	for range 5 {
		require.Equal(t, "next\n", string(t.script("sleep 0.1; echo next").Stdout))
	}
}

// refusals: nothing is sent of what cannot be meant.
func refusals(t *T) {
	for _, c := range []transport.Command{
		{},
		{Script: "echo \x00"},
		{Script: "true", Dir: "a\x00"},
		{Script: "true", Env: []string{"A B=1"}},
		{Script: "true", Env: []string{"nothing"}},
		{Script: "true", OutputLimit: -1},
		{Script: "true", Timeout: -1},
		{Script: "true", Timeout: transport.MaxTimeout + 1},
	} {
		_, err := t.Exec(t.ctx, c)
		require.Error(t, err, "%+v", c)
	}
}
