package dial

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// TestLoopbackOnly applies the rule to what a name or an address has become.
func TestLoopbackOnly(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "127.9.8.7:65535", "[::1]:80", "[::ffff:127.0.0.1]:80"} {
		require.NoError(t, loopbackOnly("tcp", address, nil), address)
	}
	for _, address := range []string{"10.0.0.1:1", "128.0.0.1:1", "[::2]:80", "[fe80::1%lo]:80", "[::ffff:10.0.0.1]:80", "0.0.0.0:80", "", "box:80"} {
		var be *bus.Error
		require.ErrorAs(t, loopbackOnly("tcp", address, nil), &be, address)
		require.Equal(t, sandbusv1.Code_CODE_PERMISSION, be.Code)
		require.Contains(t, be.Message, address)
		require.Contains(t, be.Message, "--dial-anywhere")
	}
}

// TestHere has what names the sandbox itself become an address that the rule knows.
func TestHere(t *testing.T) {
	for host, want := range map[string]string{
		"": "localhost", "0.0.0.0": "127.0.0.1", "::": "::1", "::ffff:0.0.0.0": "127.0.0.1",
		"127.0.0.1": "127.0.0.1", "box": "box", "10.0.0.1": "10.0.0.1",
	} {
		require.Equal(t, want, here(host), host)
	}
}

// TestAnywhere connects to an address of this machine that is not loopback, once with the rule and once without.
func TestAnywhere(t *testing.T) {
	addr := outside(t)
	ln, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	m := &sandbusv1.DialRequest{Network: "tcp", Address: ln.Addr().String()}
	_, err = New(false).connect(t.Context(), m)
	var be *bus.Error
	require.ErrorAs(t, err, &be)
	require.Equal(t, sandbusv1.Code_CODE_PERMISSION, be.Code)
	c, err := New(true).connect(t.Context(), m)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// outside is an address of this machine that is not loopback.
func outside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	t.Skip("SKIPPED: this machine has loopback addresses only")
	return ""
}

func TestCheck(t *testing.T) {
	ok := func() *sandbusv1.DialRequest { return &sandbusv1.DialRequest{Network: "tcp", Address: "localhost:80"} }
	require.NoError(t, check(ok()))
	for want, change := range map[string]func(*sandbusv1.DialRequest){
		"want tcp, tcp4 or tcp6":     func(m *sandbusv1.DialRequest) { m.Network = "unix" },
		"want HOST:PORT":             func(m *sandbusv1.DialRequest) { m.Address = "localhost" },
		"the bound is 300":           func(m *sandbusv1.DialRequest) { m.Address = string(make([]byte, 301)) },
		"timeout -1 ms":              func(m *sandbusv1.DialRequest) { m.TimeoutMs = -1 },
		"to 600000 ms":               func(m *sandbusv1.DialRequest) { m.TimeoutMs = 600_001 },
		"window 1: want 65536 to":    func(m *sandbusv1.DialRequest) { m.Window = 1 },
		"or 0 for 262144":            func(m *sandbusv1.DialRequest) { m.Window = 8 << 20 },
		`network "": want tcp, tcp4`: func(m *sandbusv1.DialRequest) { m.Network = "" },
	} {
		m := ok()
		change(m)
		var be *bus.Error
		require.ErrorAs(t, check(m), &be)
		require.Equal(t, sandbusv1.Code_CODE_INVALID, be.Code)
		require.Contains(t, be.Message, want)
	}
}

// FuzzCheck has any address be refused by name or be one that connect takes apart.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"localhost:80", ":80", "[::1]:80", "[fe80::1%lo]:http", "a:b:c", "[]:1", "\x00:1"} {
		f.Add("tcp", s)
	}
	f.Fuzz(func(t *testing.T, network, address string) {
		m := &sandbusv1.DialRequest{Network: network, Address: address}
		if err := check(m); err != nil {
			var be *bus.Error
			require.ErrorAs(t, err, &be)
			require.Less(t, len(be.Message), 4096)
			return
		}
		host, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		_, _, err = net.SplitHostPort(net.JoinHostPort(here(host), port))
		require.NoError(t, err)
	})
}

func TestWireErrors(t *testing.T) {
	for _, c := range []struct {
		err   error
		code  sandbusv1.Code
		errno syscall.Errno
	}{
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, sandbusv1.Code_CODE_IO, syscall.ECONNREFUSED},
		{&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, sandbusv1.Code_CODE_TIMED_OUT, syscall.ETIMEDOUT},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Name: "box", Err: "no such host", IsNotFound: true}}, sandbusv1.Code_CODE_NOT_FOUND, 0},
		{&net.OpError{Op: "dial", Err: &net.AddrError{Err: "invalid port", Addr: "70000"}}, sandbusv1.Code_CODE_INVALID, 0},
		{&net.OpError{Op: "dial", Err: bus.ErrAborted}, sandbusv1.Code_CODE_ABORTED, 0},
		{context.Canceled, sandbusv1.Code_CODE_ABORTED, 0},
		{&bus.StreamError{Rule: "x"}, sandbusv1.Code_CODE_PROTOCOL, 0},
		{errors.New("x"), sandbusv1.Code_CODE_INTERNAL, 0},
	} {
		e := bus.ToWire(wireError(c.err))
		require.Equal(t, c.code, e.GetCode(), c.err)
		require.Equal(t, int32(c.errno), e.GetErrno(), c.err)
		require.NotEmpty(t, e.GetMessage())
	}
	require.NoError(t, wireError(nil))
}

