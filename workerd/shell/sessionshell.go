package shell

import (
	"bufio"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/workerd/proc"
)

// sessionShell is the shell of a session. It reads what to do as a script on its standard input, so that no loop of
// ours is around a command which a "break" could end. It is used by one command at a time.
type sessionShell struct {
	lang dialect
	cmd  *exec.Cmd
	self proc.Process
	in   *os.File  // write end of its standard input
	loop string    // what descriptor 0 is while no command runs, as /proc has it
	says chan said // what it says; closed when it has ended and all was said
}

// said is a line of the shell: that a command begins, or that it has ended with a code.
type said struct {
	nonce string
	ended bool
	code  int
}

func startSessionShell(cfg *Config, dir string) (*sessionShell, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		closeAll(inR, inW)
		return nil, err
	}
	args, name := cfg.argv()
	args[0] = name
	if isBusybox(cfg.Path) {
		args[0] = cfg.Path
	}
	s := &sessionShell{lang: dialectOf(name), in: inW, says: make(chan said, 2)}
	s.cmd = &exec.Cmd{
		Path: cfg.Path, Args: append(args, "-s"), Dir: dir, Env: cfg.Env, Stdin: inR,
		// Descriptor 3 takes what the shell says.
		ExtraFiles:  []*os.File{statusW},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = proc.StartChild(s.cmd, cfg.Rules)
	closeAll(inR)
	if err != nil {
		closeAll(inW, statusR, statusW)
		return nil, err
	}
	s.self = proc.Find(s.cmd.Process.Pid)
	s.loop = descriptor(s.cmd.Process.Pid, 0)
	go s.listen(statusR)
	go func() {
		_ = proc.WaitChild(s.cmd) // how it ended is in ProcessState
		// Processes that it has left behind may hold its end of the pipe: so it is we who say that it has ended.
		_, _ = statusW.WriteString(lastWord) // the reader is there until it comes
		closeAll(statusW)
	}()
	_, err = inW.WriteString(s.lang.start + "\n")
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// lastWord is behind all that a shell says.
const lastWord = "!\n"

// descriptor is what a process has open at a number; empty when that cannot be seen.
func descriptor(pid, n int) string {
	link, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(n))
	if err != nil {
		return ""
	}
	return link
}

// listen hands on what the shell says. What is no line of ours is a command's that has found the descriptor: ignored.
func (s *sessionShell) listen(pipe *os.File) {
	defer close(s.says)
	defer closeAll(pipe)
	in := bufio.NewReaderSize(pipe, 128)
	for {
		line, err := in.ReadSlice('\n')
		if err == nil && string(line) == lastWord {
			return
		}
		if err != nil && err != bufio.ErrBufferFull { //nolint:errorlint // documented as the value itself
			return
		}
		m, ok := parseSaid(string(line))
		if !ok {
			continue
		}
		select {
		case s.says <- m: // has room for what one command makes the shell say
		default:
		}
	}
}

// parseSaid reads "> nonce" and "< code nonce".
func parseSaid(line string) (m said, ok bool) {
	f := strings.Fields(line)
	switch {
	case len(f) == 2 && f[0] == ">":
		return said{nonce: f[1]}, true
	case len(f) == 3 && f[0] == "<":
		code, err := strconv.Atoi(f[1])
		return said{nonce: f[2], ended: true, code: code}, err == nil && code >= 0 && code <= 255
	}
	return said{}, false
}

// alive says whether the shell is still there, and drops what nobody has asked for.
func (s *sessionShell) alive() bool {
	for {
		select {
		case _, ok := <-s.says:
			if !ok {
				return false
			}
		default:
			return true
		}
	}
}

// idle says whether the shell waits for its next line: false also where that cannot be seen.
func (s *sessionShell) idle() bool {
	return s.loop != "" && descriptor(s.cmd.Process.Pid, 0) == s.loop
}

// dir is the shell's directory; gone means that it was deleted, unknown ("") that it cannot be seen.
func (s *sessionShell) dir() (dir string, gone bool) {
	link := "/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/cwd"
	dir, err := os.Readlink(link)
	if err != nil {
		return "", false
	}
	var is, named unix.Stat_t
	if unix.Stat(link, &is) != nil {
		return "", false
	}
	// A directory that is gone is called "NAME (deleted)", as one that is there may be: the inode tells.
	if unix.Stat(dir, &named) == nil && named.Ino == is.Ino && named.Dev == is.Dev {
		return dir, false
	}
	name, deleted := strings.CutSuffix(dir, " (deleted)")
	return name, deleted
}

// interrupt has the shell give up the command that it runs.
func (s *sessionShell) interrupt() { s.self.Signal(unix.SIGURG) }

// quit ends a shell that waits: it gets to run its EXIT trap. Then it and all below it are dead.
func (s *sessionShell) quit() {
	tree := proc.NewTree(s.self, false, "")
	closeAll(s.in)
	s.wait(quitLimit)
	s.kill(tree)
}

// quitLimit is how long an EXIT trap may take.
const quitLimit = 500 * time.Millisecond

// wait waits for the shell's own end.
func (s *sessionShell) wait(limit time.Duration) (ended bool) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case _, ok := <-s.says:
			if !ok {
				return true
			}
		case <-t.C:
			return false
		}
	}
}

// end kills the shell and all below it and waits for it.
func (s *sessionShell) end() { s.kill(proc.NewTree(s.self, false, "")) }

func (s *sessionShell) kill(tree *proc.Tree) {
	closeAll(s.in)
	_ = s.cmd.Process.Kill() // gone already: that was the aim
	for range s.says {       // until it was waited for
	}
	tree.Look()
	tree.Signal(unix.SIGKILL)
	tree.Await(context.Background(), time.Second)
}

