package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// The results of a check.
const (
	checkOK      = "ok"
	checkWarn    = "warn"    // it works, and may not be meant so
	checkFail    = "fail"    // the exit status is 1
	checkSkipped = "skipped" // what it needs has failed, or there is nothing to look at
)

// check is one line of doctor.
type check struct {
	Name   string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
}

func newDoctor(a *app) *cobra.Command {
	var asJSON bool
	var limit time.Duration
	c := &cobra.Command{
		Use:   "doctor [ID]",
		Short: "Find out what keeps a hub or a sandbox from working",
		Long: `doctor looks at the way from here to a sandbox, hop by hop: the credential, the hub's name and port, the hub itself, what
it lets the credential do (by trying), the registrar, the sandbox's worker, the clocks, the shell, and what the sandbox's
commands may do. What it tries has no effect. The exit status is 1 when a check fails.

A worker's own credential can be checked as well (--creds FILE): then it ends behind the permissions.`,
		Example: "  sandbus doctor box1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeoutCause(c.Context(), limit, fmt.Errorf("not done within %s", limit))
			defer cancel()
			d := &doctor{app: a}
			if len(args) > 0 {
				d.named = args[0]
			}
			d.run(ctx)
			if err := d.print(asJSON); err != nil {
				return err
			}
			if d.failed() {
				return &statusError{exitFailed, nil}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	c.Flags().DurationVar(&limit, "timeout", time.Minute, "how long all checks may take together")
	return c
}

// doctor makes the checks.
type doctor struct {
	app    *app
	named  string // the sandbox; empty for the only one
	checks []check
}

func (d *doctor) add(name, result, format string, args ...any) {
	d.checks = append(d.checks, check{name, result, plain(fmt.Sprintf(format, args...))})
}

// ok adds a check that failed when err is not nil, and says whether it did not.
func (d *doctor) ok(name string, err error, format string, args ...any) bool {
	if err != nil {
		d.add(name, checkFail, "%v", err)
		return false
	}
	d.add(name, checkOK, format, args...)
	return true
}

func (d *doctor) failed() bool {
	for _, c := range d.checks {
		if c.Result == checkFail {
			return true
		}
	}
	return false
}

// skip adds the checks that cannot be made.
func (d *doctor) skip(why string, names ...string) {
	for _, name := range names {
		d.add(name, checkSkipped, "%s", why)
	}
}

func (d *doctor) print(asJSON bool) error {
	if asJSON {
		return json.NewEncoder(d.app.stdout).Encode(d.checks)
	}
	w := tabwriter.NewWriter(d.app.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CHECK\tRESULT\tDETAIL") // kept for Flush to report
	for _, c := range d.checks {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", c.Name, c.Result, c.Detail)
	}
	return errors.Join(w.Flush())
}
