package pace

import (
	"context"
	"time"
)

// Timer waits for moments. It is used by one goroutine.
type Timer interface {
	// WaitUntil returns when the moment has come, or ctx has ended: then ok is false.
	WaitUntil(ctx context.Context, t time.Time) (ok bool)
	Close()
}

// ordinary is Go's own timer. Where the process has nothing else to do it is up to 1 ms late, because the runtime waits
// for whole milliseconds.
type ordinary struct{}

func (ordinary) WaitUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (ordinary) Close() {}
