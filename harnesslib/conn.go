package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// conn is a TCP connection of the sandbox, as a net.Conn. See Sandbox.DialContext.
type conn struct {
	st            *bus.Stream
	network       string
	local, remote net.Addr
	life          context.Context //nolint:containedctx // the connection's own life, ended by Close
	kill          context.CancelCauseFunc
	readBy        *deadline
	writeBy       *deadline

	readMu   sync.Mutex // held by the one Read that is under way; guards the fields below
	rest     []byte     // of a frame that was longer than a Read's buffer
	received int64      // bytes that came from the far end
	readErr  error      // what every Read returns behind rest; nil while there may be more

	ended atomic.Bool // the end frame was taken

	writeMu sync.Mutex // held by the one Write that is under way; guards the field below
	shut    bool       // our sending half is closed

	closeOnce sync.Once
	closeErr  error
}

func newConn(st *bus.Stream, network string, local, remote net.Addr) *conn {
	c := &conn{st: st, network: network, local: local, remote: remote}
	c.life, c.kill = context.WithCancelCause(context.Background())
	c.readBy, c.writeBy = newDeadline(c.life), newDeadline(c.life)
	return c
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: c.network, Source: c.local, Addr: c.remote, Err: err}
}

func (c *conn) Read(b []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	ctx := c.readBy.context()
	if ctx.Err() != nil {
		return 0, c.fail("read", context.Cause(ctx))
	}
	if len(b) == 0 {
		return 0, nil
	}
	for len(c.rest) == 0 && c.readErr == nil {
		f, err := c.st.Next(ctx)
		if err != nil && ctx.Err() != nil {
			return 0, c.fail("read", context.Cause(ctx))
		}
		if err != nil {
			c.readErr = c.fail("read", connError("read", err))
			break
		}
		c.take(f)
	}
	if len(c.rest) == 0 {
		return 0, c.readErr
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// take notes what a frame says. readMu is held.
func (c *conn) take(f bus.Frame) {
	switch f.Kind {
	case bus.FrameData:
		c.rest = f.Body
		c.received += int64(len(f.Body))
	case bus.FrameEOF:
		c.readErr = io.EOF
	case bus.FrameEnd:
		c.ended.Store(true)
		c.readErr = io.EOF
		if err := c.checkEnd(f.Body); err != nil {
			c.readErr = c.fail("read", connError("read", err))
		}
	default:
		c.readErr = c.fail("read", &bus.StreamError{Rule: fmt.Sprintf("a connection has no frames of kind %d", f.Kind)})
	}
}

func (c *conn) checkEnd(body []byte) error {
	var end sandbusv1.StreamEnd
	if proto.Unmarshal(body, &end) != nil {
		return &bus.StreamError{Rule: "the end frame's body is no StreamEnd"}
	}
	if err := bus.FromWire(end.GetError()); err != nil {
		return err
	}
	if end.GetStdoutBytes() != c.received {
		return &bus.StreamError{Rule: fmt.Sprintf("the end says %d bytes, %d came", end.GetStdoutBytes(), c.received)}
	}
	return nil
}

func (c *conn) Write(b []byte) (n int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	ctx := c.writeBy.context()
	for {
		if ctx.Err() != nil {
			return n, c.fail("write", context.Cause(ctx))
		}
		if c.shut {
			return n, c.fail("write", os.NewSyscallError("write", syscall.EPIPE))
		}
		if n == len(b) {
			return n, nil
		}
		chunk := b[n:min(len(b), n+bus.ChunkBytes)]
		if err := c.st.Send(ctx, chunk); err != nil {
			return n, c.fail("write", c.sendError(ctx, "write", err))
		}
		n += len(chunk)
	}
}

// sendError is why the worker does not take more.
func (c *conn) sendError(ctx context.Context, call string, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, bus.ErrEnded): // Read tells why
		return os.NewSyscallError(call, syscall.EPIPE)
	}
	return connError(call, err)
}

// errUntaken is the cause with which the closing of a half ends that nobody confirmed.
var errUntaken = fmt.Errorf("%w: the sandbox did not confirm within %s that it has taken what was written", ErrLost, abortWindow)

// CloseWrite closes the sending half, as *net.TCPConn's does, and returns when the sandbox has taken all that was
// written.
func (c *conn) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.life.Err() != nil {
		return c.fail("close", context.Cause(c.life))
	}
	return c.closeWriteLocked()
}

func (c *conn) closeWriteLocked() error {
	if c.shut {
		return nil
	}
	c.shut = true
	// Not under the connection's life: a Close meanwhile must not undo it.
	ctx, cancel := context.WithTimeoutCause(context.Background(), abortWindow, errUntaken)
	defer cancel()
	err := c.st.CloseSend(ctx)
	if err == nil || errors.Is(err, bus.ErrEnded) {
		return nil // taken, or there is no half left to be closed
	}
	return c.fail("close", c.sendError(ctx, "shutdown", err))
}

// Close ends the Reads and Writes that wait. A connection that the sandbox does not confirm to have closed is given up
// after a while; it notices by itself.
func (c *conn) Close() error {
	c.kill(net.ErrClosed)
	c.closeOnce.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *conn) close() error {
	defer c.st.Close()
	c.readBy.stop()
	c.writeBy.stop()
	c.writeMu.Lock()
	err := c.closeWriteLocked()
	c.writeMu.Unlock()
	if err != nil || c.ended.Load() {
		return err
	}
	c.readMu.Lock()
	defer c.readMu.Unlock()
	abandon(c.life, c.st)
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	return c.set(t, c.readBy, c.writeBy)
}

func (c *conn) SetReadDeadline(t time.Time) error { return c.set(t, c.readBy) }

func (c *conn) SetWriteDeadline(t time.Time) error { return c.set(t, c.writeBy) }

func (c *conn) set(t time.Time, deadlines ...*deadline) error {
	if c.life.Err() != nil {
		return c.fail("set", net.ErrClosed)
	}
	for _, d := range deadlines {
		d.set(t)
	}
	return nil
}
