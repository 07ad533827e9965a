package rig

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/loadtest/record"
	"github.com/sandbus/sandbus/loadtest/workload"
)

// The arms over the bus differ in how an operation is done at a sandbox.
var (
	armBusNative = arm{
		name: "bus-native", about: "the worker's own file operations; commands on its warm shells",
		open: openBus(native),
	}
	armBusShell = arm{
		name: "bus-shell", about: "everything as shell text on the worker's warm shells",
		open: openBus(func(sb *harnesslib.Sandbox) doer {
			return shellDoer("bus-shell", func(ctx context.Context, script string) ([]byte, error) {
				return sb.ScriptCommand(script).Output(ctx)
			})
		}),
	}
	armBusExec = arm{
		name: "bus-exec", about: "everything as a process of its own: the stream tier",
		open: openBus(func(sb *harnesslib.Sandbox) doer {
			shell := workload.Shell(func(ctx context.Context, script string) ([]byte, error) {
				return sb.Command("sh", "-c", script).Output(ctx)
			})
			return func(ctx context.Context, o *workload.Op) error {
				if o.Kind == workload.Exec {
					out, err := sb.Command(o.Argv[0], o.Argv[1:]...).Output(ctx)
					if err != nil {
						return err
					}
					return o.Check(out)
				}
				if o.Kind == workload.Stream {
					return stream(ctx, sb, o)
				}
				return shell.Do(ctx, o)
			}
		}),
	}
)

// shellDoer does everything by shell text; output that does not fit into one answer it cannot do.
func shellDoer(name string, shell workload.Shell) doer {
	return func(ctx context.Context, o *workload.Op) error {
		if o.Kind == workload.Stream {
			return unavailable(name, o)
		}
		return shell.Do(ctx, o)
	}
}

func openBus(how func(*harnesslib.Sandbox) doer) func(context.Context, *Site) (client, error) {
	return func(ctx context.Context, s *Site) (client, error) {
		hub, err := harnesslib.Connect(ctx, harnesslib.Config{URL: s.URL, Token: s.Token})
		if err != nil {
			return nil, err
		}
		return &busClient{hub: hub, site: s, how: how}, nil
	}
}

// busClient is a harness's connection to a hub; its sessions hold leases.
type busClient struct {
	hub  *harnesslib.Hub
	site *Site
	how  func(*harnesslib.Sandbox) doer

	mu    sync.Mutex // guards the fields below
	told  harnesslib.LeaseStats
	waits []float64 // µs: how long the acquisitions since then took
}

func (c *busClient) session(context.Context, int) (session, int, error) {
	return &busSession{c: c}, unplaced, nil
}

func (c *busClient) close() { c.hub.Close() }

// leases is how the acquisitions since the last call went.
func (c *busClient) leases() *record.Leases {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.hub.LeaseStats()
	l := &record.Leases{
		Acquired: int64(len(c.waits)), Waited: now.Waited - c.told.Waited, Refused: now.GaveUp - c.told.GaveUp, WaitUS: c.waits,
	}
	c.told, c.waits = now, nil
	return l
}

func (c *busClient) held() int { return c.hub.LeaseStats().Held }

// busSession is a session that has a sandbox while it holds a lease.
type busSession struct {
	c     *busClient
	lease *harnesslib.Lease
	on    doer
}

// rent waits for a lease and returns whose sandbox it is.
func (s *busSession) rent(ctx context.Context) (int, error) {
	begin := time.Now()
	lease, err := s.c.hub.Acquire(ctx, harnesslib.AcquireOptions{Wait: true})
	if err != nil {
		return 0, err
	}
	took := float64(time.Since(begin)) / 1e3
	s.c.mu.Lock()
	s.c.waits = append(s.c.waits, took)
	s.c.mu.Unlock()
	s.lease, s.on = lease, s.c.how(lease.Sandbox())
	id := lease.Sandbox().ID()
	at := slices.IndexFunc(s.c.site.Sandboxes, func(p Place) bool { return p.ID == id })
	if at < 0 {
		s.giveBack(ctx)
		return 0, fmt.Errorf("leased %s, which is not of this run", id)
	}
	return at, nil
}

func (s *busSession) giveBack(ctx context.Context) {
	if s.lease != nil {
		_ = s.lease.Release(ctx) // one that has ended already says so
		s.lease = nil
	}
}

func (s *busSession) do(ctx context.Context, o *workload.Op) error { return s.on(ctx, o) }

func (s *busSession) close(ctx context.Context) { s.giveBack(ctx) }

// native uses the best that the worker has for each operation.
func native(sb *harnesslib.Sandbox) doer {
	return func(ctx context.Context, o *workload.Op) error {
		switch o.Kind {
		case workload.Read:
			b, err := sb.ReadFile(ctx, o.Path)
			if err != nil {
				return err
			}
			return o.Check(b)
		case workload.Write:
			return sb.WriteFile(ctx, o.Path, o.Data, fs.FileMode(0o644))
		case workload.Edit:
			_, err := sb.Edit(ctx, o.Path, []harnesslib.Edit{{Old: o.Old, New: o.New}}, harnesslib.EditOptions{})
			return err
		case workload.Ls:
			list, err := sb.ReadDir(ctx, o.Path)
			if err != nil {
				return err
			}
			return o.CheckCount(len(list))
		case workload.Stat:
			_, err := sb.Stat(ctx, o.Path)
			return err
		case workload.Find:
			list, err := sb.Glob(ctx, o.Path, o.Pattern, harnesslib.GlobOptions{})
			if err != nil {
				return err
			}
			return o.CheckCount(len(list.Entries))
		case workload.Grep:
			found, err := sb.Grep(ctx, o.Path, o.Pattern, harnesslib.GrepOptions{Fixed: true})
			if err != nil {
				return err
			}
			return o.CheckCount(int(found.Matches))
		case workload.Stream:
			return stream(ctx, sb, o)
		default: // commands: their output is collected
			out, err := sb.ScriptCommand(o.Script).Output(ctx)
			if err != nil {
				return err
			}
			return o.Check(out)
		}
	}
}

// counter counts what it is given.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

func stream(ctx context.Context, sb *harnesslib.Sandbox, o *workload.Op) error {
	var out counter
	var stderr bytes.Buffer
	cmd := sb.Command(o.Argv[0], o.Argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(ctx); err != nil {
		return err
	}
	return o.CheckSize(out.n)
}
