package workerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/leases"
	"github.com/sandbus/sandbus/workerd/shell"
)

// Tiers are the tiers of execs, in the order of Meter.Execs.
var Tiers = [...]string{"fast", "stream"}

const (
	tierFast = iota
	tierStream
)

// Stages are the parts of an exec's time, in the order of Meter.Stages.
var Stages = [...]string{"queue", "start", "first_byte", "run", "drain"}

// Meter counts what a worker does. It may be read at any time; counting takes neither a lock nor memory.
type Meter struct {
	Bus bus.Meter
	// Execs are the execs that have ended, by tier and by the number of their outcome's kind.
	Execs [len(Tiers)][int(sandbusv1.OutcomeKind_OUTCOME_KIND_LOST) + 1]atomic.Int64
	// Stages are where their time went.
	Stages [len(Stages)]bus.Histogram
}

func (m *Meter) exec(tier int, o *sandbusv1.Outcome, t *sandbusv1.Timing) {
	if k := int(o.GetKind()); k >= 0 && k < len(m.Execs[tier]) {
		m.Execs[tier][k].Add(1)
	}
	for i, us := range [...]int64{t.GetQueueUs(), t.GetStartUs(), t.GetFirstByteUs(), t.GetRunUs(), t.GetDrainUs()} {
		m.Stages[i].Observe(time.Duration(us) * time.Microsecond)
	}
}

// Gauges is the state of a worker.
type Gauges struct {
	Requests int          // under way
	Execs    int          // alive on the stream tier
	Shells   shell.Stats  // of the fast tier; zero without a shell
	Leases   leases.Stats // of the worker's slots
}

// state is what a worker is in, for those who look from outside.
type state struct {
	conn     atomic.Pointer[bus.Conn]
	gauges   atomic.Pointer[func() Gauges]
	accepted atomic.Bool // a registrar has taken its hello
	draining atomic.Bool
}

// Meter is what the worker counts.
func (w *Worker) Meter() *Meter { return w.cfg.Meter }

// Gauges is the worker's state now; it is zero before it serves.
func (w *Worker) Gauges() Gauges {
	if f := w.state.gauges.Load(); f != nil {
		return (*f)()
	}
	return Gauges{}
}

// Connected says whether there is a connection to the hub now.
func (w *Worker) Connected() bool {
	c := w.state.conn.Load()
	return c != nil && c.Connected()
}

// Draining says whether the worker accepts nothing new.
func (w *Worker) Draining() bool { return w.state.draining.Load() }

// Why a worker does not serve.
var (
	ErrDraining     = errors.New("draining: it accepts nothing new")
	ErrNotConnected = errors.New("not connected to the hub")
	ErrNotAccepted  = errors.New("no registrar has accepted it yet: is one running, and is the sandbox id free?")
)

// Health is nil while the worker serves: it is connected to the hub, a registrar has accepted it, and it does not drain.
// Errors: ErrDraining, ErrNotConnected, ErrNotAccepted.
func (w *Worker) Health() error {
	switch {
	case w.state.draining.Load():
		return ErrDraining
	case !w.Connected():
		return ErrNotConnected
	case !w.state.accepted.Load():
		return ErrNotAccepted
	}
	return nil
}

// ready notes that a registrar has accepted the worker.
func (w *Worker) ready() {
	w.state.accepted.Store(true)
	if w.cfg.OnReady != nil {
		w.cfg.OnReady()
	}
}

// fastOver counts a fast exec. Its line in the log is one of level debug unless it belongs to a trace: at thousands of
// them in a second the log would cost more than the commands.
func (w *Worker) fastOver(r *bus.Request, resp *sandbusv1.ShellRunResponse) {
	o, t := resp.GetOutcome(), resp.GetTiming()
	w.cfg.Meter.exec(tierFast, o, t)
	level, args := slog.LevelDebug, []any(nil)
	_, id := r.Trace()
	if id != "" {
		level, args = slog.LevelInfo, []any{"trace_id", id}
	}
	if w.cfg.Logger.Enabled(context.Background(), level) {
		w.cfg.Logger.Log(context.Background(), level, "exec ended", append(args, "exec", string(r.Op), "outcome", bus.OutcomeName(o.GetKind()),
			"code", o.GetCode(), "run_us", t.GetRunUs(), "stdout_bytes", len(resp.GetStdout()), "stderr_bytes", len(resp.GetStderr()))...)
	}
}

// traceEnv is the variable by which a command finds the trace that it belongs to, for one whose request carries one and does
// not set it otherwise.
func traceEnv(r *bus.Request, env []string) []string {
	t, _ := r.Trace()
	if t == "" {
		return env
	}
	return append([]string{fmt.Sprintf("TRACEPARENT=%s", t)}, env...)
}
