package command

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

const (
	// maxBanner is how many bytes may come before the shell's answer.
	maxBanner = 1 << 20
	// leaveLimit is how long a process may take to go when nothing holds it any more.
	leaveLimit = 2 * time.Second
)

// line is one process of the prefix with a shell at its far end. It is used by one command at a time.
type line struct {
	cmd     *exec.Cmd
	stdin   *os.File
	out     *pump
	errOut  *pump
	exited  chan struct{} // closed when the process is gone, with state set
	state   string
	pid     int    // of the far shell
	started string // when it was, in the far kernel's ticks; "0" when that is not known
	bash    bool
	noise   answer          // what came on the standard error while only the output was waited for
	defined map[string]bool // functions that the far shell has
	pumps   sync.WaitGroup
	once    sync.Once
	gone    chan struct{} // closed when the line is given up
}

// pump reads one output and hands on pieces; the receiver is done with one when it asks for the next.
type pump struct {
	file   *os.File
	pieces chan []byte // closed at the end
}

func (p *pump) run(gone <-chan struct{}) {
	defer close(p.pieces)
	bufs := [2][]byte{make([]byte, 64<<10), make([]byte, 64<<10)}
	for i := 0; ; i ^= 1 {
		n, err := p.file.Read(bufs[i])
		if n > 0 {
			select {
			case p.pieces <- bufs[i][:n]:
			case <-gone:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// openLine starts a process of the prefix and greets the shell. Errors: ErrUnreachable, the context's cause.
func openLine(ctx context.Context, cfg *Config, upgrade bool) (*line, error) {
	argv, may := cfg.argv()
	l, err := startLine(cfg, argv)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", transport.ErrUnreachable, argv[0], err)
	}
	limit, cancel := context.WithTimeoutCause(ctx, cfg.startTimeout(),
		fmt.Errorf("%w: %s: no answer of a shell within %s", transport.ErrUnreachable, argv[0], cfg.startTimeout()))
	defer cancel()
	if err := l.greet(limit, cfg, upgrade && may); err != nil {
		l.kill()
		return nil, err
	}
	return l, nil
}

func startLine(cfg *Config, argv []string) (*line, error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close() // the child has its own, or there is none
		}
	}()
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w, err
	}
	inR, inW, err := pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it outlives the call that starts it; close ends it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if len(cfg.Env) > 0 {
		cmd.Env = append(cmd.Environ(), cfg.Env...)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	files = []*os.File{inR, outW, errW}
	l := &line{
		cmd: cmd, stdin: inW, exited: make(chan struct{}), gone: make(chan struct{}), defined: map[string]bool{},
		out: &pump{outR, make(chan []byte)}, errOut: &pump{errR, make(chan []byte)},
	}
	l.pumps.Go(func() { l.out.run(l.gone) })
	l.pumps.Go(func() { l.errOut.run(l.gone) })
	l.pumps.Go(func() {
		err := cmd.Wait()
		l.state = cmd.ProcessState.String()
		if ee := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ee) {
			l.state = err.Error()
		}
		close(l.exited)
	})
	return l, nil
}

// greeting is what the shell runs first. Its marks are sent in two halves, so that a terminal's echo is not taken for
// the answer, and the answer has a newline in its middle, which a terminal would change.
func greeting(first, second, dir string) string {
	var b strings.Builder
	b.WriteString(`{ { read -r __s </proc/$$/stat; } 2>/dev/null || __s=; set -- ${__s##*)}; ` +
		`if [ $# -ge 20 ]; then shift 19; else set -- 0; fi; __s=0; `)
	if dir != "" {
		b.WriteString(`CDPATH= cd -- ` + transport.Quote(inDir(dir)) + ` >/dev/null 2>&1 || __s=1; `)
	}
	half := len(first) / 2
	mark := fmt.Sprintf("'%s' '%s'", first[:half], first[half:])
	b.WriteString(`printf '%s%s %s %s %s %s\n%s\n' ` + mark + ` "$$" "$1" "$__s" "${BASH_VERSION:+bash}" ` + second + `; ` +
		`printf '%s%s\n%s\n' ` + mark + ` ` + second + ` >&2; set --; unset __s; exec 3>&1 4>&2; }` + "\n")
	return b.String()
}

// inDir keeps a relative directory from being taken for "-" or an option.
func inDir(dir string) string {
	if strings.HasPrefix(dir, "/") {
		return dir
	}
	return "./" + dir
}

