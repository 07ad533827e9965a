package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// lingerLimit is how long the far end may take for what a caller has sent before it closed the connection.
	lingerLimit = 5 * time.Minute
	// resetGrace is how long a caller may take for what the far end said before it refused to take more; then it is told.
	resetGrace = time.Second
)

// source is what the caller sends: a *bus.Receiver.
type source interface {
	Next(ctx context.Context) (bus.Frame, error)
}

// sink takes what goes to the caller: a *bus.Sender.
type sink interface {
	Write(ctx context.Context, kind bus.FrameKind, body []byte) error
}

// carry copies both ways until both directions have ended, the connection breaks, or ctx ends, and closes the
// connection. finish sends the end frame; it is called once, when nothing more goes to the caller. The end of stopping
// cuts short what is still written for a caller that has closed the connection.
func carry(ctx, stopping context.Context, conn *net.TCPConn, in source, out sink, finish func(*sandbusv1.StreamEnd)) {
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(life, func() { interrupt(conn, context.Cause(life)) })()

	down := make(chan error, 1) // why the caller's direction ended; nil when it was closed in order
	go func() {
		err := fromCaller(life, conn, in)
		defer func() { down <- err }()
		if _, far := errors.AsType[*net.OpError](err); err != nil && !far {
			stop(err) // the caller is gone, or broke a rule
		} else if err != nil {
			// The far end takes no more, but what it has said is still to be read: a server that refuses a request
			// answers and closes.
			late := time.AfterFunc(resetGrace, func() { stop(err) })
			context.AfterFunc(life, func() { late.Stop() })
		}
	}()
	sent, err := toCaller(life, conn, out)
	if err != nil {
		stop(err)
	}
	var broken error
	taken := false
	select {
	case broken = <-down:
		taken = true
	case <-life.Done():
	}
	end := &sandbusv1.StreamEnd{StdoutBytes: sent}
	switch {
	case life.Err() != nil:
		end.Error = bus.ToWire(wireError(context.Cause(life)))
	case broken != nil:
		end.Error = bus.ToWire(wireError(broken))
	}
	finish(end)
	if !taken { // what the caller has sent is still on its way to the far end
		defer context.AfterFunc(stopping, func() { _ = conn.SetWriteDeadline(time.Now()) })() // fails only when it is closed
		broken = <-down
	}
	if broken != nil {
		reset(conn)
		return
	}
	_ = conn.Close() // the caller has been told all there is
}

// interrupt wakes what waits for the far end. A caller that closes the connection, as close(2) does, hears nothing more,
// but what it has sent is still written.
func interrupt(conn *net.TCPConn, cause error) {
	now := time.Now()
	_ = conn.SetReadDeadline(now) // fails only when it is closed already
	if errors.Is(cause, bus.ErrAborted) {
		now = now.Add(lingerLimit)
	}
	_ = conn.SetWriteDeadline(now) // likewise
}

// toCaller copies what the far end sends, and returns how much that was. nil means up to its EOF.
func toCaller(ctx context.Context, conn *net.TCPConn, out sink) (sent int64, err error) {
	buf := make([]byte, bus.ChunkBytes)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if werr := out.Write(ctx, bus.FrameData, buf[:n]); werr != nil {
				return sent, werr
			}
			sent += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sent, out.Write(ctx, bus.FrameEOF, nil)
		}
		if err != nil {
			return sent, err
		}
	}
}

// fromCaller copies what the caller sends. nil means up to its end, which the far end was told. When ctx ends, what has
// arrived is still written.
func fromCaller(ctx context.Context, conn *net.TCPConn, in source) error {
	for {
		f, err := in.Next(ctx)
		if err != nil {
			return err
		}
		switch f.Kind {
		case bus.FrameData:
			if _, err := conn.Write(f.Body); err != nil {
				return err
			}
		case bus.FrameEnd:
			return conn.CloseWrite()
		default:
			return &bus.StreamError{Rule: fmt.Sprintf("a connection's input has no frames of kind %d", f.Kind)}
		}
	}
}

// reset closes a connection so that the far end sees that it broke.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // fails only when it is closed already
	_ = conn.Close()      // nobody is left to be told
}
