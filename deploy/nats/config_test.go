package nats_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/internal/testenv"
)

var update = flag.Bool("update", false, "write the configurations anew")

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	patience = time.Minute
	cert     = "/etc/sandbus/hub.pem"
	certKey  = "/etc/sandbus/hub.key"
	ca       = "/etc/sandbus/ca.pem"
	siteCred = "/etc/sandbus/site.creds"
	secret   = "REPLACEwith32lettersAndDigits0000"
)

// example is one of the files here: what it is printed by, and how.
type example struct {
	file    string
	command string // the verb and flags of sandbus that print it
	hub     *auth.ServerConfig
	site    *auth.SiteConfig
}

func examples() []example {
	out := []example{
		{
			"single.conf", "server-config --ws 127.0.0.1:8080 --leaf 127.0.0.1:7422 --store-dir /var/lib/nats",
			&auth.ServerConfig{WebSocket: "127.0.0.1:8080", Leaf: "127.0.0.1:7422", StoreDir: "/var/lib/nats"}, nil,
		},
		{
			"single-tls.conf", "server-config --listen 0.0.0.0:4222 --ws 0.0.0.0:443 --leaf 0.0.0.0:7422 --monitor 127.0.0.1:8222 --tls-cert " + cert +
				" --tls-key " + certKey + " --store-dir /var/lib/nats",
			&auth.ServerConfig{
				Listen: "0.0.0.0:4222", WebSocket: "0.0.0.0:443", Leaf: "0.0.0.0:7422", Monitor: "127.0.0.1:8222",
				TLSCert: cert, TLSKey: certKey, StoreDir: "/var/lib/nats",
			}, nil,
		},
	}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		routes := []string{"n1:6222", "n2:6222", "n3:6222"}
		out = append(out,
			example{
				"cluster-" + name + ".conf", "server-config --name " + name + " --listen 0.0.0.0:4222 --cluster 0.0.0.0:6222 --routes " +
					strings.Join(routes, ",") + " --cluster-secret secret --store-dir /var/lib/nats --insecure-no-tls",
				&auth.ServerConfig{
					Name: name, Listen: "0.0.0.0:4222", Cluster: "0.0.0.0:6222", Routes: routes, ClusterSecret: secret,
					StoreDir: "/var/lib/nats", InsecureNoTLS: true,
				}, nil,
			},
			example{
				"cluster-" + name + "-tls.conf", "server-config --name " + name + " --listen 0.0.0.0:4222 --ws 0.0.0.0:443 --cluster 0.0.0.0:6222 --routes " +
					strings.Join(routes, ",") + " --tls-cert " + cert + " --tls-key " + certKey + " --tls-ca " + ca + " --store-dir /var/lib/nats",
				&auth.ServerConfig{
					Name: name, Listen: "0.0.0.0:4222", WebSocket: "0.0.0.0:443", Cluster: "0.0.0.0:6222", Routes: routes,
					TLSCert: cert, TLSKey: certKey, CA: ca, StoreDir: "/var/lib/nats",
				}, nil,
			})
	}
	for _, s := range []struct{ file, url, flags, ca string }{
		{"site.conf", "nats-leaf://hub:7422", " --insecure-no-tls", ""},
		{"site-tls.conf", "tls://hub:7422", " --tls-ca " + ca, ca},
		{"site-ws.conf", "ws://hub:8080", " --insecure-no-tls", ""},
		{"site-wss.conf", "wss://hub:443", " --tls-ca " + ca, ca},
	} {
		out = append(out, example{
			s.file, "site-config --leaf " + s.url + " --site-creds " + siteCred + s.flags, nil,
			&auth.SiteConfig{Hubs: []string{s.url}, Credentials: siteCred, CA: s.ca, InsecureNoTLS: s.ca == ""},
		})
	}
	return out
}

// text is the file, made of keys, and what stands in it for what is of these keys.
func (e example) text(t *testing.T, keys *auth.Keys) (text string, placeholders *strings.Replacer) {
	t.Helper()
	var b strings.Builder
	if e.hub != nil {
		require.NoError(t, keys.WriteServerConfig(&b, *e.hub))
	} else {
		require.NoError(t, keys.WriteSiteConfig(&b, auth.DefaultTenant, *e.site))
	}
	found := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(b.String())
		require.NotNil(t, m, pattern)
		return m[1]
	}
	account := regexp.MustCompile(`(?m)^  (A[A-Z0-9]+): "(.*)"$`).FindAllStringSubmatch(b.String(), -1)
	require.Len(t, account, 2)
	pairs := []string{
		found(`operator: "(.*)"`), "OPERATOR_CLAIMS", account[0][2], "SYSTEM_CLAIMS", account[1][2], "TENANT_CLAIMS",
		account[0][1], "SYSTEM_ACCOUNT", account[1][1], "TENANT_ACCOUNT", bus.OperatorMark(keys.Operator()), "OPERATOR_MARK",
	}
	placed := strings.NewReplacer(pairs...).Replace(b.String())
	for i := 0; i < len(pairs); i += 2 {
		pairs[i], pairs[i+1] = pairs[i+1], pairs[i]
	}
	return "# sandbus auth " + e.command + "\n# Words in capitals stand for what is of your keys.\n" + placed, strings.NewReplacer(pairs...)
}

