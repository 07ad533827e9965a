package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/internal/testenv"
)

// TestNAT has a sandbox behind a router that masquerades: it can dial out only, and does so with TLS.
func TestNAT(t *testing.T) {
	enabled(t)
	testenv.Need(t, "root", os.Geteuid() == 0)
	testenv.Tool(t, "ip")
	testenv.Tool(t, "iptables")
	n := newNAT(t)
	dir, bin := t.TempDir(), t.TempDir()
	build := run(t.Context(), t, []string{"GOFLAGS=-buildvcs=false"}, "go", "build", "-o", bin, "./cmd/sandbus", "./cmd/workerd")
	require.Zero(t, build.code, build.stderr)
	sandbus := filepath.Join(bin, "sandbus")
	cert, key, ca := bustest.Certificate(t, natHub)
	keys := filepath.Join(dir, "keys")
	must(t, sandbus, "auth", "init", "--keys", keys)
	box, cli := filepath.Join(dir, "box.creds"), filepath.Join(dir, "cli.creds")
	must(t, sandbus, "auth", "issue", "sandbox", "far", "--keys", keys, "--out", box)
	must(t, sandbus, "auth", "issue", "harness", "cli", "--keys", keys, "--out", cli)

	n.start(t, n.hub, sandbus, "hub", "--state-dir", filepath.Join(dir, "hub"), "--keys", keys, "--listen", natHub+":4222", "--tls-cert", cert, "--tls-key", key)
	url := "tls://" + natHub + ":4222"
	n.start(t, n.box, filepath.Join(bin, "workerd"), "--url", url, "--sandbox-id", "far", "--creds", box, "--tls-ca", ca, "--state-dir", filepath.Join(dir, "box"), "--dir", dir)
	harness := func(arg ...string) result {
		to := append([]string{"netns", "exec", n.hub, sandbus}, arg...)
		return run(t.Context(), t, []string{"SANDBUS_URL=" + url, "SANDBUS_CREDS=" + cli, "SANDBUS_CA=" + ca, "SANDBUS_SANDBOX=far"}, "ip", to...)
	}
	eventually(t, func() error {
		if r := harness("exec", "--", "true"); r.code != 0 {
			return fmt.Errorf("exit status %d: %s", r.code, r.stderr)
		}
		return nil
	})

	// The hub has no way to the sandbox, and sees the router.
	require.NotZero(t, run(t.Context(), t, nil, "ip", "netns", "exec", n.hub, "ip", "route", "get", natBox).code, "the hub has a route to the sandbox")
	seen := must(t, "ip", "netns", "exec", n.hub, "ss", "-Htn", "state", "established", "sport", "=", ":4222")
	require.Contains(t, seen, natOutside)
	require.NotContains(t, seen, natBox)
	// Even with a route nothing gets in.
	must(t, "ip", "netns", "exec", n.hub, "ip", "route", "add", natBox, "via", natOutside)
	n.start(t, n.box, sandbus, "hub", "--state-dir", filepath.Join(dir, "bait"), "--listen", natBox+":4333", "--tls-cert", cert, "--tls-key", key)
	reach := func(ns string) bool {
		return run(t.Context(), t, nil, "ip", "netns", "exec", ns, "timeout", "3", "bash", "-c", "exec 3<>/dev/tcp/"+natBox+"/4333").code == 0
	}
	eventually(t, func() error {
		if !reach(n.box) {
			return fmt.Errorf("nobody listens on %s", net.JoinHostPort(natBox, "4333"))
		}
		return nil
	})
	require.False(t, reach(n.hub))

	r := harness("exec", "--", "sh", "-c", "cat /proc/sys/kernel/ostype; exit 3")
	require.Equal(t, 3, r.code, r.stderr)
	require.Equal(t, "Linux\n", r.stdout)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("contents"), 1<<18), 0o600))
	require.Zero(t, harness("cp", file, "far:copied").code)
	got, err := os.ReadFile(filepath.Join(dir, "copied"))
	require.NoError(t, err)
	require.Len(t, got, 8<<18)
}

// The addresses of the two hosts, and of the router between them.
const (
	natHub     = "10.99.0.2"
	natOutside = "10.99.0.1"
	natInside  = "192.168.99.1"
	natBox     = "192.168.99.2"
)

// nat is two network namespaces with a router between them.
type nat struct{ hub, router, box string }

func newNAT(t *testing.T) nat {
	t.Helper()
	mark := fmt.Sprintf("sb%d", os.Getpid()%100000)
	n := nat{mark + "h", mark + "r", mark + "b"}
	for _, ns := range []string{n.hub, n.router, n.box} {
		must(t, "ip", "netns", "add", ns)
		afterwards(t, "ip", "netns", "del", ns)
		must(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	wire := func(a, aDev, aAddr, b, bDev, bAddr string) {
		must(t, "ip", "-n", a, "link", "add", aDev, "type", "veth", "peer", "name", bDev, "netns", b)
		for _, end := range [][3]string{{a, aDev, aAddr}, {b, bDev, bAddr}} {
			must(t, "ip", "-n", end[0], "addr", "add", end[2]+"/24", "dev", end[1])
			must(t, "ip", "-n", end[0], "link", "set", end[1], "up")
		}
	}
	wire(n.router, "out", natOutside, n.hub, "eth0", natHub)
	wire(n.router, "in", natInside, n.box, "eth0", natBox)
	must(t, "ip", "-n", n.box, "route", "add", "default", "via", natInside)
	for _, rule := range []string{
		"-t nat -A POSTROUTING -o out -j MASQUERADE", "-P FORWARD DROP", "-A FORWARD -i in -o out -j ACCEPT",
		"-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
	} {
		must(t, "ip", append([]string{"netns", "exec", n.router, "iptables"}, strings.Fields(rule)...)...)
	}
	must(t, "ip", "netns", "exec", n.router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	return n
}

// start runs a program in a namespace until the test's end; it has to be alive then, and to end when it is told.
func (n nat) start(t *testing.T, ns string, arg ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	c := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns}, arg...)...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	c.WaitDelay = time.Minute
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		defer cancel()
		_ = c.Process.Signal(syscall.SIGTERM) // the wait tells
		if err := c.Wait(); err != nil {
			t.Errorf("%s: %v", strings.Join(arg, " "), err)
		}
		if t.Failed() {
			t.Logf("%s: %s", arg[0], out.String())
		}
	})
}
