package gateway

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestSimpleWords(t *testing.T) {
	for command, want := range map[string][]string{
		"cat file":                {"cat", "file"},
		" cat  -- 'a b'\"c d\"\n": {"cat", "--", "a bc d"},
		"[ -r x ]":                {"[", "-r", "x", "]"},
		"test -f ''":              {"test", "-f", ""},
		"cat '$x `y` \\ !'":       {"cat", "$x `y` \\ !"},
	} {
		got, ok := simpleWords(command)
		require.True(t, ok, command)
		require.Equal(t, want, got)
	}
	for _, command := range []string{
		"", " ", "cat $x", `cat "$x"`, "cat a;b", "cat a|b", "cat <a", "cat *", "cat a?", "cat [a]", "cat ~", "cat a#b", "cat 'a", "cat a\nb",
		`cat a\b`, "cat {a,b}", "x=1 cat a", "cat a &", "! cat a", "cat a # b", "cat (a)", "cat a\x00", "cat é", `cat "a!b"`,
	} {
		_, ok := simpleWords(command)
		require.False(t, ok, command)
	}
}

// FuzzSimpleWords compares what is taken for simple words with what bash makes of them.
func FuzzSimpleWords(f *testing.F) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		testenv.Need(f, "bash", false)
	}
	for _, s := range []string{"cat a 'b c' \"d\"", "[ -r x ]", "-e '' x", "a=b", "a'\n'b", "for", "[ ]", "]", "time x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words, ok := simpleWords(s)
		if !ok {
			return
		}
		out, err := exec.CommandContext(t.Context(), bash, "-c", "printf '%s\\0' "+strings.Trim(s, " \t\n")).Output()
		require.NoError(t, err)
		require.Equal(t, strings.Join(words, "\x00")+"\x00", string(out))
	})
}