// TestExamples holds that the files here are what the commands print.
func TestExamples(t *testing.T) {
	keys := bustest.NewKeys(t)
	want := map[string]bool{}
	for _, e := range examples() {
		text, _ := e.text(t, keys)
		want[e.file] = true
		if *update {
			require.NoError(t, os.WriteFile(e.file, []byte(text), 0o644))
		}
		got, err := os.ReadFile(e.file)
		require.NoError(t, err)
		require.Equal(t, text, string(got), "%s: make it anew by: go test ./deploy/nats -update", e.file)
	}
	files, err := filepath.Glob("*.conf")
	require.NoError(t, err)
	for _, f := range files {
		require.True(t, want[f], "%s is of no command", f)
	}
}

// arena is the files here, with keys of the test's and addresses on its loopback.
type arena struct {
	keys          *auth.Keys
	cert, key, ca string
	dir           string
	loopback      string // three numbers of an address, with their dots
}

func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{keys: bustest.NewKeys(t), dir: t.TempDir()}
	a.loopback = fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), 1+rand.IntN(254))
	a.cert, a.key, a.ca = bustest.Certificate(t, "hub.test", "127.0.0.1", a.loopback+"1", a.loopback+"2", a.loopback+"3")
	return a
}

// node is the address of a cluster's server, whose name is in a text.
func (a *arena) node(text string) string {
	return a.loopback + regexp.MustCompile(`n([123])`).FindStringSubmatch(text + "n1")[1] + ":6222"
}

// start runs a server by a file of this directory; more are texts of it that are replaced, and by what.
func (a *arena) start(t *testing.T, file string, more ...string) *hub.Server {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var filled string
	for _, e := range examples() {
		if e.file == file {
			_, placeholders := e.text(t, a.keys)
			filled = placeholders.Replace(string(text))
		}
	}
	data := filepath.Join(a.dir, file)
	filled = strings.NewReplacer(append(more, cert, a.cert, certKey, a.key, ca, a.ca, "/var/lib/nats", data, siteCred, a.dir+"/site.creds")...).Replace(filled)
	// The cluster's port is a fixed one of an address that is nobody else's.
	filled = regexp.MustCompile(`(?s)(cluster \{.*?listen: )"[^"]*"`).ReplaceAllString(filled, `$1"`+a.node(file)+`"`)
	filled = regexp.MustCompile(`n[123]:6222`).ReplaceAllStringFunc(filled, a.node)
	filled = regexp.MustCompile(`(listen|http): "(0\.0\.0\.0|127\.0\.0\.1):\d+"`).ReplaceAllString(filled, `$1: "127.0.0.1:-1"`)
	path := filepath.Join(a.dir, "run-"+file)
	require.NoError(t, os.WriteFile(path, []byte(filled), 0o600))
	return bustest.StartServer(t, path)
}

func (a *arena) to(url string, secure bool, cred bus.Credential) bus.Config {
	cfg := bus.Config{URL: url, Credential: cred, ConnectTimeout: patience}
	if secure {
		cfg.CA, cfg.ServerName = a.ca, "hub.test"
	}
	return cfg
}

// connect says whether a sandbox is let in there, and goes.
func (a *arena) connect(t *testing.T, url string, secure bool) {
	t.Helper()
	cred, err := a.keys.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: "box1"}, 0)
	require.NoError(t, err)
	c, err := bus.Connect(t.Context(), a.to(url, secure, cred))
	require.NoError(t, err, url)
	defer c.Close()
	require.NoError(t, c.Flush(t.Context()))
}

// TestServers starts a server by each file, and has the sites find the hubs.
func TestServers(t *testing.T) {
	a := newArena(t)
	site, err := a.keys.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "site"}, 0)
	require.NoError(t, err)
	require.NoError(t, site.WriteFile(a.dir+"/site.creds", 0o600))
	for hubFile, sites := range map[string][]string{"single.conf": {"site.conf", "site-ws.conf"}, "single-tls.conf": {"site-tls.conf", "site-wss.conf"}} {
		secure := hubFile == "single-tls.conf"
		h := a.start(t, hubFile)
		a.connect(t, h.URL(), secure)
		a.connect(t, h.WebSocketURL(), secure)
		leaf, err := h.LeafURL()
		require.NoError(t, err)
		_, leaf, _ = strings.Cut(leaf, "://")
		_, ws, _ := strings.Cut(h.WebSocketURL(), "://")
		for _, f := range sites { // one after the other: a site is one server by its name
			s := a.start(t, f, "hub:7422", leaf, "hub:8080", ws, "hub:443", ws)
			require.Eventually(t, func() bool { return s.Leafs() == 1 && h.Leafs() == 1 }, patience, 10*time.Millisecond, f)
			a.connect(t, s.URL(), false)
			s.Stop()
			require.Eventually(t, func() bool { return h.Leafs() == 0 }, patience, 10*time.Millisecond, f)
		}
	}
}

// TestClusters has three servers become one hub, which keeps presence on all three.
func TestClusters(t *testing.T) {
	for name, secure := range map[string]bool{"": false, "-tls": true} {
		t.Run("cluster"+name, func(t *testing.T) {
			a := newArena(t)
			var first *hub.Server
			for i := range 3 {
				s := a.start(t, fmt.Sprintf("cluster-n%d%s.conf", i+1, name))
				if first == nil {
					first = s
				}
			}
			cred, err := a.keys.Issue(auth.DefaultTenant, bus.Identity{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: "r"}, 0)
			require.NoError(t, err)
			c, err := bus.Connect(t.Context(), a.to(first.URL(), secure, cred))
			require.NoError(t, err)
			defer c.Close()
			var last error
			require.Eventually(t, func() bool { // they choose a leader first
				r, err := bus.StartRegistrar(t.Context(), c, bus.RegistrarConfig{Replicas: 3})
				if last = err; err != nil {
					return false
				}
				r.Stop()
				return true
			}, 2*patience, time.Second)
			require.NoError(t, last)
		})
	}
}
