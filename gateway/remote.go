package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// maxQueued is how many bytes of output of one exec wait here for its reader: one more ends the exec.
	maxQueued = 8 << 20
	// abortWindow is how long an abort may take to be confirmed; after it the exec is lost.
	abortWindow = 8 * time.Second
	// keptOps is how many execs of one worker are remembered by their op after their end.
	keptOps = 256
)

// remoteExec is one exec at an attached worker, from the request on the bus to its outcome.
type remoteExec struct {
	worker  *worker
	op      bus.OpID
	content [sha256.Size]byte // of the request
	turn    chan struct{}     // one element while a stream of the bus takes its output

	// Of the one who has the turn.
	req            uint64 // zero: not started
	aborted        cause
	giveUp         <-chan time.Time // when the abort was not confirmed
	stdout, stderr int64            // bytes that were passed on
	end            *sandbusv1.StreamEnd

	mu      sync.Mutex // guards the fields below
	frames  []*sandboxv1.WorkerFrame
	queued  int
	err     error // why there are no more frames
	changed chan struct{}
}

// cause is why an exec was aborted.
type cause int

const (
	causeNone cause = iota
	causeCaller
	causeTimeout
	causeIdle
	causeLimit
	causeSlow // its reader
)

// enter returns the exec of an op; the same op with other content is refused.
func (w *worker) enter(op bus.OpID, content [sha256.Size]byte) (*remoteExec, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.ops[op]; x != nil {
		if x.content != content {
			return nil, bus.Errorf(sandbusv1.Code_CODE_CONFLICT, "exec %s: the id names a command with other content", op)
		}
		return x, nil
	}
	x := &remoteExec{worker: w, op: op, content: content, turn: make(chan struct{}, 1), changed: make(chan struct{})}
	w.ops[op] = x
	w.order = append(w.order, op)
	for i := 0; len(w.order) > keptOps && i < len(w.order); {
		if old := w.ops[w.order[i]]; old != x && w.execs[old.req] == nil {
			delete(w.ops, w.order[i])
			w.order = append(w.order[:i], w.order[i+1:]...)
			continue
		}
		i++
	}
	return x, nil
}

// start sends the command to the worker. A worker that remembers a req_id must not see it again: they are random.
func (x *remoteExec) start(e *sandboxv1.Exec) error {
	e.ReqId = rand.Uint64() | 1 //nolint:gosec // G404: it names, and hides nothing
	w := x.worker
	w.mu.Lock()
	if w.gone != nil {
		defer w.mu.Unlock()
		return bus.Errorf(sandbusv1.Code_CODE_DRAINING, "%v: nothing ran", w.gone)
	}
	x.req = e.GetReqId()
	w.execs[x.req] = x
	w.mu.Unlock()
	if err := w.sendFrame(&sandboxv1.ServerFrame{Msg: &sandboxv1.ServerFrame_Exec{Exec: e}}); err != nil {
		x.fail(errWorkerGone) // it may have got it
	}
	return nil
}

// over lets go of what only an exec that runs needs.
func (x *remoteExec) over() {
	w := x.worker
	w.mu.Lock()
	delete(w.execs, x.req)
	w.mu.Unlock()
	x.mu.Lock()
	x.frames, x.queued = nil, 0
	x.mu.Unlock()
}

// abort asks the worker to end it; the first cause counts.
func (x *remoteExec) abort(why cause) {
	if x.aborted != causeNone {
		return
	}
	x.aborted = why
	x.giveUp = time.After(abortWindow)
	if err := x.worker.sendFrame(&sandboxv1.ServerFrame{Msg: &sandboxv1.ServerFrame_Abort{Abort: &sandboxv1.Abort{ReqId: x.req}}}); err != nil {
		x.fail(errWorkerGone)
	}
}

// heard takes a frame of the worker.
func (x *remoteExec) heard(f *sandboxv1.WorkerFrame) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(f.GetChunk().GetData()); n > 0 {
		if x.queued+n > maxQueued {
			x.err = errSlow
			x.wakeLocked()
			return
		}
		x.queued += n
	}
	x.frames = append(x.frames, f)
	x.wakeLocked()
}

// errSlow says that the reader of an exec did not keep up.
var errSlow = fmt.Errorf("the reader is more than %d bytes behind: an exec of an attached worker cannot be held back", maxQueued)

func (x *remoteExec) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
	x.wakeLocked()
}

func (x *remoteExec) wakeLocked() {
	close(x.changed)
	x.changed = make(chan struct{})
}

// take returns the next frame when there is one; else an error when there will be none, or what to wait for.
func (x *remoteExec) take() (f *sandboxv1.WorkerFrame, changed <-chan struct{}, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if errors.Is(x.err, errSlow) && x.aborted == causeNone {
		return nil, nil, x.err
	}
	if len(x.frames) > 0 {
		f := x.frames[0]
		x.frames[0] = nil
		x.frames = x.frames[1:]
		x.queued -= len(f.GetChunk().GetData())
		return f, nil, nil
	}
	if x.err != nil && !errors.Is(x.err, errSlow) {
		return nil, nil, x.err
	}
	return nil, x.changed, nil
}

