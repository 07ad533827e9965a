package bus

import (
	"context"
	"fmt"
	"time"
)

// HubGoneError says that the connection to the hub was lost and has not come back in time.
type HubGoneError struct {
	URL   string        // the hub, without any secret
	After time.Duration // for how long it has been gone
	Err   error         // why waiting ended, such as context.DeadlineExceeded
}

func (e *HubGoneError) Error() string {
	return fmt.Sprintf("the hub %s is gone for %s: %v", e.URL, e.After.Round(time.Millisecond), e.Err)
}

func (e *HubGoneError) Unwrap() error { return e.Err }

// cause is why ctx ended, and that the hub was gone when it is.
func (c *Conn) cause(ctx context.Context) error {
	if gone := c.gone(context.Cause(ctx)); gone != nil {
		return gone
	}
	return context.Cause(ctx)
}

// gone is a *HubGoneError with a cause while there is no connection, else nil.
func (c *Conn) gone(err error) error {
	up, since := c.state()
	if up {
		return nil
	}
	return &HubGoneError{URL: c.url, After: time.Since(since), Err: err}
}

// state says whether we are connected, and since when that is so.
func (c *Conn) state() (up bool, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.connected:
		return true, c.since
	default:
		return false, c.since
	}
}

// connectedFor is for how long we have been connected without a break; zero while we are not. Nobody can be heard
// meanwhile, so silence counts from then on.
func (c *Conn) connectedFor() time.Duration {
	if up, since := c.state(); up {
		return time.Since(since)
	}
	return 0
}

// Gone is a *[HubGoneError] that wraps why, while there is no connection to the hub; else nil.
func (c *Caller) Gone(why error) error { return c.conn.gone(why) }

// connection is how the hub's server names our connection; the zero value when there is none, or no number for it.
func (c *Conn) connection() connection {
	id, err := c.nc.GetClientID()
	if err != nil {
		return connection{}
	}
	return connection{server: c.nc.ConnectedServerId(), client: id}
}