// dialect is how a session speaks to a kind of shell. Aliases are expanded in what a shell reads, so every word that
// names a command is quoted; a function may have the name of any builtin, so every builtin is called through the one
// word for that.
type dialect struct {
	start    string // once, at the beginning
	before   string // what makes the words below safe
	call     string // calls a builtin
	eval     string // evaluates a word, with assignments before it for that time only
	cleared  string // undoes what an interrupt did
	takesINT bool   // the death of a command substitution by SIGINT is the shell's own
}

func dialectOf(name string) dialect {
	if name == "bash" {
		return bashDialect
	}
	return posixDialect
}

// In both dialects __sandbus_in is set while a command runs, and SIGURG, which nobody else uses and which is ignored
// where it is not trapped, makes the shell give that command up.
var (
	// In a POSIX shell an error of expansion ends whatever is evaluated up to the "command eval", which goes on. Special
	// builtins such as unset cannot be hidden by functions, "command" can.
	posixDialect = dialect{
		start:  `\trap 'case ${__sandbus_in-} in ?*) { : "${__sandbus_never?}"; } 2>/dev/null;; esac' URG`,
		before: `\unset -f command; `,
		call:   `\command`,
		eval:   `\command eval`,
	}
	// A bash has no such error that spares it. But a DEBUG trap with extdebug can skip each command and return from each
	// function: by 2, which a bad regular expression gives without a process. Our own commands are known by a word in them.
	bashDialect = dialect{
		start: `\builtin trap 'if [[ -n ${__sandbus_in-} && -z ${__sandbus_t+x} ]]; then ` +
			`__sandbus_t=$(builtin trap -p DEBUG; builtin shopt -p extdebug) __sandbus_r="("; builtin shopt -s extdebug; ` +
			`builtin trap "case \$BASH_COMMAND in *__sandbus*) ;; *) builtin break 999; [[ x =~ \$__sandbus_r ]];; esac 2>/dev/null" DEBUG; ` +
			`fi' URG`,
		takesINT: true,
		call:     `\builtin`,
		eval:     `\builtin command eval`,
		cleared: `if [[ -n ${__sandbus_t+x} ]]; then \builtin shopt -u extdebug __sandbus || :; \builtin trap - DEBUG; ` +
			`\builtin eval "$__sandbus_t" || :; \builtin unset __sandbus_t __sandbus_r; fi; `,
	}
)

// connection is what a command of a session is connected with: words for the shell.
type connection struct {
	stdin, stdout, stderr string
	text                  string // where a long script comes from; empty for one in the line
}

// inlineText is the longest text that is a part of the line: a shell reads its input byte by byte.
const inlineText = 2048

// line is what makes the shell run a command and say how it ended; text, when not empty, goes through the pipe that
// the connection names. toRoot changes to the root directory first, for good.
func (d *dialect) line(c *Command, toRoot bool, nonce string, con connection) (line, text string) {
	script := d.script(c)
	word := `"$__sandbus_script"`
	if con.text == "" {
		word = quoted(script)
	} else {
		text = "__sandbus_script=" + quoted(script) + "\n"
	}
	var b strings.Builder
	b.WriteString(d.before)
	if toRoot {
		b.WriteString(d.call + " cd /; ")
	}
	conditions := []string{}
	if con.text != "" {
		conditions = append(conditions, d.call+" . "+con.text)
	}
	if c.Dir != "" {
		b.WriteString("__sandbus_w=${PWD-} __sandbus_o=${OLDPWD-}; ")
		conditions = append(conditions, d.call+" cd -- "+quoted(c.Dir))
	}
	if len(conditions) > 0 {
		b.WriteString("if " + strings.Join(conditions, " && ") + "; then ")
	}
	if c.Dir != "" {
		b.WriteString("__sandbus_c=${PWD-}; ")
	}
	// The status is taken before anything is put back: a command may have closed what that needs.
	b.WriteString("__sandbus_in=1; { " + d.call + ` printf '> %s\n' ` + nonce + " >&3; { " + d.eval + " " + word + "; __sandbus_s=$?; } 3>&-; } <" +
		con.stdin + " >" + con.stdout + " 2>" + con.stderr + "; __sandbus_in=; " + d.before + d.cleared)
	if con.text != "" {
		b.WriteString("__sandbus_script=; ")
	}
	if c.Dir != "" { // the command may have changed the directory: then it stays there
		b.WriteString(`case ${PWD-} in "$__sandbus_c") ` + d.call + ` cd -- "$__sandbus_w" || ` + d.call + ` cd /; OLDPWD=$__sandbus_o;; esac; `)
	}
	b.WriteString(d.call + ` printf '< %s %s\n' "$__sandbus_s" ` + nonce + ` >&3 || \exit "$__sandbus_s"`)
	if len(conditions) > 0 {
		b.WriteString("; else " + d.call + ` printf '< 126 %s\n' ` + nonce + " >&3; fi")
	}
	b.WriteByte('\n')
	return b.String(), text
}

// script is the command's text, with its environment for the time of its run.
func (d *dialect) script(c *Command) string {
	if len(c.Env) == 0 {
		return c.Script
	}
	var b strings.Builder
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		b.WriteString(name + "=")
		quote(&b, value)
		b.WriteByte(' ')
	}
	b.WriteString(d.eval + " ")
	quote(&b, c.Script)
	return b.String()
}

func quoted(s string) string {
	var b strings.Builder
	quote(&b, s)
	return b.String()
}

func newNonce() string { return rand.Text()[:13] }
