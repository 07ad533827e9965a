package proc

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ours are the processes that we started and wait for ourselves: the reaper must not take their status.
var ours = tracked{pids: map[int]bool{}}

type tracked struct {
	sync.RWMutex // held for reading while a child is started, for writing while orphans are reaped

	mu   sync.Mutex // guards the field below
	pids map[int]bool
}

func (t *tracked) add(pid int) {
	t.mu.Lock()
	t.pids[pid] = true
	t.mu.Unlock()
}

func (t *tracked) remove(pid int) {
	t.mu.Lock()
	delete(t.pids, pid)
	t.mu.Unlock()
}

func (t *tracked) has(pid int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pids[pid]
}

// StartChild starts a command under rules, whose status the reaper leaves to WaitChild.
func StartChild(cmd *exec.Cmd, rules *Rules) error {
	ours.RLock()
	defer ours.RUnlock()
	if err := rules.start(cmd, cmd.Start); err != nil {
		return err
	}
	ours.add(cmd.Process.Pid)
	protect(cmd.Process.Pid)
	return nil
}

// WaitChild waits for a command that StartChild has started.
func WaitChild(cmd *exec.Cmd) error {
	defer ours.remove(cmd.Process.Pid)
	return cmd.Wait()
}

// Reap makes this process the parent of the orphans below it, and waits for them as they end, until ctx ends. It is for
// a process all of whose children are started by this package.
func Reap(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		reapOrphans()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil
		}
	}
}

// reapOrphans waits for the zombies among our children that nobody else waits for.
func reapOrphans() {
	ours.Lock()
	defer ours.Unlock()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil { // a kernel without CONFIG_PROC_CHILDREN
			reapByTable()
			return
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				reapOne(pid)
			}
		}
	}
}

func reapByTable() {
	d, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range d {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if ppid, _, state, ok := stat(pid); ok && ppid == os.Getpid() && state == 'Z' {
				reapOne(pid)
			}
		}
	}
}

func reapOne(pid int) {
	if !ours.has(pid) {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // alive, or gone: both are well
	}
}

// oomScore is what children get back when the worker has lowered its own.
var oomScore struct {
	sync.Mutex
	value string // empty: not lowered
}

// ProtectSelf has the kernel's memory killer prefer what the worker runs to the worker itself, where that is allowed.
func ProtectSelf() error {
	oomScore.Lock()
	defer oomScore.Unlock()
	if oomScore.value != "" {
		return nil
	}
	old, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0); err != nil {
		return err // needs CAP_SYS_RESOURCE
	}
	oomScore.value = strings.TrimSpace(string(old))
	return nil
}

// protect gives a child the score that the worker was started with.
func protect(pid int) {
	oomScore.Lock()
	defer oomScore.Unlock()
	if oomScore.value != "" {
		_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(oomScore.value), 0) // it may have ended
	}
}

// maxRSSBytes is the unit of Linux: kilobytes.
func maxRSSBytes(ru *syscall.Rusage) int64 { return ru.Maxrss << 10 }

// pipeBytes is the size of the pipe for a streaming command's output: a command that prints in small pieces is then read
// in large ones.
const pipeBytes = 256 << 10

// widen makes a pipe larger, where the system allows it (pipe(7), pipe-user-pages-soft).
func widen(pipe *os.File) {
	if raw, err := pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) // it works as well with what it has
		})
	}
}