// caller is a caller without a bus: frames that come, and frames that it gets.
type caller struct {
	frames chan bus.Frame
	got    chan bus.Frame
	full   chan struct{} // when not nil, Write waits for it
}

func (c *caller) Next(ctx context.Context) (bus.Frame, error) {
	select {
	case f := <-c.frames: // as a Receiver: what has arrived comes first
		return f, nil
	default:
	}
	select {
	case f := <-c.frames:
		return f, nil
	case <-ctx.Done():
		return bus.Frame{}, context.Cause(ctx)
	}
}

func (c *caller) Write(ctx context.Context, kind bus.FrameKind, body []byte) error {
	if c.full != nil {
		select {
		case <-c.full:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.got <- bus.Frame{Kind: kind, Body: append([]byte{}, body...)}
	return nil
}

// carried is a connection that carry has at work.
type carried struct {
	*caller
	far   *net.TCPConn
	abort context.CancelCauseFunc
	stop  context.CancelCauseFunc
	ends  chan *sandbusv1.StreamEnd
	over  chan struct{}
}

func carrying(t *testing.T) *carried {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	near, err := New(false).connect(t.Context(), &sandbusv1.DialRequest{Network: "tcp", Address: ln.Addr().String()})
	require.NoError(t, err)
	far, err := ln.Accept()
	require.NoError(t, err)
	c := &carried{
		caller: &caller{frames: make(chan bus.Frame, 1000), got: make(chan bus.Frame, 1000)},
		far:    far.(*net.TCPConn), ends: make(chan *sandbusv1.StreamEnd, 2), over: make(chan struct{}),
	}
	ctx, abort := context.WithCancelCause(context.Background())
	stopping, stop := context.WithCancelCause(context.Background())
	c.abort, c.stop = abort, stop
	go func() {
		defer close(c.over)
		carry(ctx, stopping, near, c, c, func(e *sandbusv1.StreamEnd) { c.ends <- e })
	}()
	t.Cleanup(func() {
		abort(errors.New("the test is over"))
		stop(nil)
		_ = c.far.Close() // some tests have closed it
		<-c.over
	})
	return c
}

// fill sends more than the kernel's buffers hold, and returns how much that is.
func (c *carried) fill() int {
	n := 0
	for range 750 {
		c.frames <- bus.Frame{Kind: bus.FrameData, Body: make([]byte, 32<<10)}
		n += 32 << 10
	}
	return n
}

// TestFarEndSeesWhatTheCallerDid has each way in which a caller can go.
func TestFarEndSeesWhatTheCallerDid(t *testing.T) {
	for _, cause := range []error{bus.ErrPeerSilent, bus.ErrAborted, &bus.StreamError{Rule: "x"}, errors.New("the worker is stopping")} {
		t.Run("reset by "+cause.Error(), func(t *testing.T) {
			c := carrying(t)
			c.abort(cause)
			_, err := c.far.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NotNil(t, (<-c.ends).GetError())
			<-c.over
		})
	}
	t.Run("close", func(t *testing.T) {
		c := carrying(t)
		n := c.fill()
		c.frames <- bus.Frame{Kind: bus.FrameEnd}
		c.abort(bus.ErrAborted)
		require.Equal(t, sandbusv1.Code_CODE_ABORTED, (<-c.ends).GetError().GetCode(), "the caller need not wait")
		buf := make([]byte, 64<<10)
		for n > 0 {
			k, err := c.far.Read(buf)
			require.NoError(t, err)
			n -= k
		}
		_, err := c.far.Read(buf)
		require.EqualError(t, err, "EOF")
		<-c.over
	})
	t.Run("close, and the worker stops", func(t *testing.T) {
		c := carrying(t)
		c.fill()
		c.frames <- bus.Frame{Kind: bus.FrameEnd}
		c.abort(bus.ErrAborted)
		<-c.ends
		c.stop(nil)
		select {
		case <-c.over:
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for the far end")
		}
	})
	t.Run("wrong frame", func(t *testing.T) {
		c := carrying(t)
		c.frames <- bus.Frame{Kind: bus.FrameStdout, Body: []byte("x")}
		_, err := c.far.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Equal(t, sandbusv1.Code_CODE_PROTOCOL, (<-c.ends).GetError().GetCode())
	})
}

// TestCallerHearsLastWords has the far end refuse what the caller sends, behind an answer.
func TestCallerHearsLastWords(t *testing.T) {
	c := carrying(t)
	_, err := c.far.Write([]byte("no"))
	require.NoError(t, err)
	c.fill()
	_, err = c.far.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, c.far.Close()) // unread bytes make it a reset
	require.Equal(t, bus.Frame{Kind: bus.FrameData, Body: []byte("no")}, <-c.got)
	e := (<-c.ends).GetError()
	require.Contains(t, []int32{int32(syscall.ECONNRESET), int32(syscall.EPIPE)}, e.GetErrno(), e)
	<-c.over
}

// TestCallerThatDoesNotRead has room for nothing when the far end refuses to take more: it is told all the same.
func TestCallerThatDoesNotRead(t *testing.T) {
	c := carrying(t)
	c.full = make(chan struct{})
	_, err := c.far.Write([]byte("no"))
	require.NoError(t, err)
	c.fill()
	_, err = c.far.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, c.far.Close())
	select {
	case end := <-c.ends:
		require.NotZero(t, end.GetError().GetErrno())
		require.Zero(t, end.GetStdoutBytes())
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the caller")
	}
}
