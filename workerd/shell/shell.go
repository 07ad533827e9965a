package shell

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// loop is what a warm shell runs. It is one line, so that the line numbers in a command's error messages are those of
// the command's text. Descriptor 3 brings "text out err nonce" for each command, descriptor 4 takes "status nonce", and
// with traces descriptor 5 the process id of each subshell that waits.
func loop(p *pipes, name string, traces bool) string {
	base, announce := p.word(""), ""
	switch {
	case traces && name == "bash": // "$$" is that of the shell
		announce = `echo "$BASHPID" >&5; exec 5>&-; `
	case traces:
		announce = `read -r __p __x </proc/self/stat; echo "$__p" >&5; exec 5>&-; unset __p __x; `
	}
	return `while read -r __t __o __e __n <&3; do ` +
		`( ` + announce + `unset __o __e __n; . ` + base + `"$__t" || exit 126; unset __t; eval "$__sandbus_script" ) ` +
		`</dev/null >` + base + `"$__o" 2>` + base + `"$__e" 3<&- 4>&-; ` +
		`echo "$? $__n" >&4; done`
}

// shell is one warm shell. It is used by one command at a time.
type shell struct {
	pipes   *pipes
	cmd     *exec.Cmd
	self    proc.Process
	command *os.File    // write end of descriptor 3
	status  chan status // what the loop says; closed when nobody can say anything any more
	born    rawFD       // read end of descriptor 5; zero without traces
	next    *round      // the command that is prepared
}

type status struct {
	code  int
	nonce string
}

// round is the pipes of one command, opened by the subshell that waits for it.
type round struct {
	pipes      *pipes
	nonce      string
	text       rawFD // write end: the command's text goes in here
	textR      rawFD // kept open until the subshell has opened it
	outW, errW rawFD // likewise
	outR, errR *os.File
	names      [4]string   // of text, stdout, stderr and stdin
	taken      atomic.Bool // the reader of a text that was fed is there
	process    rawFD       // the subshell's handle, zero for none
}

// rawFD is a descriptor that nobody waits on: an os.File would enter it into the poller and take it out again, for
// each command. Zero is none.
type rawFD int

func (f *rawFD) close() {
	if *f != 0 {
		_ = unix.Close(int(*f)) // a pipe's end: nothing is buffered in it
		*f = 0
	}
}

// rawPipe makes a pipe; 0 is never one of its ends, as standard input is open.
func rawPipe() (r, w rawFD, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, os.NewSyscallError("pipe2", err)
	}
	return rawFD(p[0]), rawFD(p[1]), nil
}

// waited makes a file of a pipe's read end, to be waited on.
func waited(raw rawFD) (*os.File, error) {
	if err := unix.SetNonblock(int(raw), true); err != nil {
		raw.close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(raw), "|0"), nil
}

// outPipe is a pipe for a command's output: the read end, the write end, and its name for the shell.
func (p *pipes) outPipe() (r *os.File, w rawFD, name string, err error) {
	raw, w, name, err := p.make()
	if err != nil {
		return nil, 0, "", err
	}
	if r, err = waited(raw); err != nil {
		w.close()
		p.remove(name)
		return nil, 0, "", err
	}
	return r, w, name, nil
}

// startShell starts a shell and prepares its first command. With traces each subshell says its process id.
func startShell(cfg *Config, p *pipes, traces bool) (*shell, error) {
	commandR, commandW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		closeAll(commandR, commandW)
		return nil, err
	}
	extra := []*os.File{commandR, statusW}
	s := &shell{pipes: p, command: commandW, status: make(chan status, 1)}
	if traces {
		var w rawFD
		if s.born, w, err = rawPipe(); err != nil {
			closeAll(commandR, commandW, statusR, statusW)
			return nil, err
		}
		extra = append(extra, os.NewFile(uintptr(w), "|1"))
	}
	args, name := cfg.argv()
	s.cmd = &exec.Cmd{
		Path: cfg.Path, Args: append(args, "-c", loop(p, name, traces), name), Dir: cfg.Dir, Env: cfg.Env, ExtraFiles: extra,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = proc.StartChild(s.cmd, cfg.Rules)
	closeAll(extra...)
	if err != nil {
		closeAll(commandW, statusR)
		s.born.close()
		return nil, err
	}
	s.self = proc.Find(s.cmd.Process.Pid)
	go s.readStatus(statusR)
	if err := s.prepare(); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// argv is the beginning of a shell's command line, and the name that it gives itself in messages.
func (c *Config) argv() (argv []string, name string) {
	argv, name = []string{c.Path}, c.Path[strings.LastIndexByte(c.Path, '/')+1:]
	switch name {
	case "bash":
		argv = append(argv, "--norc", "--noprofile")
	case "busybox":
		argv, name = append(argv, "sh"), "sh"
	}
	return argv, name
}

// readStatus hands on what the loop says until the shell has ended.
func (s *shell) readStatus(pipe *os.File) {
	defer close(s.status)
	defer closeAll(pipe)
	in := bufio.NewReaderSize(pipe, 128)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		code, nonce, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.Atoi(code)
		if err != nil {
			return
		}
		s.status <- status{n, nonce} // has room: one command, one status
	}
}

