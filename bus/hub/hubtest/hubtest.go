// Package hubtest gives tests a hub of several servers, each in a process of its own that can be killed. It has no
// registrar: the test starts what it needs.
package hubtest

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
)

// Cluster is a hub of several servers that ends with its test.
type Cluster struct {
	minter *bus.Minter
	swarm  string // the token of who may be everybody
	nodes  []*node
}

type node struct {
	cmd    *exec.Cmd
	client string // its URL for clients
	ended  bool
}

// Start runs a hub of n servers. The test's binary must call Main in its TestMain.
func Start(tb testing.TB, n int) *Cluster {
	tb.Helper()
	return start(tb, &Cluster{minter: bus.NewMinter(), swarm: rand.Text()}, n)
}

// Another runs a hub of one server that knows the same credentials, as this one would after a restart.
func (c *Cluster) Another(tb testing.TB) *Cluster {
	tb.Helper()
	return start(tb, &Cluster{minter: c.minter, swarm: c.swarm}, 1)
}

func start(tb testing.TB, c *Cluster, n int) *Cluster {
	tb.Helper()
	tb.Cleanup(func() {
		for i := range c.nodes {
			c.Kill(tb, i)
		}
	})
	// A server of a cluster wants a route to begin with. The first one has nobody yet: nothing listens there.
	routes := []string{"nats-route://127.0.0.1:1"}
	for i := range n {
		cfg := nodeConfig{Name: fmt.Sprintf("n%d", i), Clustered: n > 1, Dir: tb.TempDir(), Routes: routes, Key: c.minter.Key(), Swarm: c.swarm}
		if route := c.spawn(tb, cfg); i == 0 {
			routes = []string{route}
		} else {
			routes = append(routes, route)
		}
	}
	return c
}

// spawn starts a server and returns its address for other servers.
func (c *Cluster) spawn(tb testing.TB, cfg nodeConfig) (route string) {
	tb.Helper()
	env, err := json.Marshal(cfg)
	require.NoError(tb, err)
	cmd := exec.Command(os.Args[0]) //nolint:noctx,gosec // it is killed; G702: it is this binary
	cmd.Env = append(os.Environ(), nodeVar+"="+string(env))
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // its end tells the server that the test is gone
	require.NoError(tb, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	n := &node{cmd: cmd}
	c.nodes = append(c.nodes, n)
	s := bufio.NewScanner(stdout)
	require.True(tb, s.Scan(), "server %s says nothing: %v", cfg.Name, s.Err())
	client, route, _ := strings.Cut(s.Text(), " ")
	n.client = client
	return route
}

// Kill kills a server, without a word to anybody.
func (c *Cluster) Kill(tb testing.TB, i int) {
	tb.Helper()
	n := c.nodes[i]
	if n.ended {
		return
	}
	n.ended = true
	require.NoError(tb, n.cmd.Process.Kill())
	_ = n.cmd.Wait() // killed
}

// StartRegistrarProcess runs a registrar in a process of its own, at the first server; it counts as one more server for
// Kill and Process. It returns its number.
func (c *Cluster) StartRegistrarProcess(tb testing.TB, name string) int {
	tb.Helper()
	c.spawn(tb, nodeConfig{Name: name, Key: c.minter.Key(), Swarm: c.swarm, Registrar: c.URL(0)})
	return len(c.nodes) - 1
}

// Process is the process of a server.
func (c *Cluster) Process(i int) *os.Process { return c.nodes[i].cmd.Process }

// URL is the address of one server; clients learn of the others from it.
func (c *Cluster) URL(i int) string { return c.nodes[i].client }

// Credential makes a credential for the hub.
func (c *Cluster) Credential(tb testing.TB, role bus.Role, name string) bus.Credential {
	tb.Helper()
	cred, err := c.minter.Issue(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name})
	require.NoError(tb, err)
	return cred
}

// Connect connects an identity to a server for the length of the test.
func (c *Cluster) Connect(tb testing.TB, i int, role bus.Role, name string) *bus.Conn {
	tb.Helper()
	conn, err := bus.Connect(tb.Context(), bus.Config{URL: c.URL(i), Credential: c.Credential(tb, role, name), Logger: bustest.Logger(tb)})
	require.NoError(tb, err)
	tb.Cleanup(conn.Close)
	return conn
}

// System connects to the system account for the length of the test.
func (c *Cluster) System(tb testing.TB, i int) *bus.System {
	tb.Helper()
	s, err := bus.ConnectSystem(tb.Context(), bus.Config{
		URL: c.URL(i), Credential: c.Credential(tb, bus.RoleSystem, "observer"), Logger: bustest.Logger(tb),
	})
	require.NoError(tb, err)
	tb.Cleanup(s.Close)
	return s
}

// Registrar runs a registrar at a server; stop ends it, at the end of the test at the latest.
func (c *Cluster) Registrar(tb testing.TB, i int, name string, cfg bus.RegistrarConfig) (stop func()) {
	tb.Helper()
	conn := c.Connect(tb, i, bus.RoleRegistrar, name)
	cfg.Logger = bustest.Logger(tb)
	r, err := bus.StartRegistrar(tb.Context(), conn, cfg)
	require.NoError(tb, err)
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			r.Stop()
		}
	}
	tb.Cleanup(stop)
	return stop
}
