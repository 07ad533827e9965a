package sandbus_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/harnesslib"
)

// network is a hub that listens, for tests in which connections and processes die.
type network struct {
	hub   *hub.Hub
	dir   string // the sandbox's
	state string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	h, err := hub.Start(t.Context(), hub.Config{})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	return &network{hub: h, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
}

func (n *network) token(t *testing.T, role bus.Role, name string) string {
	t.Helper()
	c, err := n.hub.Credential(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name})
	require.NoError(t, err)
	return c.Token()
}

// place is the sandbox seen through a URL, when its worker is there.
func (n *network) place(t *testing.T, url string) *place {
	t.Helper()
	return n.placeAt(t, url, n.token(t, bus.RoleHarness, "test"))
}

func (n *network) placeAt(t *testing.T, url, token string) *place {
	t.Helper()
	h, err := harnesslib.Connect(t.Context(), harnesslib.Config{URL: url, Token: token, Logger: bustest.Logger(t)})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	sb, err := h.Sandbox("box")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := sb.Info(t.Context())
		return err == nil
	}, 60*time.Second, 10*time.Millisecond)
	return &place{Sandbox: sb, hub: h, dir: n.dir}
}

// proxy is a way to the hub that can be cut.
type proxy struct {
	url      string
	to       string
	listener net.Listener

	mu    sync.Mutex // guards the fields below
	off   bool
	conns map[net.Conn]bool
}

func (n *network) proxy(t *testing.T) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{url: fmt.Sprintf("nats://%s", l.Addr()), to: strings.TrimPrefix(n.hub.URL(), "nats://"), listener: l, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) serve(a net.Conn) {
	b, err := net.Dial("tcp", p.to)
	if err != nil || !p.add(a, b) {
		_ = a.Close()
		if b != nil {
			_ = b.Close()
		}
		return
	}
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = a.Close()
			_ = b.Close()
		})
	}
	wg.Wait()
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

// cut ends what goes through and refuses what comes.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = false
}

// TestC48ConnectionIsCut cuts the harness's, the worker's, and both connections for a while in the middle of output.
func TestC48ConnectionIsCut(t *testing.T) {
	for _, side := range []string{"harness", "worker"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			cuttable := n.proxy(t)
			workerURL, harnessURL := n.hub.URL(), n.hub.URL()
			if side == "worker" {
				workerURL = cuttable.url
			} else {
				harnessURL = cuttable.url
			}
			n.workerProcess(t, workerURL)
			p := n.place(t, harnessURL)
			c := p.Command("sh", "-c", "for i in $(seq 1 200); do echo $i; sleep 0.05; done")
			var out lockedBuffer
			c.Stdout = &out
			require.NoError(t, c.Start(t.Context()))
			require.Eventually(t, func() bool { return strings.Contains(out.String(), "20\n") }, 20*time.Second, time.Millisecond)
			cuttable.cut()
			time.Sleep(5 * time.Second) //nolint:forbidigo // the length of the cut is the case's
			cuttable.mend()
			require.NoError(t, c.Wait())
			var want strings.Builder
			for i := 1; i <= 200; i++ {
				fmt.Fprintln(&want, i)
			}
			require.Equal(t, want.String(), out.String(), "all lines, once")
		})
	}
}
