package rig

import (
	"context"
	"os/exec"

	"github.com/sandbus/sandbus/loadtest/workload"
)

var armLocalExec = arm{
	name: "local-exec", about: "processes that the harness starts itself: the machine's own fork and exec",
	below: true,
	open:  func(_ context.Context, s *Site) (client, error) { return &localClient{s}, nil },
}

type localClient struct{ site *Site }

func (c *localClient) session(_ context.Context, n int) (session, int, error) {
	n %= len(c.site.Sandboxes)
	dir := c.site.Sandboxes[n].Dir
	output := func(ctx context.Context, argv ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = dir
		return cmd.Output()
	}
	shell := workload.Shell(func(ctx context.Context, script string) ([]byte, error) { return output(ctx, "sh", "-c", script) })
	return doer(func(ctx context.Context, o *workload.Op) error {
		switch o.Kind {
		case workload.Exec:
			out, err := output(ctx, o.Argv...)
			if err != nil {
				return err
			}
			return o.Check(out)
		case workload.Stream:
			var out counter
			cmd := exec.CommandContext(ctx, o.Argv[0], o.Argv[1:]...)
			cmd.Stdout = &out
			if err := cmd.Run(); err != nil {
				return err
			}
			return o.CheckSize(out.n)
		default:
			return shell.Do(ctx, o)
		}
	}), n, nil
}

func (c *localClient) close() {}
