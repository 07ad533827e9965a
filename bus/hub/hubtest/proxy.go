package hubtest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Proxy is a way to a hub that can be cut, and that can lose what goes through.
type Proxy struct {
	listener net.Listener

	mu      sync.Mutex // guards the fields below
	to      string
	off     bool
	lossy   bool
	dropped int // chunks from the client that were lost
	conns   map[net.Conn]bool
}

// NewProxy makes a way to the hub at a URL, for the length of the test.
func NewProxy(tb testing.TB, url string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	require.NoError(tb, err)
	p := &Proxy{listener: l, to: strings.TrimPrefix(url, "nats://"), conns: map[net.Conn]bool{}}
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
	tb.Cleanup(func() {
		_ = l.Close() // ends the loop
		p.Cut()
		wg.Wait()
	})
	return p
}

// URL is where clients connect to.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Cut closes the connections and refuses new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	for c := range p.conns {
		_ = c.Close() // its copying ends
	}
	p.conns = map[net.Conn]bool{}
}

// Mend takes connections again, to the hub at a URL; empty means where it was.
func (p *Proxy) Mend(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off, p.lossy = false, false
	if url != "" {
		p.to = strings.TrimPrefix(url, "nats://")
	}
}

// Lose loses all that goes through from now on, in both directions, until Mend. Both sides stay connected.
func (p *Proxy) Lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lossy, p.dropped = true, 0
}

// Lost is how many chunks of clients were lost since Lose. A client's small messages are never cut in two.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	to, off := p.to, p.off
	p.mu.Unlock()
	if off {
		_ = client.Close() // refused
		return
	}
	hub, err := net.Dial("tcp", to) //nolint:noctx // loopback
	if err != nil || !p.add(client, hub) {
		_ = client.Close() // refused
		if hub != nil {
			_ = hub.Close()
		}
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.copy(hub, client, true) })
	wg.Go(func() { p.copy(client, hub, false) })
	wg.Wait()
}

func (p *Proxy) add(conns ...net.Conn) bool {
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

func (p *Proxy) copy(to, from net.Conn, fromClient bool) {
	defer func() { _ = to.Close() }() // its copying ends, too
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.lose(fromClient) {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) lose(fromClient bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lossy && fromClient {
		p.dropped++
	}
	return p.lossy
}
