package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Spec says what to run.
type Spec struct {
	Argv  []string      // program and arguments; a program without "/" is looked up in the PATH of Env
	Dir   string        // working directory, absolute
	Env   []string      // the whole environment, NAME=value; a later one wins
	Stdin *os.File      // read end of the command's input; nil means /dev/null. Start closes it
	Extra []*os.File    // descriptors 3 and up. Start closes them
	Grace time.Duration // from TERM to KILL; zero means DefaultGrace
	Merge bool          // stderr goes into stdout's pipe
	Mark  string        // NAME=value that Env has: tells what belongs to the command (see Tree); empty means nothing does
	// Terminal is the slave side of a terminal for all three of input, output and errors, and becomes the controlling
	// one; nil means pipes. Master is its other side, from which output is read. Start closes Terminal.
	Terminal, Master *os.File
	Cgroup           *Cgroup // where the command runs; nil means where the worker runs
	Rules            *Rules  // nil means none
}

// DefaultGrace is the time from TERM to KILL.
const DefaultGrace = 2 * time.Second

// StartError says why a command never ran.
type StartError struct {
	Stage string // "cwd" or "exec"
	Err   error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Outcome is the outcome of a command that never ran: 126 and 127 as a shell has them.
func (e *StartError) Outcome() *sandbusv1.Outcome {
	o := &sandbusv1.Outcome{
		Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, Code: 126, Stage: e.Stage, Message: strings.ToValidUTF8(e.Error(), "�"),
	}
	if errno, ok := errors.AsType[syscall.Errno](e.Err); ok {
		o.Errno = int32(errno)
	}
	if e.Stage != "cwd" && errors.Is(e.Err, os.ErrNotExist) {
		o.Code = 127
	}
	return o
}

// Cmd is a started command.
type Cmd struct {
	cmd    *exec.Cmd
	grace  time.Duration
	mark   string
	cgroup *Cgroup
	began  time.Time
	done   chan struct{} // closed when the leader has ended
	state  *os.ProcessState
}

// CheckDir says whether a command can run in a directory. Errors: *[StartError] of stage "cwd" naming it.
func CheckDir(dir string) error {
	fi, err := os.Stat(dir)
	if err == nil && !fi.IsDir() {
		err = &os.PathError{Op: "chdir", Path: dir, Err: unix.ENOTDIR}
	}
	if err == nil {
		if aerr := unix.Access(dir, unix.X_OK); aerr != nil {
			err = &os.PathError{Op: "chdir", Path: dir, Err: aerr}
		}
	}
	if err != nil {
		return &StartError{Stage: "cwd", Err: fmt.Errorf("working directory: %w", err)}
	}
	return nil
}

// Start runs a command; its output goes to the Drain's pipes. Errors: *[StartError]; the system's when it has no
// descriptors or processes left.
func Start(spec Spec, drain *Drain, stdout, stderr func([]byte) bool) (*Cmd, error) {
	defer closeAll(append(spec.Extra, spec.Stdin, spec.Terminal)...)
	if err := CheckDir(spec.Dir); err != nil {
		return nil, err
	}
	path, err := lookPath(spec.Argv[0], spec.Dir, spec.Env)
	if err != nil {
		return nil, &StartError{Stage: "exec", Err: err}
	}
	c := &Cmd{grace: spec.Grace, mark: spec.Mark, cgroup: spec.Cgroup, done: make(chan struct{})}
	if c.grace == 0 {
		c.grace = DefaultGrace
	}
	c.cmd = &exec.Cmd{
		Path: path, Args: spec.Argv, Dir: spec.Dir, Env: spec.Env, ExtraFiles: spec.Extra,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	spec.Cgroup.prepare(c.cmd.SysProcAttr)
	if spec.Terminal != nil {
		return c, c.startOnTerminal(spec, drain, stdout)
	}
	if spec.Stdin != nil {
		c.cmd.Stdin = spec.Stdin
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW := (*os.File)(nil), outW
	if !spec.Merge {
		if errR, errW, err = os.Pipe(); err != nil {
			closeAll(outR, outW)
			return nil, err
		}
	}
	widen(outW)
	c.cmd.Stdout, c.cmd.Stderr = outW, errW
	err = c.start(spec.Rules)
	closeAll(outW)
	if !spec.Merge {
		closeAll(errW)
	}
	if err != nil {
		closeAll(outR, errR)
		return nil, startError(spec, err)
	}
	drain.Add(outR, stdout)
	if !spec.Merge {
		drain.Add(errR, stderr)
	}
	return c, nil
}

func (c *Cmd) startOnTerminal(spec Spec, drain *Drain, stdout func([]byte) bool) error {
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = spec.Terminal, spec.Terminal, spec.Terminal
	c.cmd.SysProcAttr.Setctty = true // its standard input
	if err := c.start(spec.Rules); err != nil {
		return startError(spec, err)
	}
	drain.Add(spec.Master, stdout)
	return nil
}

// start forks. The lock keeps the reaper from taking a child that nobody knows yet.
func (c *Cmd) start(rules *Rules) error {
	ours.RLock()
	defer ours.RUnlock()
	c.began = time.Now()
	if err := rules.start(c.cmd, func() error { return c.cgroup.around(c.cmd.Start) }); err != nil {
		return err
	}
	ours.add(c.cmd.Process.Pid)
	protect(c.cmd.Process.Pid)
	return nil
}

func startError(spec Spec, err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) && pe.Op == "chdir" {
		return &StartError{Stage: "cwd", Err: fmt.Errorf("working directory: %w", err)}
	}
	if errors.Is(err, unix.E2BIG) {
		return &StartError{Stage: "exec", Err: fmt.Errorf("%s: arguments and environment are larger than the system allows: %w", spec.Argv[0], unix.E2BIG)}
	}
	if inner := errors.Unwrap(err); inner != nil { // without the path that the package os names
		err = inner
	}
	return &StartError{Stage: "exec", Err: fmt.Errorf("%s: %w", spec.Argv[0], err)}
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // pipe ends of ours: nothing is buffered in them
		}
	}
}

