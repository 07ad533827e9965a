package shell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// Config says which shells to hold.
type Config struct {
	Path   string       // the shell's binary: a bash, a POSIX sh, or a busybox
	Dir    string       // where commands run that name no directory; absolute
	Env    []string     // the environment of every command, NAME=value
	Max    int          // shells alive at once; zero means 4
	Warm   int          // shells that are started in advance; zero means 2, at most Max
	Queue  int          // commands that wait for a shell; zero means 256; one more is refused with ErrBusy
	Rules  *proc.Rules  // under which shells and their commands run; nil means none
	Temp   string       // where to make a private directory for FIFOs if need be; empty means os.TempDir
	Logger *slog.Logger // nil discards

	forceFIFO bool // as where the shell cannot open the worker's descriptors
}

// Pool holds warm shells and runs commands on them.
type Pool struct {
	cfg    Config
	pipes  *pipes
	traces bool // the kernel tells how a subshell ended
	wg     sync.WaitGroup
	tidy   *time.Timer // prepares the used shells when nothing else does

	mu      sync.Mutex   // guards the fields below
	idle    []*shell     // prepared
	used    []*shell     // to be prepared again
	alive   int          // idle, busy and starting
	waiting []chan waken // in order of arrival
	closed  bool
}

type waken struct {
	shell *shell
	err   error
}

var (
	// ErrBusy says that all shells are taken and the queue is full; nothing ran.
	ErrBusy = errors.New("all shells are busy and the queue is full")
	// ErrClosed says that the pool was closed; nothing ran.
	ErrClosed = errors.New("shell pool is closed")
)

// NewPool starts the warm shells. Errors: the shell cannot be started.
func NewPool(cfg Config) (*Pool, error) {
	if cfg.Max == 0 {
		cfg.Max = 4
	}
	if cfg.Warm == 0 {
		cfg.Warm = 2
	}
	if cfg.Queue == 0 {
		cfg.Queue = 256
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Pool{cfg: cfg}
	var err error
	if p.pipes, p.traces, err = newPipes(cfg.Path, cfg.Temp, cfg.Rules, cfg.forceFIFO); err != nil {
		return nil, fmt.Errorf("start shell %s: %w", cfg.Path, err)
	}
	p.tidy = time.AfterFunc(time.Hour, p.prepareUsed)
	p.tidy.Stop()
	for range min(cfg.Warm, cfg.Max) {
		s, err := startShell(&p.cfg, p.pipes, p.traces)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("start shell %s: %w", cfg.Path, err)
		}
		p.idle = append(p.idle, s)
		p.alive++
	}
	return p, nil
}

// Close ends all shells and waits for the commands on them, whose contexts must end. It may be called twice.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	idle, waiting := append(p.idle, p.used...), p.waiting
	p.idle, p.used, p.waiting = nil, nil, nil
	p.alive -= len(idle)
	p.mu.Unlock()
	for _, w := range waiting {
		w <- waken{err: ErrClosed}
	}
	for _, s := range idle {
		s.end()
	}
	p.wg.Wait()
	p.tidy.Stop()
	if err := p.pipes.close(); err != nil {
		p.cfg.Logger.Warn("private directory not removed", "error", err)
	}
}

// Command is one fast exec.
type Command struct {
	Script   string
	Dir      string   // absolute; empty means the pool's
	Env      []string // NAME=value, each name a shell name
	Stdin    []byte
	HasStdin bool          // false means /dev/null
	Timeout  time.Duration // zero means none
	Limit    int64         // bytes of stdout and stderr together; must be above zero
}

// Run runs a command on a shell of the pool, in a subshell of it. The end of ctx aborts the command: what it started
// is dead when Run returns. Errors mean that nothing ran: ErrBusy, ErrClosed, the context's cause.
func (p *Pool) Run(ctx context.Context, c Command) (*sandbusv1.ShellRunResponse, error) {
	arrived := time.Now()
	if c.Dir == "" {
		c.Dir = p.cfg.Dir
	}
	if err := proc.CheckDir(c.Dir); err != nil {
		return startFailed(err), nil
	}
	for attempt := 1; ; attempt++ {
		s, err := p.take(ctx)
		if err != nil {
			return nil, err
		}
		r := &run{
			pool: p, shell: s, command: &c, arrived: arrived,
			output: output{limit: c.Limit, stop: make(chan sandbusv1.OutcomeKind, 1)},
		}
		resp, usable := r.do(ctx)
		p.put(s, usable)
		if !r.unread {
			return resp, nil
		}
		if attempt == maxAttempts {
			return startFailed(errors.New("the shells cannot open the pipes of a command")), nil
		}
	}
}

