package bothsides

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
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

// TestDialEnds has each direction end while the other goes on.
func TestDialEnds(t *testing.T) {
	p := start(t, nil)
	data := make([]byte, 3_000_000)
	_, _ = rand.Read(data)
	t.Run("caller first", func(t *testing.T) {
		near, far := dialPair(t, p)
		go func() {
			_, _ = near.Write(data) // what arrives is compared
			assertNoError(t, near.(interface{ CloseWrite() error }).CloseWrite())
		}()
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "%d bytes came", len(got))
		_, err = near.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
		go func() {
			_, _ = far.Write(data)
			_ = far.Close()
		}()
		got, err = io.ReadAll(near)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "%d bytes came", len(got))
		require.NoError(t, near.Close())
	})
	t.Run("far end first", func(t *testing.T) {
		near, far := dialPair(t, p)
		_, err := far.Write([]byte("bye"))
		require.NoError(t, err)
		require.NoError(t, far.CloseWrite())
		got, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "bye", string(got))
		go func() {
			_, _ = near.Write(data)
			assertNoError(t, near.Close())
		}()
		got, err = io.ReadAll(far)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "%d bytes came", len(got))
	})
}

func assertNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestDialCloseLosesNothing closes right behind the last Write, with a far end that begins to read later.
func TestDialCloseLosesNothing(t *testing.T) {
	p := start(t, nil)
	near, far := dialPair(t, p)
	data := make([]byte, 32<<20) // more than all buffers hold
	_, _ = rand.Read(data)
	wrote := make(chan int, 1)
	require.NoError(t, near.SetWriteDeadline(time.Now().Add(500*time.Millisecond))) // until all buffers are full
	go func() {
		n, err := near.Write(data)
		if !errors.Is(err, os.ErrDeadlineExceeded) && err != nil {
			t.Error(err)
		}
		assertNoError(t, near.Close())
		wrote <- n
	}()
	n := <-wrote
	require.Less(t, n, len(data))
	got, err := io.ReadAll(far)
	require.NoError(t, err, "an orderly close")
	require.True(t, bytes.Equal(data[:n], got), "%d bytes were written, %d came", n, len(got))
}

// TestDialReset has the far end break the connection, and the caller.
func TestDialReset(t *testing.T) {
	p := start(t, nil)
	t.Run("by the far end", func(t *testing.T) {
		near, far := dialPair(t, p)
		_, err := far.Write([]byte("last words"))
		require.NoError(t, err)
		buf := make([]byte, 10)
		_, err = io.ReadFull(near, buf)
		require.NoError(t, err)
		require.NoError(t, far.SetLinger(0))
		require.NoError(t, far.Close())
		_, err = near.Read(buf)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		var oe *net.OpError
		require.ErrorAs(t, err, &oe)
		require.Equal(t, "read", oe.Op)
		require.Equal(t, far.LocalAddr().String(), oe.Addr.String())
		_, err = near.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
		require.NoError(t, near.Close())
	})
	t.Run("while the caller waits for room", func(t *testing.T) {
		near, far := dialPair(t, p)
		failed := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				_, err = near.Write(make([]byte, 64<<10))
			}
			failed <- err
		}()
		_, err := io.ReadFull(far, make([]byte, 64<<10))
		require.NoError(t, err)
		_, err = far.Write(make([]byte, 100_000)) // which nobody reads before the break
		require.NoError(t, err)
		require.NoError(t, far.SetLinger(0))
		require.NoError(t, far.Close())
		require.ErrorIs(t, <-failed, syscall.EPIPE)
	})
	t.Run("the hub connection goes", func(t *testing.T) {
		h := connect(t, p.bus)
		sb, err := h.Sandbox("box")
		require.NoError(t, err)
		ln := listen(t)
		near, err := sb.DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		h.Close()
		_, err = near.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
		_, err = near.Write([]byte("x"))
		require.Error(t, err)
		require.Error(t, near.Close(), "nobody knows what has arrived")
	})
}

