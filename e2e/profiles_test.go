package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
)

// TestLeaf has a site that reaches the hub by its own server only.
func TestLeaf(t *testing.T) {
	p := composed(t)
	p.compose(t, "--profile", "leaf", "up", "-d", "registrar", "sitebox")
	d := p.desk(t, "harness")
	d.live(t, "--zone", "site", "--sandbox", "sitebox")
	d.work(t, "--sandbox", "sitebox", "--zone", "site")

	// No other route: not to any address of the hub's, not by its name, and not through the site's server at its ports.
	box, hub, site := p.id(t, "sitebox"), addresses(t, p.id(t, "hub")), addresses(t, p.id(t, "site"))
	open := site[p.name+"_site"] + "/4222"
	closed := []string{site[p.name+"_uplink"] + "/4222"} // the site's server on its way out
	for _, port := range []string{"4222", "7422", "8080"} {
		closed = append(closed, "hub/"+port)
		for _, address := range hub {
			closed = append(closed, address+"/"+port)
		}
	}
	script := `for a; do { timeout 3 bash -c "exec 3<>/dev/tcp/$a" 2>/dev/null && echo $a; } & done; wait`
	reached := must(t, "docker", append([]string{"exec", box, "bash", "-c", script, "bash", open}, closed...)...)
	require.Equal(t, open, reached, "the sandbox reaches the site's server, and none of %s", closed)
	require.Equal(t, []string{p.name + "_site"}, keys(addresses(t, box)))

	// It is the leaf connection that carries it: without the site's server nothing is reached, and with it again all.
	p.compose(t, "stop", "-t", "20", "site")
	require.NotZero(t, d.sandbus(t, "exec", "--zone", "site", "--sandbox", "sitebox", "--timeout", "5s", "--", "true").code)
	p.compose(t, "start", "site")
	d.live(t, "--zone", "site", "--sandbox", "sitebox")
}

func keys(m map[string]string) []string {
	out := []string{}
	for k := range m {
		out = append(out, k)
	}
	return out
}

// TestWebSocket has a worker that speaks WebSocket only; the hub says of its connections what they are.
func TestWebSocket(t *testing.T) {
	p := composed(t)
	p.compose(t, "--profile", "ws", "up", "-d", "registrar", "wsbox")
	d := p.desk(t, "harness")
	d.live(t, "--sandbox", "wsbox")
	d.work(t, "--sandbox", "wsbox")
	hub, box := p.id(t, "hub"), addresses(t, p.id(t, "wsbox"))
	connz := must(t, "docker", "exec", hub, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/connz?subs=0")
	found := 0
	for part := range strings.SplitSeq(connz, `"cid"`) {
		if strings.Contains(part, `"`+box[p.name+"_web"]+`"`) {
			require.Contains(t, part, `"type": "websocket"`)
			found++
		}
	}
	require.NotZero(t, found, connz)
}

// TestGateway has a harness of the gRPC contract run a command in a sandbox of the bus.
func TestGateway(t *testing.T) {
	p := composed(t)
	p.compose(t, "--profile", "gateway", "up", "-d", "registrar", "box1", "gateway")
	p.desk(t, "harness").live(t, "--sandbox", "box1")
	id := p.id(t, "gateway")
	var token string
	for line := range strings.Lines(must(t, "docker", "exec", id, "cat", "/creds/tokens")) {
		if f := strings.Fields(line); f[0] == "harness" {
			token = f[2]
		}
	}
	require.NotEmpty(t, token)
	address := addresses(t, id)[p.name+"_control"] + ":8443"
	exec := func(token string) (*transport.Result, error) {
		r, err := relay.New(relay.Config{Addr: address, Token: token, Sandbox: "box1", InsecureNoTLS: true})
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		return r.Exec(t.Context(), transport.Command{Script: "echo hello"})
	}
	out, err := exec(token)
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(out.Stdout))
	_, err = exec(strings.Repeat("0", 64))
	require.Error(t, err)
}

// TestLoadtest runs the rig in its container.
func TestLoadtest(t *testing.T) {
	p := composed(t)
	out := p.compose(t, "run", "--rm", "loadtest", "run", "--arms", "echo,bus-native", "--rungs", "1,2", "--samples", "1", "--duration", "300ms")
	require.Contains(t, out, "bus-native")
	t.Log(out)
}
