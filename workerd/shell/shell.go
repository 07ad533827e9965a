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
	`( unset __o __e __n; . /proc/%[1]d/fd/"$__t"; unset __t; eval "$__sandbus_script" ) ` +
	`</dev/null >/proc/%[1]d/fd/"$__o" 2>/proc/%[1]d/fd/"$__e" 3<&- 4>&-; ` +
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
	text       rawFD // write end: the command's text goes in here
	textR      rawFD // kept open until the subshell has opened it
	outW, errW rawFD // likewise
	outR, errR *os.File
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

// outPipe is a pipe whose read end is waited on.
func outPipe() (r *os.File, w rawFD, err error) {
	raw, w, err := rawPipe()
	if err != nil {
		return nil, 0, err
	}
	if err := unix.SetNonblock(int(raw), true); err != nil {
		raw.close()
		w.close()
		return nil, 0, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(raw), "|0"), w, nil
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
	err = proc.Track(func() (int, error) {
		if err := s.cmd.Start(); err != nil {
			return 0, err
		}
		return s.cmd.Process.Pid, nil
	})
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
	r := &round{nonce: rand.Text()[:13]}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.textR, r.text, err = rawPipe(); err != nil {
		return err
	}
	if r.outR, r.outW, err = outPipe(); err != nil {
		return err
	}
	if r.errR, r.errW, err = outPipe(); err != nil {
		return err
	}
	line := fmt.Sprintf("%d %d %d %s\n", r.textR, r.outW, r.errW, r.nonce)
	if _, err := s.command.WriteString(line); err != nil {
		return err
	}
	s.next = r
	return nil
}

// close gives a round up.
func (r *round) close() {
	r.release()
	closeAll(r.outR, r.errR)
}

// release closes what only the subshell needs: it has opened it, or it is dead.
func (r *round) release() {
	r.text.close()
	r.textR.close()
	r.outW.close()
	r.errW.close()
}

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
	tree := proc.NewTree(s.self, false, "")
	closeAll(s.command)
	_ = s.cmd.Process.Kill() // gone already: that was the aim
	_ = s.cmd.Wait()         // how it ended is in ProcessState
	proc.Untrack(s.cmd.Process.Pid)
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
	tree := proc.NewTree(s.self, true, "")
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
