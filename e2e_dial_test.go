package sandbus_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// listen opens a port of the sandbox, which shares this machine's loopback.
func listen(tb testing.TB) *net.TCPListener {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = ln.Close() }) // some tests close it themselves
	return ln.(*net.TCPListener)
}

// dialPair connects to a new listener, and returns both ends.
func dialPair(tb testing.TB, p *place) (near net.Conn, far *net.TCPConn) {
	tb.Helper()
	ln := listen(tb)
	near, err := p.DialContext(tb.Context(), "tcp", ln.Addr().String())
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = near.Close() }) // what it says matters where a test closes it
	far, err = ln.AcceptTCP()
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = far.Close() })
	return near, far
}

// TestDialIsANetConn has package nettest's battery run on the dialled end, and with the roles changed.
func TestDialIsANetConn(t *testing.T) {
	p := start(t, nil)
	pipe := func() (near, far net.Conn, stop func(), err error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		defer func() { _ = ln.Close() }() // has done its part
		near, err = p.DialContext(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		if far, err = ln.Accept(); err != nil {
			return nil, nil, nil, err
		}
		return near, far, func() {
			_ = near.Close() // the battery has looked at what it says
			_ = far.Close()
		}, nil
	}
	t.Run("near", func(t *testing.T) { nettest.TestConn(t, pipe) })
	t.Run("far", func(t *testing.T) {
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			c2, c1, stop, err = pipe()
			return c1, c2, stop, err
		})
	})
}
