package rig

import (
	"bytes"
	"context"
	"io/fs"

	"github.com/sandbus/sandbus/harnesslib"
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

type busClient struct {
	hub  *harnesslib.Hub
	site *Site
	how  func(*harnesslib.Sandbox) doer
}

func (c *busClient) session(_ context.Context, n int) (session, int, error) {
	n %= len(c.site.Sandboxes)
	sb, err := c.hub.Sandbox(c.site.Sandboxes[n].ID)
	if err != nil {
		return nil, 0, err
	}
	return c.how(sb), n, nil
}

func (c *busClient) close() { c.hub.Close() }

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