// maxAttempts is on how many shells a command is tried whose text nobody has read: a command before it may have taken
// away what they needed.
const maxAttempts = 3

func startFailed(err error) *sandbusv1.ShellRunResponse {
	var se *proc.StartError
	if !errors.As(err, &se) {
		se = &proc.StartError{Stage: "shell", Err: err}
	}
	return &sandbusv1.ShellRunResponse{Outcome: se.Outcome()}
}

// take returns a prepared shell, in order of arrival.
func (p *Pool) take(ctx context.Context) (*shell, error) {
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return nil, ErrClosed
	case len(p.idle) > 0:
		s := p.idle[len(p.idle)-1] // the one used last: its memory is warm
		p.idle = p.idle[:len(p.idle)-1]
		p.mu.Unlock()
		return s, nil
	case len(p.used) > 0:
		s := p.used[len(p.used)-1]
		p.used = p.used[:len(p.used)-1]
		p.mu.Unlock()
		if err := s.prepare(); err == nil {
			return s, nil
		}
		p.replace(s)
		return p.take(ctx)
	case p.alive < p.cfg.Max:
		p.alive++
		p.startLocked()
	case len(p.waiting) >= p.cfg.Queue:
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %d shells, %d commands wait", ErrBusy, p.cfg.Max, p.cfg.Queue)
	}
	w := make(chan waken, 1)
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	select {
	case got := <-w:
		return got.shell, got.err
	case <-ctx.Done():
		p.forget(w)
		return nil, context.Cause(ctx)
	}
}

// forget takes a waiter out of the queue, or gives back what it got in this moment.
func (p *Pool) forget(w chan waken) {
	p.mu.Lock()
	for i, o := range p.waiting {
		if o == w {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			p.mu.Unlock()
			return
		}
	}
	p.mu.Unlock()
	if got := <-w; got.shell != nil {
		p.offer(got.shell)
	}
}

// startLocked starts one more shell, which is counted already, for whoever waits first.
func (p *Pool) startLocked() {
	p.wg.Go(func() {
		s, err := startShell(&p.cfg, p.pipes, p.traces)
		if err != nil {
			p.startFailed(fmt.Errorf("start shell %s: %w", p.cfg.Path, err))
			return
		}
		p.offer(s)
	})
}

// startFailed tells the first waiter when there is no shell that will come back for it.
func (p *Pool) startFailed(err error) {
	p.cfg.Logger.Error("shell not started", "error", err)
	p.mu.Lock()
	p.alive--
	var w chan waken
	if len(p.waiting) > 0 && p.alive == 0 {
		w, p.waiting = p.waiting[0], p.waiting[1:]
	}
	p.mu.Unlock()
	if w != nil {
		w <- waken{err: err}
	}
}

// offer gives a prepared shell to the first waiter, or keeps it.
func (p *Pool) offer(s *shell) {
	p.mu.Lock()
	switch {
	case p.closed:
		p.alive--
		p.mu.Unlock()
		s.end()
	case len(p.waiting) > 0:
		w := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.mu.Unlock()
		w <- waken{shell: s}
	default:
		p.idle = append(p.idle, s)
		p.mu.Unlock()
	}
}

// tidyAfter is when a used shell is prepared at the latest. Doing it at once would take the processor from the answer
// that is on its way and from the request that follows; the best moment is while the next command runs.
const tidyAfter = time.Millisecond

// put brings a shell back after a command, without keeping the command's caller waiting.
func (p *Pool) put(s *shell, usable bool) {
	if !usable {
		p.wg.Go(func() { p.replace(s) })
		return
	}
	p.mu.Lock()
	p.used = append(p.used, s)
	now := p.closed || len(p.waiting) > 0
	p.mu.Unlock()
	if now {
		p.prepareUsed()
		return
	}
	p.tidy.Reset(tidyAfter)
}

// prepareUsed prepares what was used, in a goroutine of its own.
func (p *Pool) prepareUsed() {
	p.mu.Lock()
	used := p.used
	p.used = nil
	p.mu.Unlock()
	if len(used) == 0 {
		return
	}
	p.wg.Go(func() {
		for _, s := range used {
			if s.prepare() == nil {
				p.offer(s)
			} else {
				p.replace(s)
			}
		}
	})
}

// replace ends a shell and starts another one in its place.
func (p *Pool) replace(s *shell) {
	s.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.alive--
		return
	}
	p.startLocked()
}