// limits are what bounds an exec.
type limits struct {
	timeout, idle time.Duration // zero means none
	output        int64         // bytes of stdout and stderr together; below zero means none
}

// errLeft says that a stream of the bus has been replaced by another one, which goes on with the exec.
var errLeft = errors.New("another stream goes on with the exec")

// run passes output on to write until the exec has ended, and returns how. It is called by the one who has the turn, on
// an exec that was started. The end of ctx aborts the exec, unless it only was replaced. Errors: errLeft, those of write.
func (x *remoteExec) run(ctx context.Context, l limits, write func(sandboxv1.Stream, []byte) error) (*sandbusv1.Outcome, error) {
	total, idle := newClock(l.timeout), newClock(l.idle)
	defer total.stop()
	defer idle.stop()
	done := ctx.Done()
	for {
		f, changed, err := x.take()
		switch {
		case errors.Is(err, errSlow):
			x.abort(causeSlow)
			continue
		case err != nil:
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_LOST, Message: err.Error()}, nil
		case f.GetChunk() != nil:
			idle.reset()
			if err := x.pass(f.GetChunk(), l.output, write); err != nil {
				return nil, err
			}
			continue
		case f != nil:
			return x.outcome(f), nil
		}
		select {
		case <-changed:
		case <-total.c:
			x.abort(causeTimeout)
		case <-idle.c:
			x.abort(causeIdle)
		case <-x.giveUp:
			return &sandbusv1.Outcome{
				Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_LOST, Message: fmt.Sprintf("the worker did not confirm the abort within %s", abortWindow),
			}, nil
		case <-done:
			if errors.Is(context.Cause(ctx), bus.ErrReplaced) {
				return nil, errLeft
			}
			x.abort(causeCaller)
			done = nil
		}
	}
}

// pass hands output on, up to the limit.
func (x *remoteExec) pass(c *sandboxv1.Chunk, limit int64, write func(sandboxv1.Stream, []byte) error) error {
	data := c.GetData()
	if x.aborted == causeLimit || x.aborted == causeSlow {
		return nil
	}
	if room := limit - x.stdout - x.stderr; limit >= 0 && int64(len(data)) > room {
		data = data[:room]
		x.abort(causeLimit)
	}
	if c.GetStream() == sandboxv1.Stream_STREAM_STDERR {
		x.stderr += int64(len(data))
	} else {
		x.stdout += int64(len(data))
	}
	if len(data) == 0 {
		return nil
	}
	return write(c.GetStream(), data)
}

// outcome reads a last frame.
func (x *remoteExec) outcome(f *sandboxv1.WorkerFrame) *sandbusv1.Outcome {
	switch x.aborted {
	case causeTimeout:
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, Clock: sandbusv1.Clock_CLOCK_TOTAL}
	case causeIdle:
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, Clock: sandbusv1.Clock_CLOCK_IDLE}
	case causeLimit:
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT}
	case causeSlow:
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_LOST, Message: errSlow.Error()}
	case causeNone, causeCaller:
	}
	if e := f.GetError(); e != nil {
		switch {
		case strings.HasPrefix(e.GetMessage(), "timeout:"):
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, Clock: sandbusv1.Clock_CLOCK_TOTAL}
		case x.aborted == causeCaller:
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}
		case x.stdout+x.stderr > 0: // it had begun
			return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_LOST, Message: brief(e.GetMessage())}
		}
		return &sandbusv1.Outcome{
			Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, Code: 126, Stage: "exec", Message: brief(e.GetMessage()),
		}
	}
	end := f.GetEnd()
	code := end.GetExitCode()
	switch {
	case end.GetTruncated():
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT}
	case code >= 0:
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED, Code: code}
	case x.aborted == causeCaller:
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}
	}
	return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED, Signal: signalName(code)}
}

// signalName is the signal of an exit code below zero. -1 is HUP at some workers, and at others a signal that they do not
// name: it is left unnamed.
func signalName(code int32) string {
	if name := strings.TrimPrefix(unix.SignalName(unix.Signal(-code)), "SIG"); code < -1 && name != "" {
		return name
	}
	return "unknown"
}

// brief bounds what a worker says.
func brief(s string) string { return strings.ToValidUTF8(s[:min(len(s), 4096)], "\uFFFD") }

// clock is a time limit; zero is one that never comes.
type clock struct {
	timer *time.Timer
	after time.Duration
	c     <-chan time.Time
}

func newClock(after time.Duration) *clock {
	if after == 0 {
		return &clock{}
	}
	t := time.NewTimer(after)
	return &clock{timer: t, after: after, c: t.C}
}

func (c *clock) reset() {
	if c.timer != nil {
		c.timer.Reset(c.after)
	}
}

func (c *clock) stop() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