// TestDialWorkerStops has the worker end with a connection open: both ends see that it broke.
func TestDialWorkerStops(t *testing.T) {
	p := start(t, nil)
	stop := startWorker(t, p.bus, "other", func(c *workerd.Config) { c.Dir = t.TempDir() })
	sb, err := p.hub.Sandbox("other")
	require.NoError(t, err)
	ln := listen(t)
	near, err := sb.DialContext(t.Context(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	far, err := ln.Accept()
	require.NoError(t, err)
	defer func() { _ = far.Close() }() // it is broken
	stop()
	_, err = far.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = near.Read(make([]byte, 1))
	require.ErrorContains(t, err, "the worker is stopping")
	require.NoError(t, near.Close())
}

func TestDialErrors(t *testing.T) {
	p := start(t, nil)
	ln := listen(t)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	for _, c := range []struct {
		network, address string
		is               error
		text             string
	}{
		{"tcp", addr, syscall.ECONNREFUSED, "dial tcp " + addr},
		{"tcp4", addr, syscall.ECONNREFUSED, "dial tcp4 " + addr},
		{"udp", addr, nil, "unknown network udp"},
		{"tcp", "no-port", nil, "missing port"},
		{"tcp", "127.0.0.1:70000", fs.ErrInvalid, "invalid port"},
		{"tcp", "192.0.2.1:80", fs.ErrPermission, "192.0.2.1:80 is no loopback address"},
		{"tcp", "[2001:db8::1]:80", fs.ErrPermission, "--dial-anywhere"},
		{"tcp6", "127.0.0.1:80", nil, "127.0.0.1"},
		{"tcp", strings.Repeat("x", 300) + ":80", fs.ErrInvalid, "bound is 300"},
	} {
		_, err := p.DialContext(t.Context(), c.network, c.address)
		var oe *net.OpError
		require.ErrorAs(t, err, &oe, c.address)
		require.Equal(t, "dial", oe.Op)
		if c.is != nil {
			require.ErrorIs(t, err, c.is, c.address)
		}
		require.ErrorContains(t, err, c.text)
	}
	nobody, err := p.hub.Sandbox("nobody")
	require.NoError(t, err)
	_, err = nobody.DialContext(t.Context(), "tcp", addr)
	require.ErrorIs(t, err, harnesslib.ErrUnknownSandbox)
}

// TestDialSelf has the sandbox's names for itself all lead to it.
func TestDialSelf(t *testing.T) {
	p := start(t, nil)
	ln := listen(t)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "localhost", "", "0.0.0.0", "[::ffff:127.0.0.1]"} {
		c, err := p.DialContext(t.Context(), "tcp", host+":"+port)
		require.NoError(t, err, host)
		require.Equal(t, ln.Addr().String(), c.RemoteAddr().String())
		far, err := ln.Accept()
		require.NoError(t, err)
		require.Equal(t, far.RemoteAddr().String(), c.LocalAddr().String())
		require.NoError(t, c.Close())
		require.NoError(t, far.Close())
	}
}

// TestDialGivenUp ends the caller's context while the sandbox connects: a listener whose queue is full does not answer.
func TestDialGivenUp(t *testing.T) {
	p := start(t, nil)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { _ = syscall.Close(fd) }()
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(fd, 0))
	sa, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	addr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*syscall.SockaddrInet4).Port}).String()
	for range 2 { // fills the queue
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			break
		}
		defer func() { _ = c.Close() }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = p.DialContext(ctx, "tcp", addr)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout(), err)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	why := errors.New("the user changed his mind")
	again, end := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { end(why) })
	_, err = p.DialContext(again, "tcp", addr)
	require.ErrorIs(t, err, why)
}

// TestDialLeavesNothing opens and closes more connections than may be open at once: each must give its place back, its
// descriptors and its goroutines (which TestMain looks for).
func TestDialLeavesNothing(t *testing.T) {
	p := start(t, nil)
	ln := listen(t)
	var serve sync.WaitGroup
	serve.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serve.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	before := -1
	for i := range 600 {
		if i == 50 {
			before = descriptors(t)
		}
		c, err := p.DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err, "connection %d", i)
		switch i % 3 {
		case 0: // closed at once
		case 1:
			_, err = c.Write([]byte("x"))
			require.NoError(t, err)
		case 2:
			_, err = c.Write([]byte("x"))
			require.NoError(t, err)
			require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
			b, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "x", string(b))
		}
		require.NoError(t, c.Close())
		require.NoError(t, c.Close(), "twice is no error")
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, c.SetDeadline(time.Time{}), net.ErrClosed)
	}
	require.Eventually(t, func() bool { return descriptors(t) <= before+5 }, time.Minute, 10*time.Millisecond,
		"%d descriptors before", before)
	require.NoError(t, ln.Close())
	serve.Wait()
}

// TestDialBound opens as many connections as a worker takes.
func TestDialBound(t *testing.T) {
	p := start(t, nil)
	ln := listen(t)
	for range 512 {
		c, err := p.DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		far, err := ln.Accept()
		require.NoError(t, err)
		defer func() { _ = far.Close() }()
	}
	_, err := p.DialContext(t.Context(), "tcp", ln.Addr().String())
	require.ErrorIs(t, err, harnesslib.ErrBusy)
	require.ErrorContains(t, err, "bound is 512")
	_, err = p.ScriptCommand("true").Output(t.Context())
	require.NoError(t, err, "there is room for all else")
}

// TestDialHTTP has an http.Client speak to a server in the sandbox.
func TestDialHTTP(t *testing.T) {
	p := start(t, nil)
	var conns sync.Map
	aborted := make(chan error, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conns.Store(r.RemoteAddr, true)
		switch r.URL.Path {
		case "/echo":
			body, err := io.ReadAll(r.Body)
			if err == nil {
				_, _ = w.Write(body)
			}
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
			<-r.Context().Done()
			aborted <- r.Context().Err()
		case "/refuse":
			w.WriteHeader(http.StatusRequestEntityTooLarge) // and closes, with most of the body unread
		default:
			_, _ = io.WriteString(w, r.URL.Path)
		}
	}))
	server.Start()
	defer server.Close()
	transport := &http.Transport{DialContext: p.DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(ctx context.Context, path string, body io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, body)
		require.NoError(t, err)
		return client.Do(req)
	}
	for range 100 {
		resp, err := get(t.Context(), "/hello", nil)
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "/hello", string(b))
	}
	n := 0
	conns.Range(func(any, any) bool { n++; return true })
	require.Equal(t, 1, n, "connections are kept alive")

	data := make([]byte, 20<<20)
	_, _ = rand.Read(data)
	resp, err := get(t.Context(), "/echo", bytes.NewReader(data))
	require.NoError(t, err)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.True(t, bytes.Equal(data, got), "%d bytes came back", len(got))

	resp, err = get(t.Context(), "/refuse", bytes.NewReader(data))
	require.NoError(t, err, "the answer comes although the server does not take the body")
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)

	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	resp, err = get(ctx, "/endless", nil)
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, bufio.NewReader(resp.Body), 5<<20)
	require.NoError(t, err)
	cancel(why)
	_, err = io.Copy(io.Discard, resp.Body)
	require.Error(t, err)
	require.NoError(t, resp.Body.Close())
	require.ErrorIs(t, <-aborted, context.Canceled, "the server sees that its client has gone")
}
