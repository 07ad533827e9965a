package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
)

// forward is one port that is passed on, "[LOCAL:]REMOTE" on the command line.
type forward struct {
	local  int // zero: a free one
	remote int
}

// parseForward takes a port specification apart.
func parseForward(s string) (forward, error) {
	bad := func(why string) error {
		return &usageError{fmt.Errorf("port %.80q: %s; want REMOTE, LOCAL:REMOTE or :REMOTE (a free local port), such as 8080:80", s, why)}
	}
	local, remote, both := strings.Cut(s, ":")
	if !both {
		local, remote = s, s
	}
	var f forward
	var err error
	if f.remote, err = parsePort(remote); err != nil {
		return forward{}, bad(err.Error())
	}
	if local != "" {
		if f.local, err = parsePort(local); err != nil {
			return forward{}, bad(err.Error())
		}
	}
	return f, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("%.80q is no port from 1 to 65535", s)
	}
	return int(n), nil
}

func newPortForward(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "port-forward [-s ID | ID] [LOCAL:]REMOTE...",
		Short: "Pass local ports on to ports of a sandbox",
		Long: `port-forward listens on ports of this machine's loopback (127.0.0.1, and [::1] where there is one), and passes each
connection on to a port of the sandbox's loopback, until Ctrl-C. Without LOCAL the local port is the remote one; an empty
LOCAL means a free port, which is printed.`,
		Example: `  sandbus port-forward -s box1 8080
  sandbus port-forward box1 8080:80 :5432`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id := ""
			// A sandbox's id that begins with a letter cannot be meant as a port.
			if first := args[0]; a.sandbox == "" && first[:min(1, len(first))] >= "a" && !strings.Contains(first, ":") {
				if _, err := bus.ParseSandboxID(first); err != nil {
					return &usageError{err}
				}
				id, args = first, args[1:]
			}
			if len(args) == 0 {
				return &usageError{errors.New("no port: want at least one [LOCAL:]REMOTE, such as 8080:80")}
			}
			forwards := make([]forward, len(args))
			for i, arg := range args {
				var err error
				if forwards[i], err = parseForward(arg); err != nil {
					return err
				}
			}
			return a.forward(c.Context(), id, forwards)
		},
	}
	a.sandboxFlag(c)
	return c
}

// forward passes ports on until ctx ends, which is no error.
func (a *app) forward(ctx context.Context, id string, forwards []forward) error {
	s, err := a.connect(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	sb, err := a.choose(ctx, s, id)
	if err != nil {
		return err
	}
	if _, err := sb.Info(ctx); err != nil {
		return explain(err)
	}
	p := &portForwarder{sb: sb}
	p.report = func(format string, args ...any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, _ = fmt.Fprintf(a.stderr, format, args...) // there is nobody else to tell
	}
	defer p.wait()
	life, stop := context.WithCancelCause(ctx)
	defer stop(errForwardingEnds)
	for _, f := range forwards {
		listeners, err := listenLoopback(ctx, f.local)
		if err != nil {
			return err
		}
		for _, ln := range listeners {
			p.serve(life, ln, f.remote)
			if _, err := fmt.Fprintf(a.stdout, "forwarding %s -> %s:%d\n", ln.Addr(), sb.ID(), f.remote); err != nil {
				return err
			}
		}
	}
	<-ctx.Done()
	return nil
}

// errForwardingEnds is the cause with which the connections of a port-forward end.
var errForwardingEnds = errors.New("port-forward ends")

// listenLoopback opens a port on 127.0.0.1, and on [::1] where there is one; zero means a free one, the same on both.
func listenLoopback(ctx context.Context, port int) ([]net.Listener, error) {
	const tries = 10 // a port that is free on one address may be taken on the other
	var lc net.ListenConfig
	for i := 1; ; i++ {
		v4, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return nil, err
		}
		v6, err := lc.Listen(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(v4.Addr().(*net.TCPAddr).Port)))
		switch {
		case err == nil:
			return []net.Listener{v4, v6}, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return []net.Listener{v4}, nil // this machine has no [::1]
		}
		_ = v4.Close() // nobody has connected
		if port != 0 || i == tries {
			return nil, err
		}
	}
}

// portForwarder is the connections that are passed on.
type portForwarder struct {
	sb     *harnesslib.Sandbox
	report func(format string, args ...any)
	mu     sync.Mutex     // held while something is reported
	wg     sync.WaitGroup // listeners and connections
}

func (p *portForwarder) wait() { p.wg.Wait() }

// serve accepts connections until ctx ends.
func (p *portForwarder) serve(ctx context.Context, ln net.Listener, remote int) {
	context.AfterFunc(ctx, func() { _ = ln.Close() }) // ends Accept
	p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if ctx.Err() != nil {
				if err == nil {
					_ = c.Close() // it has been told nothing yet
				}
				return
			}
			if err != nil {
				p.report("sandbus: accept on %s: %v\n", ln.Addr(), err)
				return
			}
			p.wg.Go(func() {
				if err := p.pass(ctx, c.(*net.TCPConn), remote); err != nil && ctx.Err() == nil {
					p.report("sandbus: %s -> %s:%d: %v\n", ln.Addr(), p.sb.ID(), remote, err)
				}
			})
		}
	})
}

// answerGrace is how long a connection may go on that takes no more in one direction.
const answerGrace = 2 * time.Second

// pass connects to the sandbox's port and copies both ways. A connection that breaks on one side is broken on the other.
func (p *portForwarder) pass(ctx context.Context, local *net.TCPConn, remote int) error {
	far, err := p.sb.DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(remote)))
	if err != nil {
		breakOff(local)
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		breakOff(local)
		_ = far.Close() // ends the copies
	})
	defer stop()
	back := make(chan error, 1)
	go func() {
		_, err := io.Copy(local, far)
		if err == nil {
			err = local.CloseWrite()
		} else {
			breakOff(local)
		}
		back <- err
	}()
	_, err = io.Copy(far, local)
	if err == nil {
		err = far.(interface{ CloseWrite() error }).CloseWrite()
	}
	if err != nil {
		// When the far end has refused to take more, its answer is still passed on; when the client is gone, nobody waits.
		late := time.AfterFunc(answerGrace, func() { _ = far.Close() })
		defer late.Stop()
	}
	err = errors.Join(err, <-back)
	_ = local.Close() // both directions have ended
	if cerr := far.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ENOTCONN) {
		return nil // one of the two ends went away, as they may
	}
	return err
}

// breakOff closes a connection so that its other end sees that it broke.
func breakOff(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only when it is closed already
	_ = c.Close()      // likewise
}
