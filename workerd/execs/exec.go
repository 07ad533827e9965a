package execs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
	"github.com/sandbus/sandbus/workerd/shell"
)

// Exec is one run of one command.
type Exec struct {
	Log *Log

	spec    Spec
	cfg     *Config
	arrived time.Time
	began   time.Time               // wall clock, for lists
	life    context.Context         //nolint:containedctx // the exec's own life, ended by stop or its end
	end     context.CancelCauseFunc // its cause says why the exec must end
	hold    context.Context         //nolint:containedctx // while it lasts the log waits for its readers
	release context.CancelCauseFunc
	gone    func()        // called before done is closed: the exec is not alive any more
	started chan struct{} // closed when the command runs, or never will
	done    chan struct{} // closed when the outcome is known
	spool   *spool
	total   int64         // bytes of output that the log was given; for the drain's goroutines, one after the other
	totalMu sync.Mutex    // guards total
	reason  atomic.Uint32 // the first reason to end it: an OutcomeKind, with a Clock in the second byte
	owner   atomic.Uint64 // the latest claim

	mu       sync.Mutex // guards the fields below
	cmd      *proc.Cmd
	stdin    *os.File // the writing end of the command's input; nil when there is none or it was closed
	terminal *os.File // the master side
	result   *sandbusv1.StreamEnd
}

// errEnded is the cause with which the parts of an exec end that has ended.
var errEnded = errors.New("the exec has ended")

// run sees the command to its end.
func (e *Exec) run() {
	end := &sandbusv1.StreamEnd{Timing: &sandbusv1.Timing{}}
	defer func() {
		e.Log.Close()
		end.StdoutBytes, end.StderrBytes = e.Log.Totals()
		e.spool.close(end)
		e.mu.Lock()
		e.result = end
		e.mu.Unlock()
		e.end(errEnded)
		e.release(errEnded)
		e.gone()
		close(e.done)
	}()
	// What was printed before a timeout or an abort is not lost to a reader that is slow, unless it is very slow.
	context.AfterFunc(e.life, func() { time.AfterFunc(proc.DrainCap, func() { e.release(errEnded) }) })
	if e.life.Err() != nil { // aborted before the start
		end.Outcome = e.endedBy()
		close(e.started)
		return
	}
	starting := time.Now()
	end.Timing.QueueUs = starting.Sub(e.arrived).Microseconds()
	var drain proc.Drain
	oomBefore := proc.OwnOOMKills()
	cmd, err := e.start(&drain)
	if err != nil {
		var se *proc.StartError
		if !errors.As(err, &se) {
			se = &proc.StartError{Stage: "resources", Err: err}
		}
		end.Outcome = se.Outcome()
		close(e.started)
		return
	}
	defer e.spec.Proc.Cgroup.Close()
	end.Timing.StartUs = time.Since(starting).Microseconds()
	e.mu.Lock()
	e.cmd = cmd
	e.mu.Unlock()
	close(e.started)

	end.Outcome = e.await(cmd, &drain)
	ended := time.Now()
	end.PipeHeld = drain.Wait()
	e.closeInput()
	if kind, _ := e.why(); kind != 0 && end.GetOutcome().GetKind() != kind { // it came when the leader had ended
		cmd.Sweep()
	}
	if e.overLimit() && end.GetOutcome().GetKind() == sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED {
		end.Outcome = &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT}
	}
	if e.killedForMemory(end.GetOutcome(), oomBefore) {
		end.Outcome = &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_OOM}
	}
	end.Usage = cmd.Usage()
	end.Timing.RunUs = ended.Sub(cmd.Began()).Microseconds()
	end.Timing.DrainUs = time.Since(ended).Microseconds()
	if first := drain.FirstByte(); !first.IsZero() {
		end.Timing.FirstByteUs = first.Sub(cmd.Began()).Microseconds()
	}
}

// start starts the command. Errors: *proc.StartError, or that of a resource that is not to be had.
func (e *Exec) start(drain *proc.Drain) (*proc.Cmd, error) {
	p := &e.spec.Proc
	if e.spec.Script != "" {
		if e.cfg.Shell == "" {
			return nil, &proc.StartError{Stage: "shell", Err: fmt.Errorf("this sandbox has no shell: give the command as argv: %w", syscall.ENOENT)}
		}
		argv, extra, err := shell.Argv(e.cfg.Shell, e.spec.Script)
		if err != nil {
			return nil, err
		}
		p.Argv, p.Extra = argv, extra
	}
	p.Mark = e.cfg.mark(e.spec.ID)
	p.Env = append(p.Env, p.Mark)
	p.Rules = e.cfg.Rules
	var err error
	if p.Cgroup, err = proc.NewCgroup(e.spec.ID, e.spec.Memory); err != nil {
		p.Cgroup = nil
		if e.spec.Memory > 0 {
			return nil, err
		}
	}
	if err := e.openInput(p); err != nil {
		p.Cgroup.Close()
		return nil, err
	}
	cmd, err := proc.Start(*p, drain, e.take(Stdout), e.take(Stderr))
	if err != nil {
		e.closeInput()
		if e.terminal != nil {
			_ = e.terminal.Close() // nothing was written
		}
		p.Cgroup.Close()
		return nil, err
	}
	return cmd, nil
}

