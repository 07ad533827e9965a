package rig

import (
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/loadtest/pace"
	"github.com/sandbus/sandbus/loadtest/record"
	"github.com/sandbus/sandbus/loadtest/workload"
)

// opLimit is how long one operation may take; then it is a failure.
const opLimit = 30 * time.Second

// Kinds of errors that are recorded.
const (
	failTimeout = "timeout"
	failBusy    = "busy"
	failLost    = "lost"
	failExit    = "exit"         // the command ran, and said that it failed
	failWrong   = "wrong-answer" // it was answered, and not rightly
	failLate    = "never-asked"  // open loop: due in time, and never asked because those before took too long
	failLease   = "no-lease"     // none was to be had within the operation's time limit
	failOther   = "error"
)

func kindOf(err error) string {
	var wrong *workload.WrongError
	var remote *harnesslib.ExitError
	var local *exec.ExitError
	switch {
	case errors.As(err, &wrong):
		return failWrong
	case errors.Is(err, harnesslib.ErrBusy):
		return failBusy
	case errors.Is(err, harnesslib.ErrLost):
		return failLost
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, harnesslib.ErrTimedOut):
		return failTimeout
	case errors.As(err, &remote), errors.As(err, &local), errors.Is(err, errExit):
		return failExit
	}
	return failOther
}

// tally is what the sessions of a sample write to.
type tally struct {
	rec  *record.Recorder
	late *record.Recorder

	mu       sync.Mutex // guards the fields below
	busy     time.Duration
	think    time.Duration // summed over the sessions
	last     time.Time     // when the last operation ended
	examples map[string]string
	err      error // the arm cannot do an operation
}

// sample runs the sessions that are open for a while. What is under way at the end is waited for. Errors:
// ErrUnavailable.
func (h *harness) sample(ctx context.Context, req goRequest) (*goResult, error) {
	if len(h.open) == 0 {
		return nil, errNoSessions
	}
	t := &tally{rec: record.NewRecorder(), late: record.NewRecorder(), examples: map[string]string{}}
	start := time.Now().Add(time.Until(time.Unix(0, req.Start))) // with a monotonic reading
	plan := pace.Plan{Start: start, End: start.Add(req.For), Rate: req.Rate, Every: req.Every}
	before, sched := ownUse(), schedLatencies()
	var wg sync.WaitGroup
	for _, r := range h.open {
		wg.Go(func() { r.run(ctx, plan, req, h.cfg.Seed, t) })
	}
	wg.Wait()
	after := ownUse()
	res := &goResult{
		Examples: t.examples, Wall: max(0, t.last.Sub(start)), Busy: t.busy, Think: t.think / time.Duration(len(h.open)),
		Leases: h.leases(), Goroutines: after.Goroutines, SchedP99: sched.p99Since(), CPUNanos: after.CPUNanos - before.CPUNanos,
	}
	if t.err != nil {
		return nil, t.err
	}
	var err error
	if res.Outcomes, err = t.rec.Outcomes(); err != nil {
		return nil, err
	}
	if req.Rate > 0 || req.Every > 0 {
		res.Late = t.late.P99("timer")
	}
	return res, nil
}

// think is the mean pause of the session.
func (r *running) think(req goRequest) time.Duration {
	if r.duty > 0 && req.Service > 0 && req.Rate == 0 {
		return time.Duration(float64(req.Service) * (1 - r.duty) / r.duty)
	}
	return req.Think
}

func (r *running) run(ctx context.Context, plan pace.Plan, req goRequest, seed uint64, t *tally) {
	timer, err := pace.NewTimer()
	if err != nil {
		t.fail(err)
		return
	}
	defer timer.Close()
	plan.Timer, plan.Think = timer, r.think(req)
	rng := rand.New(rand.NewPCG(seed^req.Sample, uint64(r.n)+1)) //nolint:gosec // G404: a load, not a secret
	p := pace.New(plan, rng)
	var busy time.Duration
	var last time.Time
	for {
		from, ok := p.Next(ctx)
		if !ok {
			break
		}
		opCtx, cancel := context.WithTimeout(ctx, opLimit)
		if err := r.turn(opCtx); err != nil {
			cancel()
			if ctx.Err() != nil {
				break
			}
			last = time.Now()
			t.rec.Failed(failLease, failLease, 1)
			t.example(failLease, explain(err))
			continue
		}
		o := r.gen.Next()
		r.done++
		begin := time.Now()
		if plan.Rate == 0 && plan.Every == 0 {
			from = begin // what a lease took is told apart
		}
		err := r.do(opCtx, &o)
		cancel()
		now := time.Now()
		if ctx.Err() != nil {
			break // the rig has said stop: the operation was not left to end
		}
		busy += now.Sub(begin)
		last = now
		if late := p.Late(); late > 0 {
			t.late.OK("timer", late)
		}
		if err == nil {
			t.rec.OK(o.Name, now.Sub(from))
			continue
		}
		if errors.Is(err, ErrUnavailable) {
			t.fail(err)
			break
		}
		t.rec.Failed(o.Name, kindOf(err), 1)
		t.example(kindOf(err), explain(err))
		if o.Kind == workload.Edit {
			_ = r.begin(ctx) // nobody knows what the file says now; where it cannot be written the next edit fails too
		}
	}
	if rents, ok := r.session.(renter); ok && r.leaseOps > 0 {
		rents.giveBack(context.WithoutCancel(ctx)) // others may wait for it
		r.gen = nil
	}
	if n := p.Missed(); n > 0 && ctx.Err() == nil {
		t.rec.Failed(failLate, failLate, n)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy += busy
	t.think += plan.Think
	if last.After(t.last) {
		t.last = last
	}
}

func (t *tally) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
}

// explain is an error's text, with what a command said of it.
func explain(err error) string {
	var stderr []byte
	if remote, ok := errors.AsType[*harnesslib.ExitError](err); ok {
		stderr = remote.Stderr
	} else if local, ok := errors.AsType[*exec.ExitError](err); ok {
		stderr = local.Stderr
	}
	if len(stderr) == 0 {
		return err.Error()
	}
	return err.Error() + ": " + strings.TrimSpace(string(stderr))
}

func (t *tally) example(kind, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.examples[kind]; !ok {
		t.examples[kind] = text
	}
}
