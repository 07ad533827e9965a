package shell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// Result is how a session's command ended.
type Result struct {
	*sandbusv1.ShellRunResponse
	Fresh bool   // the command began on a new shell: the session's first, or its state was lost before
	Lost  bool   // the session's shell ended with the command; the next one begins on a new shell
	Dir   string // where the session is now; empty when it cannot be seen
	Gone  string // where the session was: the directory was deleted, and the command ran in "/"
}

// ready sees to it that there is a shell and says where it runs.
func (x *session) ready(res *Result) error {
	if x.shell != nil && !x.shell.alive() { // a background process may have killed it
		x.lose()
	}
	if x.shell != nil {
		if dir, gone := x.shell.dir(); gone {
			res.Gone = dir
		}
		return nil
	}
	res.Fresh = true
	dir := x.dir
	if proc.CheckDir(dir) != nil {
		res.Gone, dir = dir, "/"
	}
	shell, err := startSessionShell(&x.all.cfg.Config, dir)
	if err != nil {
		return fmt.Errorf("start shell %s: %w", x.all.cfg.Path, err)
	}
	x.shell = shell
	return nil
}

// lose gives up a shell that has ended or is of no use.
func (x *session) lose() {
	x.shell.end()
	x.shell = nil
}

// leave gives up a shell that has ended by itself. What it left in the background lives on, as with any shell.
func (x *session) leave() {
	closeAll(x.shell.in)
	x.shell = nil
}

// run runs a command; the caller has the turn.
func (x *session) run(ctx context.Context, c *Command, arrived time.Time) *Result {
	if c.Dir != "" {
		if err := proc.CheckDir(c.Dir); err != nil {
			return &Result{ShellRunResponse: startFailed(err), Dir: x.dir}
		}
	}
	err := errors.New("the session's shell cannot open the pipes of a command, or ends before it")
	for range maxAttempts {
		res := &Result{}
		if rerr := x.ready(res); rerr != nil {
			return &Result{ShellRunResponse: startFailed(rerr), Fresh: true, Dir: x.dir}
		}
		r := &sessionRun{
			session: x, shell: x.shell, command: c, arrived: arrived,
			output: output{limit: c.Limit, stop: make(chan sandbusv1.OutcomeKind, 1)},
		}
		ran, rerr := r.do(ctx, res)
		if ran {
			return res
		}
		x.lose()
		if rerr != nil {
			err = rerr
		}
	}
	return &Result{ShellRunResponse: startFailed(err), Fresh: true, Dir: x.dir}
}

// sessionRun is one command on its way through a session's shell.
type sessionRun struct {
	session *session
	shell   *sessionShell
	command *Command
	arrived time.Time
	since   proc.Tick
	nonce   string
	began   bool // the shell has said so

	output
}

