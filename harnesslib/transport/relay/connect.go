package relay

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

// connect waits for a connection. Without one nothing has been sent, which a call that fails would not tell.
func (t *Transport) connect(ctx context.Context) error {
	if t.conn.GetState() == connectivity.Ready {
		return nil
	}
	t.mu.Lock()
	failed := t.failed
	t.mu.Unlock()
	limit, cancel := context.WithTimeout(ctx, t.cfg.ConnectTimeout)
	defer cancel()
	t.conn.ResetConnectBackoff() // an earlier failure is no reason to wait
	done := make(chan struct{})
	defer func() { <-done }()
	defer cancel()
	go func() {
		defer close(done)
		select {
		case <-failed: // the state stays what it was then
			cancel()
		case <-limit.Done():
		}
	}()
	for {
		state := t.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return transport.ErrClosed
		case connectivity.Idle:
			t.conn.Connect()
		case connectivity.Connecting, connectivity.TransientFailure:
		}
		if t.conn.WaitForStateChange(limit, state) {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		select {
		case <-failed:
			t.mu.Lock()
			defer t.mu.Unlock()
			return fmt.Errorf("%w: relay %s: %w", transport.ErrUnreachable, t.cfg.Addr, t.failure)
		default:
			return fmt.Errorf("%w: relay %s: no connection within %s", transport.ErrUnreachable, t.cfg.Addr, t.cfg.ConnectTimeout)
		}
	}
}

// noteFailure keeps the reason why a try to connect failed: gRPC tells it only to calls that fail with it.
func (t *Transport) noteFailure(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failure = err
	close(t.failed)
	t.failed = make(chan struct{})
}

func (t *Transport) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		t.noteFailure(err)
	}
	return c, err
}

// watched are credentials whose failures are noted.
type watched struct {
	credentials.TransportCredentials

	failed func(error)
}

// ClientHandshake is that of the credentials.
func (w *watched) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, c)
	if err != nil {
		w.failed(err)
	}
	return secured, info, err
}

// Clone copies them.
func (w *watched) Clone() credentials.TransportCredentials {
	return &watched{w.TransportCredentials.Clone(), w.failed}
}
