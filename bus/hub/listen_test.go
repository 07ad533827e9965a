package hub_test

import (
	"bufio"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
)

func harness(t *testing.T, h interface {
	Issue(id bus.Identity) (bus.Credential, error)
},
) bus.Credential {
	t.Helper()
	cred, err := h.Issue(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"})
	require.NoError(t, err)
	return cred
}

func TestListenersOffLoopbackNeedProtection(t *testing.T) {
	keys := bustest.NewKeys(t)
	for name, cfg := range map[string]hub.Config{
		"clients":              {Listen: "0.0.0.0:-1"},
		"clients, IPv6":        {Listen: "[::]:-1"},
		"clients, one address": {Listen: "192.0.2.1:4222"},
		"websocket":            {WebSocket: "0.0.0.0:-1"},
		"leafs":                {Leaf: "0.0.0.0:-1", Keys: keys},
		"with keys":            {Listen: "0.0.0.0:-1", Keys: keys},
	} {
		cfg.Dir = t.TempDir()
		_, err := hub.Start(t.Context(), cfg)
		require.ErrorIs(t, err, hub.ErrUnprotected, name)
		require.ErrorContains(t, err, "--insecure-no-auth", name)
	}
	for want, cfg := range map[string]hub.Config{
		"needs an operator's credentials": {Leaf: "127.0.0.1:-1"},
		"both a certificate and its key":  {TLSCert: "x"},
		"want HOST:PORT":                  {Listen: "4222"},
		"want an IP address":              {Listen: "hub.example:4222"},
		"want 1 to 65535":                 {WebSocket: "127.0.0.1:0"},
		"want one":                        {Keys: keys, InsecureNoAuth: true},
		"no such file":                    {TLSCert: "/nowhere/cert.pem", TLSKey: "/nowhere/key.pem"},
	} {
		cfg.Dir = t.TempDir()
		_, err := hub.Start(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
}

// TestTLSOnEachListener checks the certificate from the client's side, over TCP and over WebSocket.
func TestTLSOnEachListener(t *testing.T) {
	cert, key, ca := bustest.Certificate(t, "hub.test")
	_, _, otherCA := bustest.Certificate(t, "hub.test")
	dir := t.TempDir()
	h, err := hub.Start(t.Context(), hub.Config{
		Dir: dir, WebSocket: "127.0.0.1:-1", TLSCert: cert, TLSKey: key, TLSCA: ca, Logger: bustest.Logger(t),
	})
	require.NoError(t, err)
	defer h.Stop()
	st, issuer, found, err := hub.Find(dir)
	require.NoError(t, err)
	require.True(t, found)
	cred := harness(t, issuer)
	require.True(t, strings.HasPrefix(h.URL(), "tls://"))
	require.True(t, strings.HasPrefix(h.WebSocketURL(), "wss://"))
	for _, u := range []string{h.URL(), strings.Replace(h.URL(), "tls://", "nats://", 1), h.WebSocketURL()} {
		connect := func(ca, name string) error {
			c, err := bus.Connect(t.Context(), bus.Config{URL: u, Credential: cred, CA: ca, ServerName: name, ConnectTimeout: time.Minute})
			if err == nil {
				c.Close()
			}
			return err
		}
		require.NoError(t, connect(ca, "hub.test"), u)
		require.NoError(t, connect(st.CA, st.ServerName), u)
		require.ErrorContains(t, connect(ca, ""), "127.0.0.1", "%s: the URL's host is not in the certificate", u)
		require.ErrorContains(t, connect(ca, "evil.test"), "evil.test", u)
		require.ErrorContains(t, connect(otherCA, "hub.test"), "authority", u)
		require.ErrorContains(t, connect("", "hub.test"), "authority", u)
		require.ErrorContains(t, connect("/nowhere/ca.pem", ""), "no such file", u)
		require.ErrorContains(t, connect(key, ""), "no certificate", u)
	}
}

// TestNoSecretInTheClear refuses to show a token without TLS to a hub elsewhere.
func TestNoSecretInTheClear(t *testing.T) {
	plain := bustest.Start(t)
	cred := harness(t, issuerOf(plain))
	_, err := bus.Connect(t.Context(), bus.Config{URL: "ws://192.0.2.1:80", Credential: cred})
	require.ErrorContains(t, err, "ws is not encrypted: want wss")
	_, err = bus.Connect(t.Context(), bus.Config{URL: "ws://127.0.0.1:1", CA: caFile(t), Credential: cred})
	require.ErrorContains(t, err, "want wss")
	_, err = bus.Connect(t.Context(), bus.Config{URL: "http://127.0.0.1:1", Credential: cred})
	require.ErrorContains(t, err, `scheme "http": want nats, tls, ws or wss`)

	// A hub that has no TLS is not shown anything once TLS is wanted.
	h, err := hub.Start(t.Context(), hub.Config{})
	require.NoError(t, err)
	defer h.Stop()
	own, err := h.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"})
	require.NoError(t, err)
	_, err = bus.Connect(t.Context(), bus.Config{URL: h.URL(), CA: caFile(t), Credential: own, ConnectTimeout: 100 * time.Millisecond})
	require.ErrorContains(t, err, "secure connection not available")
}

func caFile(t *testing.T) string {
	t.Helper()
	_, _, ca := bustest.Certificate(t, "hub.test")
	return ca
}

type issuer func(bus.Identity) (bus.Credential, error)

func (f issuer) Issue(id bus.Identity) (bus.Credential, error) { return f(id) }

func issuerOf(b *bustest.Bus) issuer { return b.Credential }

// connectProxy is an HTTP proxy that knows the name hub.test and wants a password.
type connectProxy struct {
	net.Listener
	to map[string]string // host:port to address

	mu    sync.Mutex // guards the field below
	asked []string
}

func startProxy(t *testing.T, to map[string]string) *connectProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &connectProxy{Listener: l, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(nc) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return p
}

func (p *connectProxy) serve(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	r := bufio.NewReader(nc)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, req.Method+" "+req.Host)
	p.mu.Unlock()
	to := p.to[req.Host]
	switch {
	case req.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("me:secret")):
		_, _ = io.WriteString(nc, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
		return
	case to == "":
		_, _ = io.WriteString(nc, "HTTP/1.1 403 Forbidden\r\n\r\n")
		return
	}
	hub, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = hub.Close() }()
	_, _ = io.WriteString(nc, "HTTP/1.1 200 Connection established\r\n\r\n")
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(hub, r)
		_ = hub.Close()
		close(done)
	}()
	_, _ = io.Copy(nc, hub)
	_ = nc.Close()
	<-done
}