// run is one command on its way through a shell.
type run struct {
	pool    *Pool
	shell   *shell
	command *Command
	arrived time.Time
	unread  bool // set when the command did not run

	output
}

// do runs the command; usable is false when the shell must be replaced.
func (r *run) do(ctx context.Context) (resp *sandbusv1.ShellRunResponse, usable bool) {
	round := r.shell.next
	r.shell.next = nil
	began := time.Now()
	r.shell.trace(round)
	var drain proc.Drain
	drain.Add(round.outR, func(b []byte) bool { return r.take(&r.stdout, b) })
	drain.Add(round.errR, func(b []byte) bool { return r.take(&r.stderr, b) })
	var feeders sync.WaitGroup
	stdin, err := r.feed(round, &feeders)
	if err != nil {
		round.release()
		drain.Wait()
		return startFailed(fmt.Errorf("standard input: %w", err)), false
	}
	started := time.Now()
	r.pool.prepareUsed()
	outcome, usable := r.await(ctx, round)
	ended := time.Now()
	drain.LeaderEnded()
	round.release()
	closeAll(stdin...) // the feeder stops, whoever reads on or not
	feeders.Wait()
	held := drain.Wait()
	resp = &sandbusv1.ShellRunResponse{
		Outcome: r.outcome(outcome), Stdout: r.stdout.Bytes(), Stderr: r.stderr.Bytes(), PipeHeld: held,
		Timing: &sandbusv1.Timing{
			QueueUs: began.Sub(r.arrived).Microseconds(), StartUs: started.Sub(began).Microseconds(),
			RunUs: ended.Sub(started).Microseconds(), DrainUs: time.Since(ended).Microseconds(),
		},
	}
	if first := drain.FirstByte(); !first.IsZero() {
		resp.Timing.FirstByteUs = max(0, first.Sub(started).Microseconds())
	}
	return resp, usable
}

// feed writes the text and the input to their pipes. It returns what ends the feeders when it is closed.
func (r *run) feed(round *round, wg *sync.WaitGroup) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files...)
		}
	}()
	cfg := &r.pool.cfg
	stdin := ""
	if r.command.HasStdin {
		in, w, name, err := r.pool.pipes.input()
		if err != nil {
			return files, err
		}
		if in != 0 {
			files = append(files, os.NewFile(uintptr(in), "|0"))
		}
		round.names[3] = name
		stdin = r.pool.pipes.word(r.pool.pipes.end(name, in))
		f, err := r.pool.pipes.feed(w, r.command.Stdin, nil, wg)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	var plain []string
	if strings.HasSuffix(cfg.Path, "bash") || strings.HasSuffix(cfg.Path, "dash") {
		plain = plainWords(r.command, r.command.Dir, cfg.Env)
	}
	t := text(r.command, stdin, cfg.Dir, plain)
	if len(t) <= pipeRoom && !r.pool.pipes.fifo {
		_, _ = unix.Write(int(round.text), []byte(t)) // fails when the shell is dead, which await finds
		round.text.close()
		return files, nil
	}
	long := round.text
	round.text = 0
	f, err := r.pool.pipes.feed(long, []byte(t), &round.taken, wg)
	if err != nil {
		return files, err
	}
	return append(files, f), nil
}

// pipeRoom is what an empty pipe takes at once (PIPE_BUF), however small the system makes it.
const pipeRoom = 4096

// await waits for the command's end, or brings it about.
func (r *run) await(ctx context.Context, round *round) (outcome *sandbusv1.Outcome, usable bool) {
	var timeout <-chan time.Time
	if r.command.Timeout > 0 {
		t := time.NewTimer(r.command.Timeout)
		defer t.Stop()
		timeout = t.C
	}
	for {
		select {
		case st, ok := <-r.shell.status:
			if !ok { // killed from within the command, as by kill -9 $$: that is how the command ended
				return proc.WaitOutcome(r.shell.end()), false
			}
			if st.nonce == round.nonce {
				if r.unread = st.code != 0 && round.unread(); r.unread {
					return nil, false
				}
				return round.ended(st.code), true
			}
		case <-timeout:
			outcome = &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, Clock: sandbusv1.Clock_CLOCK_TOTAL}
			return outcome, r.shell.recover(round.nonce)
		case <-ctx.Done():
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}, r.shell.recover(round.nonce)
		case kind := <-r.stop:
			return &sandbusv1.Outcome{Kind: kind}, r.shell.recover(round.nonce)
		}
	}
}
