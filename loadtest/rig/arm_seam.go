package rig

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/loadtest/workload"
)

// seamClient reaches sandboxes by a transport of the seam; everything is shell text.
type seamClient struct {
	arm  string
	site *Site
	make func(Place) (transport.Transport, error)
	// shared says that the sessions of a process share one transport for each sandbox; else each has its own.
	shared bool

	mu   sync.Mutex // guards the fields below
	used map[int]transport.Transport
}

func (c *seamClient) session(_ context.Context, n int) (session, int, error) {
	n %= len(c.site.Sandboxes)
	if !c.shared {
		tr, err := c.make(c.site.Sandboxes[n])
		if err != nil {
			return nil, 0, err
		}
		return &seamSession{doer: c.do(tr), tr: tr}, n, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	tr, ok := c.used[n]
	if !ok {
		var err error
		if tr, err = c.make(c.site.Sandboxes[n]); err != nil {
			return nil, 0, err
		}
		if c.used == nil {
			c.used = map[int]transport.Transport{}
		}
		c.used[n] = tr
	}
	return c.do(tr), n, nil
}

// seamSession is a session with a transport of its own.
type seamSession struct {
	doer
	tr transport.Transport
}

func (s *seamSession) close(context.Context) { _ = s.tr.Close() } // nothing is left to be said

func (c *seamClient) close() {
	for _, tr := range c.used {
		_ = tr.Close() // nothing is left to be said
	}
}

func (c *seamClient) do(tr transport.Transport) doer {
	shell := workload.Shell(func(ctx context.Context, script string) ([]byte, error) {
		res, err := tr.Exec(ctx, transport.Command{Script: script})
		if err != nil {
			return nil, err
		}
		return res.Stdout, exited(res)
	})
	return func(ctx context.Context, o *workload.Op) error {
		if o.Kind != workload.Stream {
			return shell.Do(ctx, o)
		}
		var out counter
		res, err := tr.Exec(ctx, transport.Command{Script: o.Script, Stdout: &out})
		if err == nil {
			err = exited(res)
		}
		if err != nil {
			return err
		}
		return o.CheckSize(out.n)
	}
}

// errExit says that a command ran and failed.
var errExit = errors.New("the command failed")

func exited(res *transport.Result) error {
	switch {
	case res.Truncated:
		return &workload.WrongError{What: "the output was truncated"}
	case res.ExitCode == nil:
		return fmt.Errorf("%w: signal %s", errExit, res.Signal)
	case *res.ExitCode != 0:
		return fmt.Errorf("%w: exit code %d: %.200s", errExit, *res.ExitCode, res.Stderr)
	}
	return nil
}
