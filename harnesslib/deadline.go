package harnesslib

import (
	"context"
	"os"
	"sync"
	"time"
)

// deadline is one of the two of a net.Conn: a context that ends when the time is over, with os.ErrDeadlineExceeded as
// its cause, or with its parent.
type deadline struct {
	mu     sync.Mutex      // guards the fields below
	ctx    context.Context //nolint:containedctx // what the deadline is made of
	cancel context.CancelCauseFunc
	timer  *time.Timer     // nil while there is no deadline ahead
	parent context.Context //nolint:containedctx // the connection's life
}

func newDeadline(parent context.Context) *deadline {
	d := &deadline{parent: parent}
	d.ctx, d.cancel = context.WithCancelCause(parent)
	return d
}

// context is what an operation that begins now runs under. It may end later than it says now: set moves it.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// set moves the deadline, also of operations that wait; the zero time means none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fired := d.timer != nil && !d.timer.Stop() // it ends the context, if it has not yet
	d.timer = nil
	if fired || d.ctx.Err() != nil {
		d.ctx, d.cancel = context.WithCancelCause(d.parent)
	}
	if t.IsZero() {
		return
	}
	cancel := d.cancel
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { cancel(os.ErrDeadlineExceeded) })
	} else {
		cancel(os.ErrDeadlineExceeded)
	}
}

// stop lets the timer go. The parent has ended by then.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}
