package shell

import (
	"os"
	"slices"
	"strings"

	"github.com/sandbus/sandbus/workerd/proc"
)

// quote makes one shell word of any bytes but NUL: within single quotes every other byte means itself (POSIX shell,
// 2.2.2).
func quote(b *strings.Builder, s string) {
	b.WriteByte('\'')
	for {
		before, after, found := strings.Cut(s, "'")
		b.WriteString(before)
		if !found {
			break
		}
		b.WriteString(`'\''`)
		s = after
	}
	b.WriteByte('\'')
}

// text is what the waiting subshell sources: the exec's directory, standard input (a word; empty for none) and
// environment, and its script as one word.
func text(c *Command, stdin, defaultDir string, plain []string) string {
	var b strings.Builder
	b.Grow(len(c.Script) + len(c.Dir) + 256)
	if c.Dir != defaultDir {
		b.WriteString("cd -- ")
		quote(&b, c.Dir)
		b.WriteString(" || exit 126\n")
	}
	if stdin != "" {
		b.WriteString("exec <")
		b.WriteString(stdin)
		b.WriteByte('\n')
	}
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		b.WriteString("export ")
		b.WriteString(name)
		b.WriteByte('=')
		quote(&b, value)
		b.WriteByte('\n')
	}
	if plain != nil {
		b.WriteString("exec")
		for _, w := range plain {
			b.WriteByte(' ')
			quote(&b, w)
		}
		b.WriteByte('\n')
		return b.String()
	}
	b.WriteString("__sandbus_script=")
	quote(&b, c.Script)
	b.WriteByte('\n')
	return b.String()
}

// plainWords returns the words of a script that is one plain command: a program of PATH and arguments in which no
// character means anything to a shell. For such a script "bash -c" replaces itself by the program instead of forking
// once more; we do the same, which halves what "cat FILE" costs. For everything else it returns nil, and the shell
// reads the text.
func plainWords(c *Command, dir string, env []string) []string {
	if len(c.Script) > 4096 {
		return nil
	}
	for i := range len(c.Script) {
		if !plainByte[c.Script[i]] {
			return nil
		}
	}
	words := strings.Split(strings.Trim(c.Script, " "), " ")
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	if len(words) == 0 || strings.Contains(words[0], "=") || ownWord[words[0]] {
		return nil
	}
	if strings.Contains(words[0], "/") && words[0][0] != '/' {
		return nil
	}
	if len(c.Env) > 0 {
		env = append(slices.Clip(env), c.Env...)
	}
	if _, err := proc.LookPath(words[0], dir, env); err != nil {
		return nil // the shell says what is wrong, in its own words
	}
	return words
}

// plainByte are the bytes that mean only themselves, wherever they stand in a simple command. Left out on purpose:
// '~' (home), '{' (braces), '#' (comment), '!' (negation), '^' (history, pipes in old shells).
var plainByte = func() (t [256]bool) {
	for _, c := range "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:@%+= " {
		t[c] = true
	}
	return t
}()

// ownWord are the words of plain bytes that a shell does not look up in PATH: the reserved words and builtins of bash
// 5.3, dash 0.5.12 and busybox ash 1.37, and "_" names for what is ours.
var ownWord = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`
		if then else elif fi case esac for select while until do done in function time coproc
		. : alias bg bind break builtin caller cd chdir command compgen complete compopt continue declare dirs disown echo
		enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf
		pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit
		umask unalias unset wait`) {
		words[w] = true
	}
	return words
}()

// maxArg is the longest argument that the kernel takes (MAX_ARG_STRLEN less its NUL).
const maxArg = 128<<10 - 1

// Argv is the command line of a fresh shell that runs a script, as "bash -c" would, and the descriptors from 3 up that
// it needs. The caller closes them.
func Argv(path, script string) (argv []string, extra []*os.File, err error) {
	argv = []string{path}
	if isBusybox(path) {
		argv = append(argv, "sh")
	}
	if len(script) <= maxArg {
		return append(argv, "-c", script), nil, nil
	}
	// Too long for an argument: a file without a name carries it as one assignment.
	var b strings.Builder
	b.WriteString("__sandbus_script=")
	quote(&b, script)
	b.WriteByte('\n')
	f, err := memfile(b.String())
	if err != nil {
		return nil, nil, err
	}
	return append(argv, "-c", `. /proc/self/fd/3; exec 3<&-; eval "$__sandbus_script"`), []*os.File{f}, nil
}