// do runs the command and fills in the result. When it did not run, ran is false, and the shell is of no use.
func (r *sessionRun) do(ctx context.Context, res *Result) (ran bool, err error) {
	x := r.session
	began := time.Now()
	r.since, r.nonce = proc.Now(), newNonce()
	plumbing, con, err := r.connect()
	if err != nil {
		plumbing.close()
		return false, err
	}
	var drain proc.Drain
	drain.Add(plumbing.outR, func(b []byte) bool { return r.take(&r.stdout, b) })
	drain.Add(plumbing.errR, func(b []byte) bool { return r.take(&r.stderr, b) })
	plumbing.outR, plumbing.errR = nil, nil // the drain's
	line, text := r.shell.lang.line(r.command, res.Gone != "" && !res.Fresh, r.nonce, con)
	var feeders sync.WaitGroup
	err = plumbing.feed([]byte(text), r.command.Stdin, &feeders)
	if err == nil {
		_, err = r.shell.in.WriteString(line) // fails when the shell is dead
	}
	started := time.Now()
	var outcome *sandbusv1.Outcome
	if err == nil {
		outcome, res.Lost = r.await(ctx)
	}
	ended := time.Now()
	drain.LeaderEnded()
	plumbing.close() // the feeders stop, whoever reads on or not
	feeders.Wait()
	held := drain.Wait()
	if outcome == nil {
		return false, err
	}
	switch {
	case !res.Lost:
		if dir, gone := r.shell.dir(); dir != "" && !gone {
			x.setDir(dir)
		}
	case r.shell.alive():
		x.lose()
	default:
		x.leave()
	}
	res.Dir = x.dir
	res.ShellRunResponse = &sandbusv1.ShellRunResponse{
		Outcome: r.outcome(outcome), Stdout: r.stdout.Bytes(), Stderr: r.stderr.Bytes(), PipeHeld: held,
		Timing: &sandbusv1.Timing{
			QueueUs: began.Sub(r.arrived).Microseconds(), StartUs: started.Sub(began).Microseconds(),
			RunUs: ended.Sub(started).Microseconds(), DrainUs: time.Since(ended).Microseconds(),
		},
	}
	if first := drain.FirstByte(); !first.IsZero() {
		res.Timing.FirstByteUs = max(0, first.Sub(started).Microseconds())
	}
	return true, nil
}

// plumbing is the pipes of one command of a session.
type plumbing struct {
	pipes      *pipes
	outR, errR *os.File
	ours       []rawFD // what only the shell needs
	text, in   rawFD   // write ends; zero for none
	names      []string
	files      []*os.File
}

// connect makes the pipes of the command.
func (r *sessionRun) connect() (p *plumbing, con connection, err error) {
	pipes := r.session.all.pipes
	p, con = &plumbing{pipes: pipes}, connection{stdin: "/dev/null"}
	out := func(word *string) (*os.File, error) {
		f, w, name, err := pipes.outPipe()
		if err == nil {
			p.ours, p.names, *word = append(p.ours, w), append(p.names, name), pipes.word(pipes.end(name, w))
		}
		return f, err
	}
	in := func(word *string) (rawFD, error) {
		e, w, name, err := pipes.input()
		if err == nil {
			p.ours, p.names, *word = append(p.ours, e), append(p.names, name), pipes.word(pipes.end(name, e))
		}
		return w, err
	}
	if p.outR, err = out(&con.stdout); err != nil {
		return p, con, err
	}
	if p.errR, err = out(&con.stderr); err != nil {
		return p, con, err
	}
	if r.command.HasStdin {
		if p.in, err = in(&con.stdin); err != nil {
			return p, con, err
		}
	}
	if len(r.shell.lang.script(r.command)) > inlineText {
		p.text, err = in(&con.text)
	}
	return p, con, err
}

// feed writes the command's text and input.
func (p *plumbing) feed(text, stdin []byte, wg *sync.WaitGroup) error {
	for _, f := range []struct {
		w    *rawFD
		data []byte
	}{{&p.text, text}, {&p.in, stdin}} {
		if *f.w == 0 {
			continue
		}
		w := *f.w
		*f.w = 0
		file, err := p.pipes.feed(w, f.data, nil, wg)
		if err != nil {
			return err
		}
		p.files = append(p.files, file)
	}
	return nil
}

func (p *plumbing) close() {
	for _, name := range p.names { // first, as in round.release
		p.pipes.remove(name)
	}
	closeAll(append(p.files, p.outR, p.errR)...)
	for i := range p.ours {
		p.ours[i].close()
	}
	p.text.close()
	p.in.close()
}

// watchEvery is how often it is looked whether the shell is at its next line without having said that the command has
// ended: a command may have redefined what says that.
const watchEvery = 500 * time.Millisecond

