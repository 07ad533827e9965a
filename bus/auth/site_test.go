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
)

// TestSiteConfig runs a site's server by its own configuration, over each way to the hub: a sandbox there is seen by the hub,
// and who has no credential of the operator's is not let in.
func TestSiteConfig(t *testing.T) {
	cert, key, ca := bustest.Certificate(t, "hub.test", "127.0.0.1")
	for name, secure := range map[string]bool{"tls": true, "wss": true, "nats-leaf": false, "ws": false} {
		t.Run(name, func(t *testing.T) {
			cfg := auth.ServerConfig{Listen: "127.0.0.1:-1", WebSocket: "127.0.0.1:-1", Leaf: "127.0.0.1:-1", StoreDir: t.TempDir()}
			site := auth.SiteConfig{Name: "s1", Listen: "127.0.0.1:-1", Credentials: filepath.Join(t.TempDir(), "site.creds")}
			if secure {
				cfg.TLSCert, cfg.TLSKey = cert, key
				site.TLSCert, site.TLSKey, site.CA = cert, key, ca
			}
			o := &bustest.Operator{Keys: bustest.NewKeys(t)}
			o.File = o.WriteConfig(t, cfg)
			o.Server = bustest.StartServer(t, o.File)
			at, err := o.LeafURL()
			require.NoError(t, err)
			if strings.HasPrefix(name, "ws") {
				at = o.WebSocketURL()
			}
			_, address, _ := strings.Cut(at, "://")
			site.Hubs = []string{name + "://" + address}
			require.NoError(t, o.Issue(t, bus.Identity{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "s1"}, 0).WriteFile(site.Credentials, 0o600))
			var text strings.Builder
			require.NoError(t, o.Keys.WriteSiteConfig(&text, auth.DefaultTenant, site))
			file := filepath.Join(t.TempDir(), "site.conf")
			require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
			srv := bustest.StartServer(t, file)
			require.Eventually(t, func() bool { return o.Leafs() == 1 && srv.Leafs() == 1 }, patience, 10*time.Millisecond)

			connect := func(keys *auth.Keys) error {
				cred, err := keys.Issue(auth.DefaultTenant, sandbox("box1"), 0)
				require.NoError(t, err)
				to := bus.Config{URL: srv.URL(), Credential: cred, ConnectTimeout: time.Minute}
				if secure {
					to.CA, to.ServerName = ca, "hub.test"
				}
				c, err := bus.Connect(t.Context(), to)
				if err == nil {
					c.Close()
				}
				return err
			}
			require.NoError(t, connect(o.Keys))
			require.ErrorIs(t, connect(bustest.NewKeys(t)), bus.ErrForeign)
		})
	}
}

func TestSiteConfigRefuses(t *testing.T) {
	good := auth.SiteConfig{Hubs: []string{"tls://hub:7422"}, Credentials: "c"}
	require.NoError(t, good.Check())
	require.Equal(t, "127.0.0.1:4222", good.Listen)
	for want, change := range map[string]func(*auth.SiteConfig){
		"want at least one URL":                 func(c *auth.SiteConfig) { c.Hubs = nil },
		`hub "hub:7422": want SCHEME`:           func(c *auth.SiteConfig) { c.Hubs = []string{"hub:7422"} },
		`hub "tls://hub": want SCHEME`:          func(c *auth.SiteConfig) { c.Hubs = []string{"tls://hub"} },
		`hub "http://hub:80": scheme: want tls`: func(c *auth.SiteConfig) { c.Hubs = []string{"http://hub:80"} },
		`hub "ws://hub:80": off loopback`:       func(c *auth.SiteConfig) { c.Hubs = []string{"ws://hub:80"} },
		`hub "nats-leaf://10.0.0.1:7422": off`:  func(c *auth.SiteConfig) { c.Hubs = []string{"nats-leaf://10.0.0.1:7422"} },
		"credential: want the file":             func(c *auth.SiteConfig) { c.Credentials = "" },
		"cannot hold quotes":                    func(c *auth.SiteConfig) { c.CA = `a"b` },
		"listen 0.0.0.0:4222: off loopback":     func(c *auth.SiteConfig) { c.Listen = "0.0.0.0:4222" },
		"want both a certificate":               func(c *auth.SiteConfig) { c.TLSCert = "x" },
		`server name "a b"`:                     func(c *auth.SiteConfig) { c.Name = "a b" },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Check(), want)
	}
	c := auth.SiteConfig{Hubs: []string{"ws://hub:80"}, Credentials: "c", Listen: "0.0.0.0:4222", InsecureNoTLS: true}
	require.NoError(t, c.Check())
}

// TestAccountsOnly includes the accounts in a configuration of somebody else's.
func TestAccountsOnly(t *testing.T) {
	o := &bustest.Operator{Keys: bustest.NewKeys(t)}
	dir := t.TempDir()
	var text strings.Builder
	require.NoError(t, o.Keys.WriteAccounts(&text, auth.ServerConfig{StoreDir: filepath.Join(dir, "data")}))
	require.NotContains(t, text.String(), "listen")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "auth.conf"), []byte(text.String()), 0o600))
	o.File = filepath.Join(dir, "hub.conf")
	require.NoError(t, os.WriteFile(o.File, []byte("listen: \"127.0.0.1:-1\"\ninclude ./auth.conf\n"), 0o600))
	o.Server = bustest.StartServer(t, o.File)
	o.Connect(t, o.Issue(t, sandbox("box1"), 0)).Close()
	foreign, err := bustest.NewKeys(t).Issue(auth.DefaultTenant, sandbox("box1"), 0)
	require.NoError(t, err)
	_, err = bus.Connect(t.Context(), bus.Config{URL: o.URL(), Credential: foreign, ConnectTimeout: time.Minute})
	require.Error(t, err)
}

func TestClusterSecretRefuses(t *testing.T) {
	for want, cfg := range map[string]auth.ServerConfig{
		"16 to 128": {ClusterSecret: "short", Cluster: "127.0.0.1:-1", Routes: []string{"127.0.0.1:1"}},
		"for a clu": {ClusterSecret: strings.Repeat("a", 16)},
		"and digit": {ClusterSecret: strings.Repeat("a", 16) + `"`, Cluster: "127.0.0.1:-1", Routes: []string{"127.0.0.1:1"}},
	} {
		require.ErrorContains(t, cfg.Check(), want)
	}
}
