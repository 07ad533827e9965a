package dial

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// MaxConns is how many connections may be open at once. It leaves room in the requests that a worker has under way
	// for everything else: a connection is one of them for as long as it lives.
	MaxConns = 512
	// MaxTimeout is how long a connection may take to be made.
	MaxTimeout = 10 * time.Minute
	// maxAddress bounds an address: a name of 253 bytes with its port, and what is not worth refusing.
	maxAddress = 300
)

// Dialer serves net.dial.
type Dialer struct {
	anywhere bool
	conns    atomic.Int64
	life     context.Context //nolint:containedctx // the dialer's own life, ended by Stop
	stop     context.CancelCauseFunc
}

// New makes a dialer. anywhere allows every address that the sandbox reaches; false means its loopback addresses only.
func New(anywhere bool) *Dialer {
	d := &Dialer{anywhere: anywhere}
	d.life, d.stop = context.WithCancelCause(context.Background())
	return d
}

// Stop ends the wait for far ends that do not take what callers sent before they closed a connection. It may be called
// twice.
func (d *Dialer) Stop() { d.stop(errStopped) }

var errStopped = errors.New("the worker has stopped")

// Serve makes the connection that a request asks for, and carries it to its end.
func (d *Dialer) Serve(req *bus.Request) {
	var m sandbusv1.DialRequest
	ctx, err := req.Decode(&m)
	if err == nil {
		err = check(&m)
	}
	if err != nil {
		req.Fail(err)
		return
	}
	defer d.conns.Add(-1)
	if n := d.conns.Add(1); n > MaxConns {
		req.Fail(bus.Errorf(sandbusv1.Code_CODE_BUSY, "%d connections are open, the bound is %d", n-1, MaxConns))
		return
	}
	conn, err := d.connect(ctx, &m)
	if err != nil {
		req.Fail(wireError(err))
		return
	}
	out, err := req.Outgoing(m.GetWindow())
	if err != nil {
		_ = conn.Close() // nothing was sent
		req.Fail(err)
		return
	}
	started, err := proto.Marshal(&sandbusv1.DialStarted{
		LocalAddress: conn.LocalAddr().String(), RemoteAddress: conn.RemoteAddr().String(), InputWindow: bus.DefaultWindow,
	})
	if err == nil {
		err = out.Write(ctx, bus.FrameStarted, started)
	}
	if err != nil {
		reset(conn)
		req.Fail(err)
		return
	}
	carry(ctx, d.life, conn, req.Incoming(), out, func(end *sandbusv1.StreamEnd) { req.EndStream(out, end) })
}

// check refuses what no worker would take.
func check(m *sandbusv1.DialRequest) error {
	invalid := func(format string, args ...any) error {
		return bus.Errorf(sandbusv1.Code_CODE_INVALID, format, args...)
	}
	switch m.GetNetwork() {
	case "tcp", "tcp4", "tcp6":
	default:
		return invalid("network %.40q: want tcp, tcp4 or tcp6", m.GetNetwork())
	}
	if n := len(m.GetAddress()); n > maxAddress {
		return invalid("the address has %d bytes, the bound is %d", n, maxAddress)
	}
	if _, _, err := net.SplitHostPort(m.GetAddress()); err != nil {
		return invalid("address %q: want HOST:PORT: %v", m.GetAddress(), err)
	}
	if t := m.GetTimeoutMs(); t < 0 || t > MaxTimeout.Milliseconds() {
		return invalid("timeout %d ms: want 0 (none of its own) to %d ms (%s)", t, MaxTimeout.Milliseconds(), MaxTimeout)
	}
	if w := m.GetWindow(); w != 0 && w != bus.ClampWindow(w) {
		return invalid("window %d: want %d to %d bytes, or 0 for %d", w, bus.MinWindow, bus.MaxWindow, bus.DefaultWindow)
	}
	return nil
}

func (d *Dialer) connect(ctx context.Context, m *sandbusv1.DialRequest) (*net.TCPConn, error) {
	host, port, err := net.SplitHostPort(m.GetAddress())
	if err != nil {
		return nil, err
	}
	nd := net.Dialer{Timeout: MaxTimeout}
	if t := m.GetTimeoutMs(); t > 0 {
		nd.Timeout = time.Duration(t) * time.Millisecond
	}
	if !d.anywhere {
		nd.Control = loopbackOnly
	}
	conn, err := nd.DialContext(ctx, m.GetNetwork(), net.JoinHostPort(here(host), port))
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// here gives the sandbox itself a name, where package net has none: an empty host, and the addresses that the kernel
// takes for "this machine" when it connects.
func here(host string) string {
	if host == "" {
		return "localhost"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.Unmap().IsUnspecified() {
		return host
	}
	if ip.Unmap().Is4() {
		return "127.0.0.1"
	}
	return "::1"
}

// loopbackOnly is called for each attempt, with the address that it goes to.
func loopbackOnly(_, address string, _ syscall.RawConn) error {
	if ap, err := netip.ParseAddrPort(address); err == nil && ap.Addr().Unmap().IsLoopback() {
		return nil
	}
	return bus.Errorf(sandbusv1.Code_CODE_PERMISSION, "%s is no loopback address of the sandbox; "+
		"others may be dialled only when its worker runs with --dial-anywhere true (SANDBUS_DIAL_ANYWHERE)", address)
}

// wireError gives an error of package net its code and its errno. Its text leaves out the address, which the caller
// knows.
func wireError(err error) error {
	if err == nil {
		return nil
	}
	if be, ok := errors.AsType[*bus.Error](err); ok {
		return be
	}
	if errors.Is(err, bus.ErrAborted) || errors.Is(err, context.Canceled) {
		return bus.Errorf(sandbusv1.Code_CODE_ABORTED, "aborted")
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return &bus.Error{Code: sandbusv1.Code_CODE_IO, Errno: int32(errno), Message: errno.Error()}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return bus.Errorf(sandbusv1.Code_CODE_NOT_FOUND, "%s: %s", dns.Name, dns.Err)
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return &bus.Error{Code: sandbusv1.Code_CODE_TIMED_OUT, Errno: int32(unix.ETIMEDOUT), Message: "timed out"}
	}
	if ae, ok := errors.AsType[*net.AddrError](err); ok {
		return bus.Errorf(sandbusv1.Code_CODE_INVALID, "%v", ae)
	}
	if se, ok := errors.AsType[*bus.StreamError](err); ok {
		return bus.Errorf(sandbusv1.Code_CODE_PROTOCOL, "%v", se)
	}
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		return oe.Err
	}
	return err
}
