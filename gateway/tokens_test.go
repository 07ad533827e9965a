package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// TestTokens holds who is let in, and that everybody else is told so and nothing runs.
func TestTokens(t *testing.T) {
	r := startRig(t)
	g := r.gateway(nil)
	try := func(token string) codes.Code {
		c := dial(t, g.addr, token)
		o := c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 1, Command: "echo x >>ran"})
		_, err := c.exec.Abort(c.ctx(t.Context()), &sandboxv1.AbortRequest{SandboxId: "box", ReqId: 1})
		require.Equal(t, status.Code(o.err), status.Code(err), "an abort needs the same")
		return status.Code(o.err)
	}
	for token, want := range map[string]codes.Code{
		"": codes.Unauthenticated, "wrong-token-0123456789": codes.Unauthenticated, harnessToken + "x": codes.Unauthenticated,
		workerToken: codes.PermissionDenied, otherToken: codes.PermissionDenied,
	} {
		require.Equal(t, want, try(token), token)
	}
	require.Zero(t, r.lines("ran"))
	for token, want := range map[string]codes.Code{
		"": codes.Unauthenticated, "wrong-token-0123456789": codes.Unauthenticated, harnessToken: codes.PermissionDenied,
	} {
		err := (&plainrelay.Worker{Relay: g.addr, Token: token, Sandbox: "plain"}).Run(t.Context())
		require.Equal(t, want, status.Code(err), "%v: the reason reaches the worker", err)
	}
	err := (&plainrelay.Worker{Relay: g.addr, Token: workerToken, Sandbox: "box"}).Run(t.Context())
	require.Equal(t, codes.PermissionDenied, status.Code(err))

	// The file counts as it is now; one that cannot be read lets in nobody.
	rewrite := func(text string, mode os.FileMode) {
		next := r.tokens + ".next"
		require.NoError(t, os.WriteFile(next, []byte(text), mode))
		require.NoError(t, os.Rename(next, r.tokens))
	}
	require.Equal(t, codes.OK, try(harnessToken))
	rewrite("harness ci new-token-0123456789\n", 0o600)
	require.Equal(t, codes.Unauthenticated, try(harnessToken))
	require.Equal(t, codes.OK, try("new-token-0123456789"))
	rewrite("rubbish, and more of it\n", 0o600)
	require.Equal(t, codes.Unauthenticated, try("new-token-0123456789"))
	rewrite(tokens, 0o644)
	require.Equal(t, codes.Unauthenticated, try(harnessToken))
	rewrite(tokens+"\n", 0o600)
	require.Equal(t, codes.OK, try(harnessToken))
	require.NoError(t, os.Remove(r.tokens))
	require.Equal(t, codes.Unauthenticated, try(harnessToken))
}

func TestTokenFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "no token",
		"# only a comment\n":                "no token",
		"harness ci\n":                      "line 1",
		"\nsandbox box secret-0123456789 x": "line 2",
		"robot ci secret-0123456789":        `want "sandbox ID TOKEN"`,
		"harness Ci secret-0123456789":      "harness id",
		"sandbox * secret-0123456789":       "sandbox id",
		"harness ci secret-0123456789 a *":  "sandbox id",
		"harness ci short":                  "has 5 bytes: want at least 16",
		"harness a secret-0123456789\nharness b secret-0123456789": "line 2: the token of a again",
		"sandbox a secret-0123456789\nharness b secret-0123456789": "line 2: the token of a again",
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := gateway.OpenTokens(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "secret")
	}
	path := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(path, []byte("sandbox a secret-0123456789\nsandbox b secret-0123456789\n"), 0o600))
	_, err := gateway.OpenTokens(path)
	require.NoError(t, err, "sandboxes may share one")
	require.NoError(t, os.Chmod(path, 0o640))
	_, err = gateway.OpenTokens(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = gateway.OpenTokens(path)
	require.ErrorContains(t, err, "0600")
	_, err = gateway.OpenTokens(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = gateway.New(gateway.Config{})
	require.ErrorContains(t, err, "no tokens")
}

func FuzzTokens(f *testing.F) {
	f.Add([]byte(tokens))
	f.Add([]byte("harness a b\n"))
	path := filepath.Join(f.TempDir(), "tokens")
	f.Fuzz(func(t *testing.T, b []byte) {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		list, err := gateway.OpenTokens(path)
		require.NotNil(t, list)
		if err == nil {
			require.NotEmpty(t, b)
		}
	})
}

// TestTLS holds that a listener off the loopback needs it, and that it works.
func TestTLS(t *testing.T) {
	r := startRig(t)
	list, err := gateway.OpenTokens(r.tokens)
	require.NoError(t, err)
	g, err := gateway.New(gateway.Config{Tokens: list})
	require.NoError(t, err)
	err = g.Serve(t.Context(), anywhere{})
	require.ErrorIs(t, err, gateway.ErrNoTLS)
	require.ErrorContains(t, err, "192.0.2.1:443")
	_, err = relay.New(relay.Config{Addr: "192.0.2.1:443", Sandbox: "box", Token: harnessToken})
	require.ErrorContains(t, err, "without TLS")

	cert, pool := certificate(t)
	addr := r.gateway(func(c *gateway.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	}).addr
	tr, err := relay.New(relay.Config{Addr: addr, Sandbox: "box", Token: harnessToken, TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}})
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close()) }()
	res, err := tr.Exec(t.Context(), transport.Command{Script: "echo hi"})
	require.NoError(t, err)
	require.Equal(t, "hi\n", string(res.Stdout))
	stranger, err := relay.New(relay.Config{Addr: addr, Sandbox: "box", Token: harnessToken, TLS: &tls.Config{MinVersion: tls.VersionTLS13}})
	require.NoError(t, err)
	defer func() { require.NoError(t, stranger.Close()) }()
	_, err = stranger.Exec(t.Context(), transport.Command{Script: "echo hi"})
	require.ErrorIs(t, err, transport.ErrUnreachable)
	require.ErrorContains(t, err, "certificate signed by unknown authority")
}

// anywhere is a listener off the loopback.
type anywhere struct{ net.Listener }

func (anywhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443} }
func (anywhere) Close() error   { return nil }

func certificate(tb testing.TB) (tls.Certificate, *x509.CertPool) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(tb, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(tb, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
