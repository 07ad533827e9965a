package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/harnesslib"
)

func newExecs(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "execs [ID]",
		Short: "List the execs of a sandbox, running and ended",
		Long: `execs lists what a sandbox runs, and what has ended there within the last 10 minutes (at most 64). Commands on the
fast tier are not listed: they are over before one could look.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			named := ""
			if len(args) > 0 {
				named = args[0]
			}
			return a.withRunning(c.Context(), named, func(sb *harnesslib.Sandbox) error {
				list, err := sb.Execs(c.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(a.stdout).Encode(list)
				}
				w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(w, "EXEC\tSTATE\tPID\tRUN\tOUTPUT\tREADERS\tCOMMAND") // kept for Flush to report
				for _, e := range list {
					_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%s\n", e.ID, state(e), e.PID, e.Run.Round(time.Millisecond), e.Output, e.Readers, plain(e.Command))
				}
				return w.Flush()
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

func state(e harnesslib.ExecInfo) string {
	switch {
	case !e.Running:
		return plain(string(e.Outcome.Kind) + statusDetail(e.Outcome))
	case e.Detached:
		return "running, detached"
	}
	return "running"
}

func statusDetail(o harnesslib.Outcome) string {
	switch o.Kind {
	case harnesslib.Exited:
		return fmt.Sprintf(" %d", o.Code)
	case harnesslib.Signalled:
		return " " + o.Signal
	case harnesslib.TimedOut, harnesslib.Aborted, harnesslib.OutputLimit, harnesslib.OOM, harnesslib.StartFailed, harnesslib.Lost:
	}
	return ""
}

func newLogs(a *app) *cobra.Command {
	var follow bool
	var offset int64
	c := &cobra.Command{
		Use:   "logs [-f] EXEC",
		Short: "Print the output of an exec",
		Long: `logs prints what is kept of an exec's output: the first 256 KiB and the last 768 KiB. With -f it goes on until the
exec ends, and exits with its status.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withRunning(c.Context(), "", func(sb *harnesslib.Sandbox) error {
				cmd := sb.AttachCommand(args[0])
				cmd.NoFollow, cmd.Offset = !follow, offset
				cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
				err := cmd.Run(c.Context())
				if cmd.Omitted > 0 {
					_, _ = fmt.Fprintf(a.stderr, "sandbus: %d bytes of output are no longer kept\n", cmd.Omitted)
				}
				if !follow && cmd.Outcome.Kind != "" {
					return nil // how it ended is not what was asked for
				}
				return execStatus(explain(err))
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the exec ends")
	c.Flags().Int64Var(&offset, "offset", 0, "where to begin, in `bytes` of output")
	a.sandboxFlag(c)
	return c
}

func newAttach(a *app) *cobra.Command {
	var interactive bool
	c := &cobra.Command{
		Use:   "attach [-i] EXEC",
		Short: "Follow an exec's output, and give it input",
		Long: `attach prints what is kept of an exec's output and goes on until it ends; it exits with the exec's status. Ctrl-C ends
the reading, not the exec ("sandbus kill" does that).`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withRunning(c.Context(), "", func(sb *harnesslib.Sandbox) error {
				cmd := sb.AttachCommand(args[0])
				cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
				if interactive {
					cmd.Stdin = a.stdin
				}
				return execStatus(explain(cmd.Run(c.Context())))
			})
		},
	}
	c.Flags().BoolVarP(&interactive, "interactive", "i", false, "pass standard input on to the exec")
	a.sandboxFlag(c)
	return c
}

func newKill(a *app) *cobra.Command {
	var sig string
	c := &cobra.Command{
		Use:   "kill [--signal NAME] EXEC...",
		Short: "End execs, or send them a signal",
		Long: `kill ends execs and all that they have started: TERM first, KILL after the exec's grace. With --signal it sends that
signal to the exec's process group instead, and leaves the rest to the exec.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withRunning(c.Context(), "", func(sb *harnesslib.Sandbox) error {
				known := map[string]bool{}
				list, err := sb.Execs(c.Context())
				if err != nil {
					return err
				}
				for _, e := range list {
					known[e.ID] = true
				}
				for _, id := range args {
					if !known[id] {
						return fmt.Errorf("exec %q: %w; \"sandbus execs\" lists them", id, harnesslib.ErrUnknownExec)
					}
				}
				for _, id := range args {
					if sig != "" {
						err = sb.Signal(c.Context(), id, sig)
					} else {
						err = sb.Abort(c.Context(), id)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&sig, "signal", "", "`name` or number of a signal")
	a.sandboxFlag(c)
	return c
}