// TestThroughAProxy reaches a hub whose name only the proxy knows.
func TestThroughAProxy(t *testing.T) {
	cert, key, ca := bustest.Certificate(t, "hub.test")
	h, err := hub.Start(t.Context(), hub.Config{WebSocket: "127.0.0.1:-1", TLSCert: cert, TLSKey: key, Logger: bustest.Logger(t)})
	require.NoError(t, err)
	defer h.Stop()
	host := func(raw string) string {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		return u.Host
	}
	p := startProxy(t, map[string]string{"hub.test:443": host(h.WebSocketURL()), "hub.test:4222": host(h.URL())})
	cred := harness(t, issuer(h.Credential))
	proxy := "http://me:secret@" + p.Addr().String()
	t.Setenv("HTTPS_PROXY", proxy)
	t.Setenv("NO_PROXY", "")
	for _, u := range []string{"wss://hub.test:443", "wss://hub.test", "tls://hub.test:4222", "nats://hub.test"} {
		c, err := bus.Connect(t.Context(), bus.Config{URL: u, Credential: cred, CA: ca, ConnectTimeout: time.Minute, Logger: bustest.Logger(t)})
		require.NoError(t, err, u)
		require.NoError(t, c.Flush(t.Context()))
		c.Close()
	}
	require.Equal(t, []string{"CONNECT hub.test:443", "CONNECT hub.test:443", "CONNECT hub.test:4222", "CONNECT hub.test:4222"}, p.asked)

	_, err = bus.Connect(t.Context(), bus.Config{URL: "wss://other.test", Credential: cred, CA: ca, ConnectTimeout: 100 * time.Millisecond})
	require.ErrorContains(t, err, "CONNECT other.test:443: 403 Forbidden")
	require.NotContains(t, err.Error(), "secret")
	t.Setenv("HTTPS_PROXY", "http://"+p.Addr().String())
	_, err = bus.Connect(t.Context(), bus.Config{URL: "wss://hub.test", Credential: cred, CA: ca, ConnectTimeout: 100 * time.Millisecond})
	require.ErrorContains(t, err, "407")
	t.Setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
	_, err = bus.Connect(t.Context(), bus.Config{URL: "wss://hub.test", Credential: cred, CA: ca, ConnectTimeout: 100 * time.Millisecond})
	require.ErrorContains(t, err, "want the scheme http or https")

	// This machine's own addresses are not the proxy's business.
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	c, err := bus.Connect(t.Context(), bus.Config{URL: h.URL(), Credential: cred, CA: ca, ServerName: "hub.test", ConnectTimeout: time.Minute})
	require.NoError(t, err)
	c.Close()
}