// greet waits for the shell's answer.
func (l *line) greet(ctx context.Context, cfg *Config, upgrade bool) error {
	if upgrade {
		ready := rand.Text()
		half := len(ready) / 2
		say := fmt.Sprintf(`printf '%%s%%s\n' '%s' '%s'`, ready[:half], ready[half:])
		text := `{ if command -v bash >/dev/null 2>&1; then ` + say + `; exec bash --norc --noprofile; fi; ` + say + "; }\n"
		_ = l.send(text) // who does not take it has ended, which shows
		out := &answer{want: []string{ready + "\n", ready + "\r\n"}}
		if err := l.await(ctx, cfg, out, nil); err != nil {
			return err
		}
	}
	first, second := rand.Text(), rand.Text()
	_ = l.send(greeting(first, second, cfg.Dir)) // likewise
	out, errOut := &answer{want: []string{second + "\n", second + "\r\n"}}, &answer{want: []string{second + "\n", second + "\r\n"}}
	if err := l.await(ctx, cfg, out, errOut); err != nil {
		return err
	}
	_, said, found := strings.Cut(string(out.got), first)
	if !found || strings.Contains(said, "\r") {
		return fmt.Errorf("%w: %s gives its command a terminal, which changes bytes: leave out its option for one (-t)",
			transport.ErrUnreachable, cfg.Prefix[0])
	}
	f := strings.Fields(said)
	if len(f) < 4 {
		return fmt.Errorf("%w: the shell behind %s answers %.80q", transport.ErrUnreachable, cfg.Prefix[0], said)
	}
	l.pid, _ = strconv.Atoi(f[0]) // zero: nothing can be stopped there, which shows then
	l.started, l.bash = f[1], f[3] == "bash"
	if f[2] != "0" {
		return startFailed("cwd", cfg.Dir)
	}
	return nil
}

// answer collects what comes until one of the wanted texts.
type answer struct {
	want []string
	got  []byte
}

func (a *answer) there() bool {
	for _, w := range a.want {
		if a != nil && bytes.Contains(a.got, []byte(w)) {
			return true
		}
	}
	return false
}

// await collects until both answers are there; errOut nil means that the standard error is not waited for.
func (l *line) await(ctx context.Context, cfg *Config, out, errOut *answer) error {
	outC, errC, exited := l.out.pieces, l.errOut.pieces, l.exited
	toErr := errOut
	if toErr == nil {
		toErr = &l.noise
	}
	var hangup <-chan time.Time
	for !out.there() || (errOut != nil && !errOut.there()) {
		var b []byte
		var ok bool
		into := out
		select {
		case b, ok = <-outC:
			if !ok {
				outC = nil
			}
		case b, ok = <-errC:
			into = toErr
			if !ok {
				errC = nil
			}
		case <-exited:
			exited, hangup = nil, time.After(leaveLimit) // what is in the pipes comes yet
		case <-hangup:
			return l.unanswered(ctx, cfg, out, toErr)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if into.got = append(into.got, b...); len(into.got) > maxBanner {
			return fmt.Errorf("%w: %s prints more than %d bytes, and no shell answers", transport.ErrUnreachable, cfg.Prefix[0], maxBanner)
		}
		if outC == nil && errC == nil {
			return l.unanswered(ctx, cfg, out, toErr)
		}
	}
	return nil
}

// unanswered is the error of a process that ended instead of answering.
func (l *line) unanswered(ctx context.Context, cfg *Config, out, errOut *answer) error {
	state := "its output has ended"
	select {
	case <-l.exited:
		state = l.state
	case <-time.After(leaveLimit):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	said := ""
	for _, a := range []*answer{errOut, out} {
		if said == "" {
			said = strings.TrimSpace(string(a.got))
		}
	}
	if said != "" {
		said = ": " + strings.ToValidUTF8(said[max(0, len(said)-500):], "?")
	}
	return fmt.Errorf("%w: %s leads to no shell: %s%s", transport.ErrUnreachable, cfg.Prefix[0], state, said)
}

func (l *line) send(text string) error {
	_, err := l.stdin.WriteString(text)
	return err
}

// hangUp lets go of the line: what runs at its far end is not killed.
func (l *line) hangUp() { l.end(func() { _ = l.cmd.Process.Kill() }) } // it may be gone already

// close ends the line and, with its group, what the near process has started here.
func (l *line) close() {
	l.end(func() {
		_ = l.stdin.Close() // a shell that has nothing to do goes by itself
		select {
		case <-l.exited:
			if l.pid != 0 {
				return
			}
		case <-time.After(leaveLimit):
		}
		_ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL) // likewise
	})
}

// kill ends the line at once.
func (l *line) kill() {
	l.end(func() { _ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL) }) // likewise
}

// end is done once; it waits for the process and the pumps.
func (l *line) end(how func()) {
	l.once.Do(func() {
		close(l.gone)
		how()
		_ = l.stdin.Close() // nobody reads it any more
		<-l.exited
		_, _ = l.out.file.Close(), l.errOut.file.Close()
		l.pumps.Wait()
	})
}
