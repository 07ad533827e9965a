package command

import (
	"strings"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

// markVar marks in the environment what belongs to a command, as the worker does.
const markVar = "SANDBUS_EXEC_ID"

// maxArg is the longest script that is handed on as an argument, in bytes; the kernel takes 128 KiB less one.
const maxArg = 120 << 10

// job is what a line is asked to run.
type job struct {
	transport.Command

	define []function // what the shell is to have
	own    bool       // a function of ours, which leaves nothing behind: it runs in the shell itself
	last   bool       // the line ends with it, and its standard input is the command's
	merge  bool       // standard error goes where standard output goes
	mark   string     // in the environment of all that it starts
}

// function is one that a line's shell is to have.
type function struct{ name, text string }

// text is what the shell reads for one command: one compound, so that all of it is read before any of it runs. The
// command runs in a subshell of a command substitution, which ends when nobody holds descriptor 9 any more.
func (j *job) text(secret string, l *line) string {
	var b strings.Builder
	for _, f := range j.define {
		if !l.defined[f.name] {
			b.WriteString(f.text + "\n")
			l.defined[f.name] = true
		}
	}
	b.Grow(len(j.Script) + 1024)
	say := func(what, fd string) { b.WriteString(`printf '` + secret + what + fd) }
	b.WriteString("{ ")
	say("<'", " >&3; ")
	say("<'", " >&4; ")
	if j.own || j.builtin() {
		b.WriteString("{ " + j.Script + "; } " + j.input() + "3>&- 4>&-; ")
		b.WriteString(`printf '` + secret + `=%s\n` + secret + `>' "$?" >&3; `)
		say(`=\n`+secret+`>'`, " >&4; ")
		j.end(&b)
		return b.String()
	}
	b.WriteString(`: "$( { `)
	if j.Dir != "" {
		b.WriteString("if CDPATH= cd -- " + transport.Quote(inDir(j.Dir)) + " >/dev/null; then ")
	}
	b.WriteString("( ")
	j.inner(&b, l)
	b.WriteString(" ) " + j.input() + "9>&1 >&3 ")
	if j.merge {
		b.WriteString("2>&1")
	} else {
		b.WriteString("2>&4")
	}
	b.WriteString(" 3>&- 4>&-; __s=$?; ")
	if j.Dir != "" {
		b.WriteString("else __s=cwd; fi; ")
	}
	b.WriteString(`printf '` + secret + `=%s\n' "$__s" >&3; `)
	say(`=\n'`, ` >&4; } 2>/dev/null )"; `)
	say(">'", " >&3; ")
	say(">'", " >&4; ")
	j.end(&b)
	return b.String()
}

// builtin says that a command is one of those that change nothing, leave nothing behind and cannot hang: it needs no
// process of its own. All its bytes mean themselves.
func (j *job) builtin() bool {
	first, _, _ := strings.Cut(j.Script, " ")
	if first != "test" && first != "true" && first != "false" || len(j.Script) > 4096 || j.Dir != "" || len(j.Env) > 0 {
		return false
	}
	return strings.Trim(j.Script, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:@%+= ") == ""
}

func (j *job) input() string {
	if j.last && j.Stdin != nil {
		return ""
	}
	return "</dev/null "
}

// end closes the compound. What is left of a command's input must not be read as text.
func (j *job) end(b *strings.Builder) {
	if j.last {
		b.WriteString("exit 0; ")
	}
	b.WriteString("}\n")
}

// inner is what runs in the subshell.
func (j *job) inner(b *strings.Builder, l *line) {
	b.WriteString("unset __s; export " + markVar + "=" + j.mark)
	for _, v := range j.Env {
		name, value, _ := strings.Cut(v, "=")
		b.WriteString(" " + name + "=" + transport.Quote(value))
	}
	b.WriteString("; ")
	if ownShell(j.Script) {
		shell := "sh"
		if l.bash {
			shell = "bash"
		}
		b.WriteString("exec " + shell + " -c " + transport.Quote(j.Script))
		return
	}
	b.WriteString("eval " + transport.Quote(j.Script))
}

// ownShell says that a script asks for its shell's process id, which must be its own and not that of the line's shell:
// names of temporary files are made of it, and signals sent to it.
func ownShell(script string) bool {
	return len(script) <= maxArg && (strings.Contains(script, "$$") || strings.Contains(script, "${$") || strings.Contains(script, "PPID"))
}
