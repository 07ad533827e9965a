package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/harnesslib"
)

func newExec(a *app) *cobra.Command {
	var (
		cwd         string
		env         []string
		timeout     time.Duration
		idle        time.Duration
		interactive bool
		tty         bool
		detach      bool
		id          string
	)
	c := &cobra.Command{
		Use:   "exec [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: `exec runs a command in a sandbox and exits with its status. No shell looks at the arguments; ask for one by
"sh -c". Standard output and standard error stay apart. Ctrl-C ends the remote command and all that it started.

Exit status: the command's own; 128+N when signal N killed it; 124 when its time was over; 126 or 127 when it could not
be started, as in a shell; 125 when sandbus itself failed.`,
		Example: `  sandbus exec -- uname -a
  sandbus exec -s box1 --cwd /src --env CI=1 --timeout 10m -- make test
  sandbus exec -it -- bash
  sandbus exec --detach -- make test      (then: sandbus logs -f ID)
  tar c . | sandbus exec -i -s box1 -- tar x -C /tmp`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if timeout < 0 {
				return &usageError{fmt.Errorf("--timeout %s: want 0 (none) or more", timeout)}
			}
			for _, v := range env {
				if i := strings.IndexByte(v, '='); i < 1 {
					return &usageError{fmt.Errorf("--env %q: want NAME=VALUE", v)}
				}
			}
			if detach && (interactive || tty) {
				return &usageError{errors.New("--detach: goes with neither -i nor -t")}
			}
			return a.withSandbox(c.Context(), "", func(sb *harnesslib.Sandbox) error {
				cmd := sb.Command(args[0], args[1:]...)
				cmd.ID, cmd.Dir, cmd.Env, cmd.Timeout, cmd.IdleTimeout, cmd.Detach = id, cwd, env, timeout, idle, detach
				cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
				if interactive {
					cmd.Stdin = a.stdin
				}
				if tty {
					return execStatus(explain(a.runOnTerminal(c.Context(), sb, cmd)))
				}
				err := cmd.Run(c.Context())
				if err == nil && detach {
					_, err = fmt.Fprintln(a.stdout, cmd.ID)
				}
				return execStatus(explain(err))
			})
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // flags behind the command are the command's
	f.StringVarP(&a.sandbox, "sandbox", "s", "", "`id` of the sandbox (environment: SANDBUS_SANDBOX)")
	f.StringVar(&cwd, "cwd", "", "`directory` to run in (default: the sandbox's)")
	f.StringArrayVarP(&env, "env", "e", nil, "`NAME=VALUE` to add to the environment; may be repeated")
	f.DurationVar(&timeout, "timeout", 0, "end the command after this `time`, such as 90s (default: none)")
	f.DurationVar(&idle, "idle-timeout", 0, "end the command after this `time` without output (default: none)")
	f.StringVar(&id, "id", "", "`name` of the run: the same command under the same name runs once (default: a new one)")
	f.BoolVar(&a.lease, "lease", false, "hold a slot of the sandbox while the command runs, and wait for one first; what is detached lives 10m longer than that")
	f.BoolVarP(&detach, "detach", "d", false, "let the command run on by itself, and print its id")
	f.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	f.BoolVarP(&interactive, "interactive", "i", false, "pass standard input on")
	return c
}