// openInput makes the command's input: a pipe, a terminal, or nothing.
func (e *Exec) openInput(p *proc.Spec) error {
	if e.spec.Terminal != nil {
		master, slave, err := pty.Open()
		if err != nil {
			return fmt.Errorf("terminal: %w", err)
		}
		if err := pty.Setsize(master, winsize(*e.spec.Terminal)); err != nil {
			return errors.Join(fmt.Errorf("terminal: %w", err), master.Close(), slave.Close())
		}
		p.Terminal, p.Master = slave, master
		e.mu.Lock()
		e.terminal = master
		e.mu.Unlock()
		return nil
	}
	if !e.spec.Stdin {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	p.Stdin = r
	e.mu.Lock()
	e.stdin = w
	e.mu.Unlock()
	return nil
}

func winsize(s Size) *pty.Winsize { return &pty.Winsize{Cols: s.Cols, Rows: s.Rows} }

func (e *Exec) closeInput() {
	e.mu.Lock()
	w := e.stdin
	e.stdin = nil
	e.mu.Unlock()
	if w != nil {
		_ = w.Close() // a pipe's end: nothing is buffered in it
	}
}

// take gives output to the log and to the file, up to the limit.
func (e *Exec) take(stream Stream) func([]byte) bool {
	return func(b []byte) bool {
		<-e.started
		// Counting and adding are one step, so that exactly the bytes up to the limit are kept.
		e.totalMu.Lock()
		over := false
		if limit := e.spec.Limit; limit >= 0 && !e.spec.HeadTail && e.total+int64(len(b)) > limit {
			b, over = b[:max(0, limit-e.total)], true
		}
		e.total += int64(len(b))
		e.totalMu.Unlock()
		if over {
			e.stop(sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT, 0)
		}
		e.spool.write(b)
		e.Log.Write(e.hold, stream, b)
		return !over
	}
}

func (e *Exec) overLimit() bool {
	kind, _ := e.why()
	return kind == sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT
}

// stop notes why the exec must end; the first reason counts.
func (e *Exec) stop(kind sandbusv1.OutcomeKind, clock sandbusv1.Clock) {
	if e.reason.CompareAndSwap(0, uint32(kind)|uint32(clock)<<8) {
		e.end(errEnded)
	}
}

func (e *Exec) why() (sandbusv1.OutcomeKind, sandbusv1.Clock) {
	v := e.reason.Load()
	return sandbusv1.OutcomeKind(v & 0xff), sandbusv1.Clock(v >> 8)
}

func (e *Exec) endedBy() *sandbusv1.Outcome {
	kind, clock := e.why()
	if kind == 0 { // the worker's own end
		kind = sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED
	}
	return &sandbusv1.Outcome{Kind: kind, Clock: clock}
}

// await waits for the leader's end, or brings it about.
func (e *Exec) await(cmd *proc.Cmd, drain *proc.Drain) *sandbusv1.Outcome {
	leader := make(chan *sandbusv1.Outcome, 1)
	go func() { leader <- cmd.Wait() }()
	defer drain.LeaderEnded()
	if e.spec.Timeout > 0 {
		t := time.AfterFunc(e.spec.Timeout, func() {
			e.stop(sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, sandbusv1.Clock_CLOCK_TOTAL)
		})
		defer t.Stop()
	}
	if e.spec.IdleTimeout > 0 {
		defer e.watchIdle(cmd.Began(), drain)()
	}
	select {
	case o := <-leader:
		return o
	case <-e.life.Done():
	}
	grace := context.Background()
	if e.overLimit() { // it has said more than enough
		var cancel context.CancelCauseFunc
		grace, cancel = context.WithCancelCause(grace)
		cancel(errEnded)
	}
	cmd.Kill(grace)
	<-leader
	return e.endedBy()
}

// watchIdle ends the exec when it has been quiet for its idle timeout. It returns what stops the watch.
func (e *Exec) watchIdle(began time.Time, drain *proc.Drain) (stop func()) {
	var mu sync.Mutex // guards over and the timer's variable
	over := false
	var t *time.Timer
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(e.spec.IdleTimeout, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		if quiet := drain.Quiet(began); quiet < e.spec.IdleTimeout {
			t.Reset(max(e.spec.IdleTimeout-quiet, time.Millisecond))
			return
		}
		e.stop(sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, sandbusv1.Clock_CLOCK_IDLE)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		t.Stop()
	}
}

// killedForMemory says whether a death by KILL was the kernel's doing.
func (e *Exec) killedForMemory(o *sandbusv1.Outcome, before int) bool {
	killed := o.GetKind() == sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED && o.GetSignal() == "KILL"
	if e.spec.Proc.Cgroup.OOMKills() > 0 {
		// A shell whose child was killed reports it as 128 + 9.
		return killed || (o.GetKind() == sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED && o.GetCode() == 137)
	}
	return killed && proc.OwnOOMKills() > before
}

// ID is the exec's name.
func (e *Exec) ID() string { return e.spec.ID }

// Claim makes somebody the exec's owner, in place of the one before. A claim is never zero.
func (e *Exec) Claim() uint64 { return e.owner.Add(1) }

// Claimed says whether a claim is the latest one.
func (e *Exec) Claimed(claim uint64) bool { return claim != 0 && e.owner.Load() == claim }

// Detached says whether nobody's absence ends the exec.
func (e *Exec) Detached() bool { return e.spec.Detach }

// Owner is the holder of the lease that the exec was started under, whose business its output is; empty means that it was
// started under none.
func (e *Exec) Owner() string { return e.spec.Owner }

// OnTerminal says whether the exec has a terminal.
func (e *Exec) OnTerminal() bool { return e.spec.Terminal != nil }

// Patient says whether readers should wait for the end behind the head (see Log.Read).
func (e *Exec) Patient() bool { return e.spec.HeadTail }

// Started is closed when the command runs or never will.
func (e *Exec) Started() <-chan struct{} { return e.started }

// Done is closed when the outcome is known.
func (e *Exec) Done() <-chan struct{} { return e.done }

// Result is how the exec ended, after Done; nil before.
func (e *Exec) Result() *sandbusv1.StreamEnd {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result
}

// PID is the leader's process id, or zero when there is none.
func (e *Exec) PID() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cmd == nil {
		return 0
	}
	return e.cmd.PID()
}

