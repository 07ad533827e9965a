package auth_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
)

// TestServerConfigWithTLS runs a server with TLS on all its listeners, and reaches each.
func TestServerConfigWithTLS(t *testing.T) {
	cert, key, ca := bustest.Certificate(t, "hub.test", "127.0.0.1")
	o := &bustest.Operator{Keys: bustest.NewKeys(t)}
	o.File = o.WriteConfig(t, auth.ServerConfig{
		Listen: "127.0.0.1:-1", WebSocket: "127.0.0.1:-1", Leaf: "127.0.0.1:-1", Monitor: "127.0.0.1:-1",
		StoreDir: t.TempDir(), TLSCert: cert, TLSKey: key,
	})
	o.Server = bustest.StartServer(t, o.File)
	cred := o.Issue(t, sandbox("box1"), 0)
	for _, u := range []string{o.URL(), strings.Replace(o.URL(), "tls://", "nats://", 1), o.WebSocketURL()} {
		c, err := bus.Connect(t.Context(), bus.Config{URL: u, Credential: cred, CA: ca, ServerName: "hub.test", ConnectTimeout: time.Minute})
		require.NoError(t, err, u)
		require.NoError(t, c.Flush(t.Context()))
		c.Close()
		_, err = bus.Connect(t.Context(), bus.Config{URL: u, Credential: cred, ServerName: "hub.test", ConnectTimeout: time.Minute})
		require.ErrorContains(t, err, "authority", u)
	}
	// A refusal is told apart behind TLS too: the server says its name before.
	foreign, err := bustest.NewKeys(t).Issue(auth.DefaultTenant, sandbox("box1"), 0)
	require.NoError(t, err)
	_, err = bus.Connect(t.Context(), bus.Config{URL: o.URL(), Credential: foreign, CA: ca, ServerName: "hub.test", ConnectTimeout: time.Minute})
	require.ErrorIs(t, err, bus.ErrForeign)

	// A site checks the hub's certificate. The one that does not know the authority is tried first; when the other has come
	// in, it is not in.
	_, _, otherCA := bustest.Certificate(t, "hub.test", "127.0.0.1")
	wrong := leafWithTLS(t, o, otherCA)
	right := leafWithTLS(t, o, ca)
	require.Eventually(t, func() bool { return right.Leafs() == 1 }, patience, 10*time.Millisecond)
	require.Equal(t, 1, o.Leafs())
	require.Zero(t, wrong.Leafs())
}

func leafWithTLS(t *testing.T, o *bustest.Operator, ca string) *hub.Server {
	t.Helper()
	leaf, err := o.LeafURL()
	require.NoError(t, err)
	dir := t.TempDir()
	creds, file := filepath.Join(dir, "site.creds"), filepath.Join(dir, "site.conf")
	site := o.Issue(t, bus.Identity{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "s1"}, 0)
	require.NoError(t, site.WriteFile(creds, 0o600))
	remote := `url: "` + strings.Replace(leaf, "nats-leaf://", "tls://", 1) + `", credentials: "` + creds + `", tls { ca_file: "` + ca + `" }`
	require.NoError(t, os.WriteFile(file, []byte("listen: \"127.0.0.1:-1\"\nleafnodes { remotes: [ { "+remote+" } ] }\n"), 0o600))
	return bustest.StartServer(t, file)
}

func TestServerConfigRefuses(t *testing.T) {
	for want, cfg := range map[string]auth.ServerConfig{
		"listen 0.0.0.0:4222: off loopback":  {Listen: "0.0.0.0:4222"},
		"websocket 0.0.0.0:443: off":         {WebSocket: "0.0.0.0:443"},
		"leaf [::]:7422: off":                {Leaf: "[::]:7422"},
		"monitor 0.0.0.0:8222: off":          {Monitor: "0.0.0.0:8222"},
		`server name "a b"`:                  {Name: "a b"},
		"want both a certificate":            {TLSCert: "x"},
		"cannot hold quotes":                 {StoreDir: `a"b`},
		`listen "4222": want HOST:PORT`:      {Listen: "4222"},
		`listen "127.0.0.1:x": port`:         {Listen: "127.0.0.1:x"},
		`leaf "hub:1": host: want an IP`:     {Leaf: "hub:1"},
		`websocket "127.0.0.1:70000": port:`: {WebSocket: "127.0.0.1:70000"},
	} {
		require.ErrorContains(t, cfg.Check(), want)
	}
	cfg := auth.ServerConfig{Listen: "0.0.0.0:4222", InsecureNoTLS: true}
	require.NoError(t, cfg.Check())
}
