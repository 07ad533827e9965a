package bustest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/hub"
)

// Operator is a real nats-server, started from the file that "sandbus auth server-config" prints, with the keys that it
// trusts. It ends with its test.
type Operator struct {
	*hub.Server
	Keys *auth.Keys
	File string // the configuration
}

// StartOperator makes keys and runs a server that trusts them, on loopback with free ports, with a registrar.
func StartOperator(tb testing.TB) *Operator {
	tb.Helper()
	return StartOperatorOf(tb, NewKeys(tb))
}

// StartOperatorOf is StartOperator with keys that are there.
func StartOperatorOf(tb testing.TB, keys *auth.Keys) *Operator {
	tb.Helper()
	o := &Operator{Keys: keys}
	o.File = o.WriteConfig(tb, auth.ServerConfig{
		Listen: "127.0.0.1:-1", WebSocket: "127.0.0.1:-1", Leaf: "127.0.0.1:-1", StoreDir: tb.TempDir(),
	})
	o.Server = StartServer(tb, o.File)
	o.StartRegistrar(tb)
	return o
}

// NewKeys makes keys in a directory of the test.
func NewKeys(tb testing.TB) *auth.Keys {
	tb.Helper()
	keys, err := auth.Init(filepath.Join(tb.TempDir(), "keys"), "", auth.DefaultTenant)
	require.NoError(tb, err)
	return keys
}

// WriteConfig writes a server's configuration to a file of the test.
func (o *Operator) WriteConfig(tb testing.TB, cfg auth.ServerConfig) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "hub.conf")
	f, err := os.Create(path)
	require.NoError(tb, err)
	require.NoError(tb, o.Keys.WriteServerConfig(f, cfg))
	require.NoError(tb, f.Close())
	return path
}

// StartServer runs a nats-server as a file says.
func StartServer(tb testing.TB, file string) *hub.Server {
	tb.Helper()
	srv, err := hub.StartServer(file, Logger(tb))
	require.NoError(tb, err)
	tb.Cleanup(srv.Stop)
	return srv
}

// StartRegistrar keeps presence at the hub.
func (o *Operator) StartRegistrar(tb testing.TB) {
	tb.Helper()
	conn := o.Connect(tb, o.Issue(tb, bus.Identity{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: "test"}, 0))
	r, err := bus.StartRegistrar(tb.Context(), conn, bus.RegistrarConfig{Logger: Logger(tb)})
	require.NoError(tb, err)
	tb.Cleanup(r.Stop)
}

// Issue makes a credential; ttl zero means one without end.
func (o *Operator) Issue(tb testing.TB, id bus.Identity, ttl time.Duration) bus.Credential {
	tb.Helper()
	cred, err := o.Keys.Issue(auth.DefaultTenant, id, ttl)
	require.NoError(tb, err)
	return cred
}

// Config is what a client with a credential needs to connect.
func (o *Operator) Config(tb testing.TB, cred bus.Credential) bus.Config {
	tb.Helper()
	return bus.Config{URL: o.URL(), Credential: cred, ConnectTimeout: time.Minute, Logger: Logger(tb)}
}

// Connect connects with a credential for the length of the test.
func (o *Operator) Connect(tb testing.TB, cred bus.Credential) *bus.Conn {
	tb.Helper()
	c, err := bus.Connect(tb.Context(), o.Config(tb, cred))
	require.NoError(tb, err)
	tb.Cleanup(c.Close)
	return c
}

// Admin connects somebody who may change accounts at the hub.
func (o *Operator) Admin(tb testing.TB) *bus.Conn {
	tb.Helper()
	cred, err := o.Keys.Admin()
	require.NoError(tb, err)
	return o.Connect(tb, cred)
}