// prepare makes the pipes of the next command and has the shell fork the subshell for it.
func (s *shell) prepare() (err error) {
	r := &round{pipes: s.pipes, nonce: rand.Text()[:13]}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.textR, r.text, r.names[0], err = s.pipes.input(); err != nil {
		return err
	}
	if r.outR, r.outW, r.names[1], err = s.pipes.outPipe(); err != nil {
		return err
	}
	if r.errR, r.errW, r.names[2], err = s.pipes.outPipe(); err != nil {
		return err
	}
	line := s.pipes.end(r.names[0], r.textR) + " " + s.pipes.end(r.names[1], r.outW) + " " + s.pipes.end(r.names[2], r.errW) + " " + r.nonce + "\n"
	if _, err := s.command.WriteString(line); err != nil {
		return err
	}
	s.next = r
	return nil
}

// trace opens a handle of the subshell that waits, so that its end can be told. It is mostly there before its command
// is; else the wait is for the fork, which the command has to wait for as well.
func (s *shell) trace(r *round) {
	if s.born == 0 {
		return
	}
	ready := []unix.PollFd{{Fd: int32(s.born), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, traceLimit)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(ready, traceLimit)
	}
	var line [16]byte
	if n == 1 && err == nil {
		n, err = unix.Read(int(s.born), line[:])
	}
	if err != nil || n <= 1 { // the shell is dead or hangs, which is found elsewhere
		s.born.close()
		return
	}
	if pid, err := strconv.Atoi(string(line[:n-1])); err == nil {
		r.process = openProcess(pid)
	}
}

// traceLimit is how many milliseconds a shell has for a fork.
const traceLimit = 1000

// unread says whether nobody has taken a command's text: then it did not run.
func (r *round) unread() bool {
	if r.pipes.fifo {
		return !r.taken.Load()
	}
	n, err := unix.IoctlGetInt(int(r.textR), unix.TIOCINQ)
	return err == nil && n > 0
}

// ended is the outcome of a subshell that the loop has waited for, and for which it says code.
func (r *round) ended(code int) *sandbusv1.Outcome {
	if code > 128 && r.process != 0 {
		if ws, ok := exitOf(r.process); ok && ws.Signaled() {
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED, Signal: proc.SignalName(ws.Signal())}
		}
	}
	return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED, Code: int32(code)}
}

// close gives a round up.
func (r *round) close() {
	r.release()
	closeAll(r.outR, r.errR)
}

// release closes what only the subshell needs: it has opened it, or it is dead.
func (r *round) release() {
	// Names first: who opens a FIFO whose other end is closed already waits for ever.
	for i, name := range r.names {
		r.pipes.remove(name)
		r.names[i] = ""
	}
	r.text.close()
	r.textR.close()
	r.outW.close()
	r.errW.close()
	r.process.close()
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // pipe ends of ours: nothing is buffered in them
		}
	}
}

// await waits for the status of a command. Errors: errDied, the context's cause.
func (s *shell) await(ctx context.Context, nonce string) (int, error) {
	for {
		select {
		case st, ok := <-s.status:
			if !ok {
				return 0, errDied
			}
			if st.nonce == nonce {
				return st.code, nil
			}
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// errDied says that the shell itself has ended.
var errDied = errors.New("the shell ended")

// end kills the shell and all below it and waits for it.
func (s *shell) end() *os.ProcessState {
	tree := proc.NewTree(s.self, false, "")
	closeAll(s.command)
	_ = s.cmd.Process.Kill()  // gone already: that was the aim
	_ = proc.WaitChild(s.cmd) // how it ended is in ProcessState
	tree.Signal(unix.SIGKILL)
	tree.Await(context.Background(), time.Second)
	for range s.status { // until the reader has ended
	}
	s.born.close()
	if s.next != nil {
		s.next.close()
		s.next = nil
	}
	return s.cmd.ProcessState
}

// recover ends what a command has started and brings the loop back. It returns false when the shell is of no use any
// more.
func (s *shell) recover(nonce string) bool {
	tree := proc.NewTree(s.self, true, "")
	for _, step := range endSteps {
		tree.Look()
		tree.Signal(step.sig)
		if tree.Await(context.Background(), step.wait) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err := s.await(ctx, nonce)
	return err == nil
}