// lookPath finds a program as execvp(3) does, in the environment of the command instead of our own.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		abs := name
		if !filepath.IsAbs(abs) {
			abs = filepath.Join(dir, name)
		}
		if err := executable(abs); err != nil {
			return "", &os.PathError{Op: "exec", Path: name, Err: err}
		}
		return abs, nil
	}
	result := error(unix.ENOENT)
	if name != "" {
		for _, d := range filepath.SplitList(Getenv(env, "PATH")) {
			if !filepath.IsAbs(d) {
				d = filepath.Join(dir, d)
			}
			p := filepath.Join(d, name)
			err := executable(p)
			if err == nil {
				return p, nil
			}
			if errors.Is(err, unix.EACCES) {
				result = unix.EACCES
			}
		}
	}
	return "", &os.PathError{Op: "exec", Path: name, Err: result}
}

// LookPath is the program that a command of that name would run, or an error. See Spec.Argv.
func LookPath(name, dir string, env []string) (string, error) { return lookPath(name, dir, env) }

func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES
	}
	return unix.Access(path, unix.X_OK)
}

// Getenv is the value of the last variable of that name.
func Getenv(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// PID is the leader's process id.
func (c *Cmd) PID() int { return c.cmd.Process.Pid }

// Began is when the leader was started.
func (c *Cmd) Began() time.Time { return c.began }

// Wait waits for the leader; it is called once. The outcome is that of a command that nobody killed.
func (c *Cmd) Wait() *sandbusv1.Outcome {
	_ = c.cmd.Wait() // how it ended is in ProcessState
	ours.remove(c.cmd.Process.Pid)
	c.state = c.cmd.ProcessState
	close(c.done)
	return WaitOutcome(c.state)
}

// WaitOutcome is the outcome of a leader's wait status.
func WaitOutcome(state *os.ProcessState) *sandbusv1.Outcome {
	ws, ok := state.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED, Signal: SignalName(ws.Signal())}
	}
	return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED, Code: int32(state.ExitCode())}
}

// SignalName is a signal's name without SIG, or its number when it has none.
func SignalName(sig syscall.Signal) string {
	if name := strings.TrimPrefix(unix.SignalName(sig), "SIG"); name != "" {
		return name
	}
	return fmt.Sprint(int(sig))
}

// Usage is what the leader and the descendants that it waited for used; after Wait.
func (c *Cmd) Usage() *sandbusv1.Usage {
	ru, ok := c.state.SysUsage().(*syscall.Rusage)
	if !ok {
		return nil
	}
	return &sandbusv1.Usage{
		UserUs: time.Duration(ru.Utime.Nano()).Microseconds(), SystemUs: time.Duration(ru.Stime.Nano()).Microseconds(),
		MaxRssBytes: maxRSSBytes(ru),
	}
}

// Signal sends a signal to the command's process group. Errors: the leader has ended.
func (c *Cmd) Signal(sig syscall.Signal) error {
	select {
	case <-c.done:
		return os.ErrProcessDone
	default:
		return unix.Kill(-c.PID(), sig)
	}
}

// Kill ends the command and everything that belongs to it: TERM, after the grace (or the end of ctx) KILL. It returns
// when all of it is dead. The leader's status must be waited for by Wait, in another goroutine.
func (c *Cmd) Kill(ctx context.Context) {
	NewTree(Find(c.PID()), false, c.mark).End(ctx, c.grace)
	<-c.done
}

// Sweep kills at once what the leader has left behind, after Wait.
func (c *Cmd) Sweep() {
	c.cgroup.kill()
	NewTree(Process{}, true, c.mark).End(context.Background(), 0)
}

// ParseSignal reads a signal's name, with or without SIG, or its number. Errors: there is no such signal.
func ParseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= 64 {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("signal %.20q: want a name such as TERM or SIGUSR1, or a number from 1 to 64", s)
}
