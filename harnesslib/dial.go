package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// DialContext connects to a TCP listener in the sandbox: its loopback addresses, and others when its worker allows
// that. network is "tcp", "tcp4" or "tcp6"; names are looked up in the sandbox. It fits http.Transport. ctx bounds the
// connecting only.
//
// The connection behaves as one of package net, deadlines included, and has CloseWrite() error, as *net.TCPConn has.
// A Write returns when the bytes are on their way, at most the window (256 KiB) ahead of what the sandbox has taken.
// CloseWrite and Close return when the sandbox has taken all of them, or after 8 s with an error: then they may be
// lost. From there the sandbox delivers them as the kernel would.
//
// Errors are *net.OpError around what the sandbox's system said (syscall.ECONNREFUSED, ...), *net.DNSError, an error
// that is fs.ErrPermission for an address that the worker's rules refuse, ErrBusy, ErrUnknownSandbox, ErrUnreachable,
// the context's cause; of an open connection also syscall.ECONNRESET, syscall.EPIPE, os.ErrDeadlineExceeded,
// net.ErrClosed, and ErrLost when the sandbox is not heard any more.
func (s *Sandbox) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	fail := func(err error) error {
		return &net.OpError{Op: "dial", Net: network, Addr: unresolved{network, address}, Err: err}
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fail(net.UnknownNetworkError(network))
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fail(err)
	}
	op := bus.NewOpID()
	req := &sandbusv1.DialRequest{Meta: &sandbusv1.RequestMeta{Op: string(op)}, Network: network, Address: address}
	if t, ok := ctx.Deadline(); ok {
		req.TimeoutMs = min(max(1, time.Until(t).Milliseconds()), maxDialTimeout.Milliseconds())
	}
	var c *conn
	err := s.do(ctx, func(t bus.Target) (err error) {
		c, err = s.dial(ctx, t, op, req)
		return err
	})
	if err != nil {
		return nil, fail(dialError(ctx, req, err))
	}
	return c, nil
}

// maxDialTimeout is the longest that a worker takes.
const maxDialTimeout = 10 * time.Minute

// dial opens the stream and waits for its first frame.
func (s *Sandbox) dial(ctx context.Context, t bus.Target, op bus.OpID, req *sandbusv1.DialRequest) (*conn, error) {
	st, err := s.hub.caller.Open(ctx, t, "net.dial", op, req, req.GetWindow(), true)
	if err != nil {
		return nil, err
	}
	f, err := st.Next(ctx)
	if err != nil {
		if ctx.Err() != nil {
			abandon(ctx, st)
		}
		st.Close()
		return nil, err
	}
	local, remote, err := started(f)
	if err != nil {
		abandon(ctx, st)
		st.Close()
		return nil, err
	}
	return newConn(st, req.GetNetwork(), local, remote), nil
}

// abandon ends an op whose caller has given up, and takes what it still says, so that the worker need not wait.
func abandon(ctx context.Context, st *bus.Stream) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonWindow)
	defer cancel()
	if _, err := st.Abort(limit, "the caller gave up"); err == nil {
		_ = drain(limit, st) // nobody is interested
	}
}

// drain takes what comes up to the end.
func drain(ctx context.Context, st *bus.Stream) error {
	for {
		f, err := st.Next(ctx)
		if err != nil || f.Kind == bus.FrameEnd {
			return err
		}
	}
}

// started reads the first frame of a connection.
func started(f bus.Frame) (local, remote net.Addr, err error) {
	var m sandbusv1.DialStarted
	if f.Kind != bus.FrameStarted || proto.Unmarshal(f.Body, &m) != nil {
		return nil, nil, &bus.StreamError{Rule: "a connection begins with a started frame and DialStarted in it"}
	}
	if local, err = tcpAddr(m.GetLocalAddress()); err == nil {
		remote, err = tcpAddr(m.GetRemoteAddress())
	}
	return local, remote, err
}

func tcpAddr(s string) (net.Addr, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, &bus.StreamError{Rule: fmt.Sprintf("an address is IP:PORT, not %.80q", s)}
	}
	return net.TCPAddrFromAddrPort(ap), nil
}

// unresolved is an address as the caller gave it.
type unresolved struct{ network, address string }

func (a unresolved) Network() string { return a.network }
func (a unresolved) String() string  { return a.address }

// dialError is the Err of a *net.OpError for a connection that was not made.
func dialError(ctx context.Context, req *sandbusv1.DialRequest, err error) error {
	be, ok := errors.AsType[*bus.Error](err)
	if !ok {
		return execError(err)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case be.Code == sandbusv1.Code_CODE_TIMED_OUT && req.GetTimeoutMs() > 0:
		return context.DeadlineExceeded // the sandbox's clock was a little faster
	case be.Code == sandbusv1.Code_CODE_NOT_FOUND:
		host, _, _ := net.SplitHostPort(req.GetAddress()) // was checked
		return &net.DNSError{Err: be.Message, Name: host, IsNotFound: true}
	}
	return connError("connect", be)
}

// connError is the Err of a *net.OpError for what a worker said.
func connError(call string, err error) error {
	be, ok := errors.AsType[*bus.Error](err)
	if !ok {
		return execError(err)
	}
	if be.Code == sandbusv1.Code_CODE_BUSY || be.Code == sandbusv1.Code_CODE_DRAINING {
		return execError(err)
	}
	if be.Errno > 0 {
		return os.NewSyscallError(call, errnoOf(be.Errno))
	}
	return &remoteError{code: be.Code, message: be.Message}
}

// netErrnos gives the system errors of connections, which have the numbers of Linux on the wire, those of this system.
var netErrnos = map[int32]syscall.Errno{
	13: syscall.EACCES, 32: syscall.EPIPE, 97: syscall.EAFNOSUPPORT, 98: syscall.EADDRINUSE, 99: syscall.EADDRNOTAVAIL,
	100: syscall.ENETDOWN, 101: syscall.ENETUNREACH, 103: syscall.ECONNABORTED, 104: syscall.ECONNRESET,
	105: syscall.ENOBUFS, 110: syscall.ETIMEDOUT, 111: syscall.ECONNREFUSED, 112: syscall.EHOSTDOWN, 113: syscall.EHOSTUNREACH,
}

func errnoOf(n int32) syscall.Errno {
	if errno, ok := netErrnos[n]; ok {
		return errno
	}
	return syscall.Errno(n)
}
