// Package link is a TCP proxy whose ways can be cut, delayed, throttled, half-closed and made to swallow everything: what
// networks do to the connections of a hub.
package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Rules are what a link does to the bytes of one direction. The zero value passes them on.
type Rules struct {
	// Delay is how much later each byte arrives.
	Delay time.Duration
	// Rate is how many bytes pass in a second; zero means all.
	Rate int
	// Hole swallows: the connection lives, and nothing arrives.
	Hole bool
}

// Link is a proxy to one address. Its methods may be called at any time, from anywhere.
type Link struct {
	to       string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	down    bool       // connections are refused
	closed  bool
	forth   Rules // from the client to the hub
	back    Rules
	changed chan struct{} // closed when the rules change
	conns   map[net.Conn]bool
}

// New listens on a free port of the loopback for connections to an address. Close ends it.
func New(to string) (*Link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", to, err)
	}
	k := &Link{to: to, listener: l, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	k.wg.Go(k.accept)
	return k, nil
}

// Addr is where clients connect to.
func (k *Link) Addr() string { return k.listener.Addr().String() }

// Cut ends the connections and refuses new ones until Mend.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = true
	k.dropLocked()
}

// Drop ends the connections; new ones are served.
func (k *Link) Drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked()
}

func (k *Link) dropLocked() {
	for c := range k.conns {
		_ = c.Close() // it may be closed already
	}
	clear(k.conns)
}

// HalfClose ends the direction from the hub to the client: the hub's end of it stays open.
func (k *Link) HalfClose() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		if t, ok := c.(*net.TCPConn); ok && t.LocalAddr().String() == k.listener.Addr().String() {
			_ = t.CloseWrite() // likewise
		}
	}
}

// Mend undoes Cut, and all rules.
func (k *Link) Mend() {
	k.mu.Lock()
	k.down = false
	k.mu.Unlock()
	k.Set(Rules{}, Rules{})
}

// Set gives the two directions, to the hub and from it, new rules; they hold for the connections that there are too.
func (k *Link) Set(forth, back Rules) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forth, k.back = forth, back
	close(k.changed)
	k.changed = make(chan struct{})
}

// Close ends the link and waits for what it started. It may be called twice.
func (k *Link) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	_ = k.listener.Close() // twice is no failure
	k.Cut()
	k.Set(Rules{}, Rules{}) // whoever waits looks again
	k.wg.Wait()
}

func (k *Link) accept() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		k.wg.Go(func() { k.serve(c) })
	}
}

func (k *Link) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	k.mu.Lock()
	down := k.down
	k.mu.Unlock()
	if down {
		return
	}
	server, err := net.DialTimeout("tcp", k.to, 5*time.Second) //nolint:noctx // bounded
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	k.mu.Lock()
	if k.down {
		k.mu.Unlock()
		return
	}
	k.conns[client], k.conns[server] = true, true
	k.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { k.carry(server, client, true) })
	both.Go(func() { k.carry(client, server, false) })
	both.Wait()
	k.mu.Lock()
	delete(k.conns, client)
	delete(k.conns, server)
	k.mu.Unlock()
}

// carry moves the bytes of one direction.
func (k *Link) carry(to, from net.Conn, forth bool) {
	buf := make([]byte, 32<<10)
	for {
		// A small read under a low rate, so that the rules are looked at often.
		n, err := from.Read(buf[:k.portion(forth, len(buf))])
		if n > 0 && !k.pass(to, buf[:n], forth) {
			_ = from.Close()
			return
		}
		if err != nil {
			if t, ok := to.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
				_ = t.CloseWrite()
			} else {
				_ = to.Close()
			}
			return
		}
	}
}

func (k *Link) rules(forth bool) (Rules, <-chan struct{}, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if forth {
		return k.forth, k.changed, k.closed
	}
	return k.back, k.changed, k.closed
}

func (k *Link) portion(forth bool, whole int) int {
	r, _, _ := k.rules(forth)
	if r.Rate > 0 {
		return min(whole, max(512, r.Rate/50))
	}
	return whole
}

// pass hands bytes on by the rules; false means that the connection is over.
func (k *Link) pass(to net.Conn, b []byte, forth bool) bool {
	for {
		r, changed, closed := k.rules(forth)
		if closed {
			return false
		}
		wait := r.Delay
		if r.Rate > 0 {
			wait += time.Duration(len(b)) * time.Second / time.Duration(r.Rate)
		}
		switch {
		case r.Hole:
			return true // swallowed
		case wait == 0:
			_, err := to.Write(b)
			return err == nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
			_, err := to.Write(b)
			return err == nil
		case <-changed:
			t.Stop()
		}
	}
}