// TestInsecureHubBelievesEverybody is what its name says, and a hub that does not have that name does not.
func TestInsecureHubBelievesEverybody(t *testing.T) {
	anonymous, err := bus.Anonymous(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"})
	require.NoError(t, err)
	h, err := hub.Start(t.Context(), hub.Config{InsecureNoAuth: true})
	require.NoError(t, err)
	defer h.Stop()
	c, err := bus.Connect(t.Context(), bus.Config{URL: h.URL(), Credential: anonymous, ConnectTimeout: time.Minute})
	require.NoError(t, err)
	c.Close()

	safe, err := hub.Start(t.Context(), hub.Config{})
	require.NoError(t, err)
	defer safe.Stop()
	_, err = bus.Connect(t.Context(), bus.Config{URL: safe.URL(), Credential: anonymous, ConnectTimeout: time.Minute})
	require.ErrorIs(t, err, bus.ErrForeign)
}

// TestHubWithKeys is an embedded hub that trusts an operator: what programs of this machine find works there, and so
// does revoking.
func TestHubWithKeys(t *testing.T) {
	keys := bustest.NewKeys(t)
	dir := t.TempDir()
	h, err := hub.Start(t.Context(), hub.Config{Dir: dir, Keys: keys, Leaf: "127.0.0.1:-1", WebSocket: "127.0.0.1:-1", Logger: bustest.Logger(t)})
	require.NoError(t, err)
	defer h.Stop()
	leaf, err := h.LeafURL()
	require.NoError(t, err)
	require.Contains(t, leaf, "nats-leaf://127.0.0.1:")
	st, issuer, found, err := hub.Find(dir)
	require.NoError(t, err)
	require.True(t, found)
	require.Empty(t, st.Key)
	cred := harness(t, issuer)
	closed := make(chan error, 1)
	c, err := bus.Connect(t.Context(), bus.Config{
		URL: st.URL, Credential: cred, ConnectTimeout: time.Minute, OnClosed: func(err error) { closed <- err },
	})
	require.NoError(t, err)
	defer c.Close()
	d, err := bus.OpenDirectory(t.Context(), c)
	require.NoError(t, err)
	_, err = d.List(t.Context())
	require.NoError(t, err)

	admin, err := keys.Admin()
	require.NoError(t, err)
	conn, err := bus.Connect(t.Context(), bus.Config{URL: st.URL, Credential: admin, ConnectTimeout: time.Minute})
	require.NoError(t, err)
	defer conn.Close()
	details, ok := cred.Details()
	require.True(t, ok)
	require.NoError(t, keys.Revoke(t.Context(), conn, "main", details.Key))
	require.ErrorIs(t, <-closed, bus.ErrRevoked)
}
