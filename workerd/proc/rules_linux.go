package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Rules say under which identity and within which limits commands run. The zero value and nil change nothing.
type Rules struct {
	// RunAs is the identity of commands, without supplementary groups; nil means the worker's own. It needs the right to
	// change identities, and implies NoNewPrivs.
	RunAs *ID
	// NoNewPrivs keeps programs from gaining privileges by set-user-id bits or file capabilities (prctl(2)).
	NoNewPrivs bool
	// Processes, Files and FileSize are limits in the sense of setrlimit(2), for each command and what it starts:
	// processes of its user on this machine, open files of a process, bytes of a file that a process writes. Zero means
	// the worker's own limit, which also bounds them.
	Processes, Files, FileSize uint64
}

// ID is a user and a group, as numbers.
type ID struct{ UID, GID uint32 }

// Check says whether the rules can be kept. Errors: the worker may not change identities.
func (r *Rules) Check() error {
	if r == nil || r.RunAs == nil {
		return nil
	}
	st, err := ReadStatus()
	if err != nil {
		return err
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	if st.Capabilities&need != need {
		return fmt.Errorf("run as %d:%d: this worker may not change identities: want root, or CAP_SETUID and CAP_SETGID", r.RunAs.UID, r.RunAs.GID)
	}
	return nil
}

func (r *Rules) noNewPrivs() bool { return r != nil && (r.NoNewPrivs || r.RunAs != nil) }

// limits are those that differ from the worker's own.
func (r *Rules) limits() map[int]uint64 {
	out := map[int]uint64{}
	if r == nil {
		return out
	}
	for resource, n := range map[int]uint64{unix.RLIMIT_NPROC: r.Processes, unix.RLIMIT_NOFILE: r.Files, unix.RLIMIT_FSIZE: r.FileSize} {
		if n > 0 {
			out[resource] = n
		}
	}
	return out
}

// start runs fork, which starts cmd, so that the child is under the rules from its first instruction on.
func (r *Rules) start(cmd *exec.Cmd, fork func() error) error {
	if r == nil || !r.noNewPrivs() && len(r.limits()) == 0 {
		return fork()
	}
	// A child inherits from the thread that forks it.
	return onOwnThread(func() error { return r.startHere(cmd, fork) })
}

func (r *Rules) startHere(cmd *exec.Cmd, fork func() error) error {
	regainHere() // a cgroup, for one, is written as ourselves
	if r.noNewPrivs() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", os.NewSyscallError("prctl", err))
		}
	}
	if r.RunAs != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: r.RunAs.UID, Gid: r.RunAs.GID}
	}
	limits := r.limits()
	if len(limits) == 0 {
		return fork()
	}
	// Limits belong to a process, so they can only be set once it is there; and it must not have run before. A traced
	// process stops behind its exec.
	cmd.SysProcAttr.Ptrace = true
	if err := fork(); err != nil {
		return fmt.Errorf("start with limits: %w", err)
	}
	if err := r.limit(cmd.Process.Pid, limits); err != nil {
		_ = cmd.Process.Kill() // before it has run
		_ = WaitChild(cmd)     // how it ended does not matter
		return fmt.Errorf("limits of a command: %w", err)
	}
	return nil
}

// limit sets the limits of a process that has this thread as its tracer, and lets it go.
func (r *Rules) limit(pid int, limits map[int]uint64) error {
	var info unix.Siginfo
	// WNOWAIT: when the process was killed meanwhile, its status is for those who wait for it.
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil {
		return os.NewSyscallError("waitid", err)
	}
	if info.Code != cldTrapped {
		return nil // it is dead
	}
	if r.RunAs != nil { // who has a process's identity may limit it; root needs CAP_SYS_RESOURCE for that
		if err := becomeHere(*r.RunAs); err != nil {
			return err
		}
	}
	for resource, n := range limits {
		var own unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &own); err != nil {
			return os.NewSyscallError("prlimit", err)
		}
		n = min(n, own.Max)
		if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
			return os.NewSyscallError("prlimit", err)
		}
	}
	return os.NewSyscallError("ptrace", unix.PtraceDetach(pid))
}

// cldTrapped is the code of a traced process that has stopped (siginfo.h).
const cldTrapped = 4