// Abort ends the exec; it is valid at any time.
func (e *Exec) Abort() { e.stop(sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED, 0) }

// ErrEnded says that an exec does not run any more.
var ErrEnded = errors.New("the exec has ended")

// Signal sends a signal to the command's process group. Errors: ErrEnded.
func (e *Exec) Signal(sig syscall.Signal) error {
	<-e.started
	e.mu.Lock()
	cmd := e.cmd
	e.mu.Unlock()
	if cmd == nil {
		return ErrEnded
	}
	if err := cmd.Signal(sig); err != nil {
		if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
			return ErrEnded
		}
		return err
	}
	return nil
}

// ErrNoTerminal says that an exec has no terminal.
var ErrNoTerminal = errors.New("the exec has no terminal")

// Resize tells the terminal its size. Errors: ErrNoTerminal, ErrEnded.
func (e *Exec) Resize(s Size) error {
	<-e.started
	e.mu.Lock()
	t := e.terminal
	e.mu.Unlock()
	if t == nil {
		return ErrNoTerminal
	}
	if err := pty.Setsize(t, winsize(s)); err != nil {
		return ErrEnded
	}
	return nil
}

// Input takes the command's input. Writes fail when the command does not read any more; Close is its end of file. On a
// terminal that is the end-of-file character.
func (e *Exec) Input() io.WriteCloser { return input{e} }

type input struct{ e *Exec }

func (i input) file() (f *os.File, terminal bool) {
	<-i.e.started
	i.e.mu.Lock()
	defer i.e.mu.Unlock()
	if i.e.terminal != nil {
		return i.e.terminal, true
	}
	return i.e.stdin, false
}

func (i input) Write(b []byte) (int, error) {
	f, _ := i.file()
	if f == nil {
		return 0, ErrEnded
	}
	return f.Write(b)
}

func (i input) Close() error {
	f, terminal := i.file()
	switch {
	case f == nil:
		return nil
	case terminal:
		_, err := f.Write([]byte{4}) // VEOF
		return err
	}
	i.e.closeInput()
	return nil
}

// info describes the exec for a list.
func (e *Exec) info() *sandbusv1.ExecInfo {
	stdout, stderr := e.Log.Totals()
	i := &sandbusv1.ExecInfo{
		ExecId: e.spec.ID, Command: e.spec.Command, Pid: int64(e.PID()), StartedNs: e.began.UnixNano(),
		OutputBytes: stdout + stderr, Readers: int32(e.Log.Readers()), Detached: e.spec.Detach, Terminal: e.spec.Terminal != nil,
		RunMs: time.Since(e.arrived).Milliseconds(),
	}
	if r := e.Result(); r != nil {
		i.Outcome = r.GetOutcome()
		i.RunMs = (r.GetTiming().GetQueueUs() + r.GetTiming().GetStartUs() + r.GetTiming().GetRunUs()) / 1000
	}
	return i
}