// await waits for the command's end, or brings it about. No outcome means that it did not run.
func (r *sessionRun) await(ctx context.Context) (outcome *sandbusv1.Outcome, lost bool) {
	var timeout <-chan time.Time
	if r.command.Timeout > 0 {
		t := time.NewTimer(r.command.Timeout)
		defer t.Stop()
		timeout = t.C
	}
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	idle := 0
	for {
		select {
		case m, ok := <-r.shell.says:
			if outcome, lost, done := r.heard(m, ok); done {
				return outcome, lost
			}
		case <-watch.C:
			if !r.began || !r.shell.idle() {
				idle = 0
			} else if idle++; idle == 2 {
				return r.broken(), true
			}
		case <-timeout:
			outcome = &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, Clock: sandbusv1.Clock_CLOCK_TOTAL}
			return outcome, !r.recover()
		case <-ctx.Done():
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}, !r.recover()
		case kind := <-r.stop:
			return &sandbusv1.Outcome{Kind: kind}, !r.recover()
		}
	}
}

// heard judges what the shell says; !ok means that it has ended.
func (r *sessionRun) heard(m said, ok bool) (outcome *sandbusv1.Outcome, lost, done bool) {
	switch {
	case !ok && r.began: // by exit, exec or a signal: that is how the command ended
		return proc.WaitOutcome(r.shell.cmd.ProcessState), true, true
	case !ok:
		return nil, true, true
	case m.nonce != r.nonce:
		return nil, false, false
	case !m.ended:
		r.began = true
		return nil, false, false
	case !r.began:
		return nil, true, true
	}
	return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED, Code: int32(m.code)}, false, true
}

// broken ends a shell that does not say how the command ended: its own exit may tell.
func (r *sessionRun) broken() *sandbusv1.Outcome {
	_, _ = r.shell.in.WriteString("\\exit \"$__sandbus_s\"\n") // fails when it has ended in this moment
	closeAll(r.shell.in)
	if r.shell.wait(recoverLimit) {
		return proc.WaitOutcome(r.shell.cmd.ProcessState)
	}
	return &sandbusv1.Outcome{
		Kind:    sandbusv1.OutcomeKind_OUTCOME_KIND_LOST,
		Message: "the command has changed the session's shell so that it does not say how the command ended",
	}
}

// recoverLimit is how long a shell has to come back once all that a command started is dead.
const recoverLimit = 500 * time.Millisecond

// endSteps are the signals for what a command has started, and how long each has to work.
var endSteps = []struct {
	sig  unix.Signal
	wait time.Duration
}{{unix.SIGINT, 50 * time.Millisecond}, {unix.SIGTERM, 150 * time.Millisecond}, {unix.SIGKILL, 250 * time.Millisecond}, {unix.SIGKILL, 250 * time.Millisecond}}

// recover ends what the command has started and has the shell give it up. It returns false when the shell is of no use
// any more.
func (r *sessionRun) recover() bool {
	tree := proc.NewTreeSince(r.shell.self, r.since)
	back := make(chan bool, 1)
	go func() { back <- r.back() }()
	for i, step := range endSteps {
		if i == 0 && r.shell.lang.takesINT {
			continue
		}
		r.shell.interrupt() // first, so that it does not go on to what stands behind
		tree.Look()
		tree.Signal(step.sig)
		if tree.Await(context.Background(), step.wait) {
			break
		}
	}
	limit := time.NewTimer(recoverLimit)
	defer limit.Stop()
	again := time.NewTicker(recoverLimit / 10)
	defer again.Stop()
	for {
		select {
		case ok := <-back:
			tree.Look()
			tree.Signal(unix.SIGKILL) // what it started on its way back
			tree.Await(context.Background(), recoverLimit)
			return ok
		case <-again.C:
			tree.Look()
			tree.Signal(unix.SIGKILL)
			r.shell.interrupt()
		case <-limit.C:
			r.shell.end()
			<-back
			return false
		}
	}
}

// back waits until the shell says that the command has ended (true) or has ended itself.
func (r *sessionRun) back() bool {
	for m := range r.shell.says {
		if m.nonce == r.nonce && m.ended {
			return true
		}
	}
	return false
}
