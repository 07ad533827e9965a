package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is a process of a run. It dies with the driver.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   string
	ended chan struct{} // closed when it has ended
	err   error         // how it ended; to be read when ended is closed
}

// patience is how long anything may take that should be done in a moment: other tests run beside.
const patience = 90 * time.Second

// start runs this binary in a role, or another one, and waits for its ready line when it says one.
func (w *world) start(name, role, binary string, ready bool, env ...string) (*process, error) {
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p := &process{name: name, cmd: exec.Command(binary), log: filepath.Join(w.dir, name+".log"), ended: make(chan struct{})}
	p.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "TMPDIR=" + w.tmp, worldVar + "=" + w.dir, roleVar + "=" + role,
		"GOTRACEBACK=all",
	}, env...)
	p.cmd.Dir = w.dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd.Stderr = log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	said, say, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout = say
	if err := errors.Join(p.cmd.Start(), say.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), said.Close())
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	w.mu.Lock()
	w.all = append(w.all, p)
	w.mu.Unlock()
	first := make(chan error, 1)
	w.wg.Go(func() {
		defer func() { _ = said.Close() }() // was only read
		if ready {
			first <- spoken(said)
		} else {
			first <- nil
		}
		_, _ = io.Copy(io.Discard, said) // ends with the process
	})
	select {
	case err := <-first:
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		return p, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("start %s: not ready after %s", name, patience)
	}
}

// signal sends a signal; a process that has ended already takes none.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill kills a process without a word to anybody, and waits.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// stop ends a process in good order: it is told by TERM, and its input is closed. Errors: it does not end, or not well.
func (p *process) stop() error {
	p.signal(syscall.SIGTERM)
	_ = p.stdin.Close() // may be closed already
	return p.wait(patience)
}

// wait waits for the end. Errors: it does not come, or not well.
func (p *process) wait(limit time.Duration) error {
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		return nil
	case <-time.After(limit):
		p.signal(syscall.SIGQUIT) // its goroutines go to its log
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			p.kill()
		}
		return fmt.Errorf("%s has not ended within %s; its goroutines are in its log", p.name, limit)
	}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// tail is the end of what a process has logged.
func (p *process) tail(n int) string {
	b, _ := os.ReadFile(p.log) // what cannot be read is not shown
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}
