package shell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/workerd/proc"
)

// pipes makes the pipes of commands, which a shell opens by name. It may be used by several goroutines at once.
type pipes struct {
	base string        // what stands before each name: /proc/<worker>/fd/, or a private directory with a slash behind
	fifo bool          // names are FIFOs in that directory
	last atomic.Uint64 // number of the FIFO that was made last
}

// newPipes finds out what a shell of this system can open: the worker's descriptors through /proc, or, where that is
// not mounted or forbidden, FIFOs in a directory of mode 0700 below dir. Errors: neither works; the shell cannot be
// started.
func newPipes(path, dir string, rules *proc.Rules, forceFIFO bool) (p *pipes, traces bool, err error) {
	if !forceFIFO {
		p = &pipes{base: "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/"}
		if traces, err = p.probe(path, rules); err == nil {
			return p, traces, nil
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return nil, false, err // the shell itself
		}
	}
	private, err := os.MkdirTemp(dir, "sandbus-")
	if err != nil {
		return nil, false, fmt.Errorf("directory for FIFOs, as the shell cannot open pipes through /proc: %w", err)
	}
	p = &pipes{base: private + "/", fifo: true}
	if traces, err = p.probe(path, rules); err != nil {
		return nil, false, errors.Join(err, p.close())
	}
	return p, traces, nil
}

// probeLimit is far beyond what a shell needs for one word.
const probeLimit = 10 * time.Second

// probe has a shell open a pipe. traces says whether the kernel tells how a process has ended that another one waited
// for.
func (p *pipes) probe(path string, rules *proc.Rules) (traces bool, err error) {
	r, w, name, err := p.make()
	if err != nil {
		return false, err
	}
	defer p.remove(name)
	defer r.close()
	defer w.close()
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	argv := []string{path, "-c", ": <" + p.word(p.end(name, r))}
	if isBusybox(path) {
		argv = []string{path, "sh", "-c", argv[2]}
	}
	pidfd := -1
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = argv
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if err := proc.StartChild(cmd, rules); err != nil {
		return false, err
	}
	err = proc.WaitChild(cmd)
	if pidfd >= 0 {
		_, traces = exitOf(rawFD(pidfd))
		_ = unix.Close(pidfd) // a handle: nothing is buffered in it
	}
	if err != nil {
		return false, fmt.Errorf("the shell cannot open %s%s: %w", p.base, name, err)
	}
	return traces, nil
}

// make makes a pipe that a shell can open as base and name, for as long as the end in question is open here.
func (p *pipes) make() (r, w rawFD, name string, err error) {
	if !p.fifo {
		r, w, err = rawPipe()
		return r, w, "", err
	}
	name = strconv.FormatUint(p.last.Add(1), 10)
	err = unix.Mkfifo(p.base+name, 0o600)
	if errors.Is(err, unix.ENOENT) { // a command has deleted the directory
		if err = p.restore(); err == nil {
			err = unix.Mkfifo(p.base+name, 0o600)
		}
	}
	if err != nil {
		return 0, 0, "", &os.PathError{Op: "mkfifo", Path: p.base + name, Err: err}
	}
	defer func() {
		if err != nil {
			r.close()
			p.remove(name)
			err = &os.PathError{Op: "open", Path: p.base + name, Err: err}
		}
	}()
	fd, err := unix.Open(p.base+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // does not wait for a writer
	if err != nil {
		return 0, 0, "", err
	}
	r = rawFD(fd)
	fd, err = unix.Open(p.base+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	return r, rawFD(max(0, fd)), name, err
}

// input makes a pipe from which a shell reads. Of a FIFO only the write end is open: see feed.
func (p *pipes) input() (r, w rawFD, name string, err error) {
	r, w, name, err = p.make()
	if p.fifo {
		r.close()
	}
	return r, w, name, err
}

// restore makes the private directory again.
func (p *pipes) restore() error {
	dir := strings.TrimSuffix(p.base, "/")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o700)
}

// end is the name of one of a pipe's ends.
func (p *pipes) end(name string, fd rawFD) string {
	if p.fifo {
		return name
	}
	return strconv.Itoa(int(fd))
}

// word is a name with its path as one shell word.
func (p *pipes) word(name string) string {
	var b strings.Builder
	quote(&b, p.base+name)
	return b.String()
}

// remove takes a FIFO's name away; whoever has opened it keeps it.
func (p *pipes) remove(name string) {
	if p.fifo && name != "" {
		_ = unix.Unlink(p.base + name) // gone already: a command deleted it
	}
}

// close removes the private directory.
func (p *pipes) close() error {
	if p == nil || !p.fifo {
		return nil
	}
	return os.RemoveAll(strings.TrimSuffix(p.base, "/"))
}

func isBusybox(path string) bool { return strings.HasSuffix(path, "/busybox") }
