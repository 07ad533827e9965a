package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// roleVar makes the binary one of the rig's processes.
const roleVar = "SANDBUS_LOADTEST_ROLE"

// message goes from the rig to a process and back, one in flight; "stop" alone may come beside another.
type message struct {
	Verb        string          `json:"verb,omitempty"`
	Body        json.RawMessage `json:"body,omitempty"`
	Error       string          `json:"error,omitempty"`
	Unavailable bool            `json:"unavailable,omitempty"` // the error is ErrUnavailable
}

const (
	verbInit   = "init"   // the first message to every process
	verbUse    = "use"    // what has it used: every process answers that
	verbSettle = "settle" // collect garbage and give memory back: every process does that
	verbStop   = "stop"   // end what is under way; has no answer of its own
)

// stopWait is how long a process may take to end when it was asked to.
const stopWait = 15 * time.Second

// process is a child of the rig.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser

	callMu sync.Mutex // held by the one call that is under way
	sendMu sync.Mutex // guards enc
	enc    *json.Encoder
	out    chan message // closed when the process says nothing more
	ended  chan struct{}
	err    error // why it ended; set before ended is closed
	once   sync.Once
}

// spawn starts this binary in a role and gives it its configuration; ready takes what it answers when it serves.
func spawn(ctx context.Context, role, name string, stderr io.Writer, config, ready any) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, out: make(chan message), ended: make(chan struct{})}
	p.cmd = exec.Command(self) //nolint:noctx // it ends when its standard input does, so that it can end in order
	p.cmd.Env = append(os.Environ(), roleVar+"="+role)
	p.cmd.Stderr = stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is the rig's alone
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.enc = json.NewEncoder(p.in)
	go p.read(out)
	if err := p.call(ctx, verbInit, config, ready); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *process) read(out io.Reader) {
	d := json.NewDecoder(bufio.NewReader(out))
	for {
		var m message
		if d.Decode(&m) != nil {
			break
		}
		p.out <- m
	}
	p.err = p.cmd.Wait()
	close(p.ended)
	close(p.out)
}

func (p *process) send(m message) error {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	return p.enc.Encode(m)
}

// call asks the process and waits for its answer. When ctx ends the process is told to stop what it does, and the answer
// is still waited for. Errors: the process's own; ErrUnavailable; it has ended.
func (p *process) call(ctx context.Context, verb string, req, resp any) error {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if err := p.send(message{Verb: verb, Body: body}); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	answered := make(chan struct{})
	defer close(answered)
	defer context.AfterFunc(ctx, func() {
		_ = p.send(message{Verb: verbStop}) // when it has ended, out says so
		t := time.NewTimer(stopWait)
		defer t.Stop()
		select {
		case <-answered:
		case <-t.C:
			p.kill()
		}
	})()
	m, ok := <-p.out
	switch {
	case !ok:
		return fmt.Errorf("%s has ended: %w", p.name, errors.Join(p.err, errGone))
	case m.Unavailable:
		return fmt.Errorf("%s: %s: %w", p.name, strings.TrimSuffix(m.Error, ": "+ErrUnavailable.Error()), ErrUnavailable)
	case m.Error != "":
		return fmt.Errorf("%s: %s", p.name, m.Error)
	case resp == nil:
		return nil
	}
	if err := json.Unmarshal(m.Body, resp); err != nil {
		return fmt.Errorf("%s: answer to %s: %w", p.name, verb, err)
	}
	return nil
}

// errGone says that a process of the rig is no more.
var errGone = errors.New("the process is gone")

// stop asks the process to end, by the end of its standard input, and waits; one that does not is killed. It may be
// called twice.
func (p *process) stop() {
	p.once.Do(func() {
		_ = p.in.Close() // it may have ended
		kill := time.AfterFunc(stopWait, p.kill)
		defer kill.Stop()
		for range p.out { // nobody asks any more
		}
		<-p.ended
	})
}

// kill ends the process and its group at once.
func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) } // it may have ended

func (p *process) pid() int { return p.cmd.Process.Pid }
