package shell

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/workerd/proc"
)

// loop is what a warm shell runs; %[1]d is the worker's process id. It is one line, so that the line numbers in a
// command's error messages are those of the command's text. Descriptor 3 brings "text out err nonce" for each command,
// descriptor 4 takes "status nonce".
const loop = `while read -r __t __o __e __n <&3; do ` +
	`( exec 3<&- 4>&- </dev/null >/proc/%[1]d/fd/"$__o" 2>/proc/%[1]d/fd/"$__e" || exit 125; unset __o __e __n; ` +
	`. /proc/%[1]d/fd/"$__t"; unset __t; eval "$__sandbus_script" ); ` +
	`echo "$? $__n" >&4; done`

// shell is one warm shell. It is used by one command at a time.
type shell struct {
	cmd     *exec.Cmd
	self    proc.Process
	command *os.File    // write end of descriptor 3
	status  chan status // what the loop says; closed when nobody can say anything any more
	next    *round      // the command that is prepared
}

type status struct {
	code  int
	nonce string
}

// round is the pipes of one command, opened by the subshell that waits for it.
type round struct {
	nonce      string
	text       *os.File // write end: the command's text goes in here
	textR      *os.File // kept open until the subshell has opened it
	outW, errW *os.File // likewise
	outR, errR *os.File
}

// startShell starts a shell and prepares its first command.
func startShell(path, dir string, env []string) (*shell, error) {
	commandR, commandW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		closeAll(commandR, commandW)
		return nil, err
	}
	args := []string{path}
	name := path[strings.LastIndexByte(path, '/')+1:]
	switch name {
	case "bash":
		args = append(args, "--norc", "--noprofile")
	case "busybox":
		args, name = append(args, "sh"), "sh"
	}
	args = append(args, "-c", fmt.Sprintf(loop, os.Getpid()), name)
	s := &shell{command: commandW, status: make(chan status, 1)}
	s.cmd = &exec.Cmd{
		Path: path, Args: args, Dir: dir, Env: env, ExtraFiles: []*os.File{commandR, statusW},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = s.cmd.Start()
	closeAll(commandR, statusW)
	if err != nil {
		closeAll(commandW, statusR)
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
	r := &round{nonce: rand.Text()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.textR, r.text, err = os.Pipe(); err != nil {
		return err
	}
	if r.outR, r.outW, err = os.Pipe(); err != nil {
		return err
	}
	if r.errR, r.errW, err = os.Pipe(); err != nil {
		return err
	}
	line := fmt.Sprintf("%d %d %d %s\n", fd(r.textR), fd(r.outW), fd(r.errW), r.nonce)
	if _, err := s.command.WriteString(line); err != nil {
		return err
	}
	s.next = r
	return nil
}

func (r *round) close() { closeAll(r.text, r.textR, r.outW, r.errW, r.outR, r.errR) }

// fd is a file's number. File.Fd would make it blocking.
func fd(f *os.File) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1
	}
	_ = raw.Control(func(fd uintptr) { n = int(fd) })
	return n
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
	tree := proc.NewTree(s.self, false)
	closeAll(s.command)
	_ = s.cmd.Process.Kill() // gone already: that was the aim
	_ = s.cmd.Wait()         // how it ended is in ProcessState
	tree.Signal(unix.SIGKILL)
	tree.Await(context.Background(), time.Second)
	for range s.status { // until the reader has ended
	}
	if s.next != nil {
		s.next.close()
		s.next = nil
	}
	return s.cmd.ProcessState
}

// recover ends what a command has started and brings the loop back. It returns false when the shell is of no use any
// more.
func (s *shell) recover(nonce string) bool {
	tree := proc.NewTree(s.self, true)
	for _, step := range []struct {
		sig  unix.Signal
		wait time.Duration
	}{{unix.SIGINT, 50 * time.Millisecond}, {unix.SIGTERM, 150 * time.Millisecond}, {unix.SIGKILL, 250 * time.Millisecond}, {unix.SIGKILL, 250 * time.Millisecond}} {
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
