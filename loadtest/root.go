package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitFailed      = 1   // the rig itself
	exitUsage       = 2   // the command line
	exitMarked      = 3   // a record has a mark: the figures are there, and something about them must be known
	exitPastLimit   = 4   // compare: past the limit
	exitInterrupted = 130 // by a signal; what was measured before is written
)

// statusError ends the command with a status; its text may be empty.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// usageError is a command line that cannot be right.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// app is where the commands write.
type app struct {
	stdout, stderr io.Writer
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "loadtest",
		Short: "Load-test sandbus on one machine",
		Long: `loadtest starts a hub, K sandboxes and W harness processes with S sessions each, and has them do a workload at each rung of
offered concurrency c = W·S, arm by arm. Exit status: 0 done, 1 the rig failed, 2 usage, 3 a record is marked (a rung
below the success floor or bound by the generator, an arm without baseline or not to be had), 4 compare is past its limit,
130 interrupted.`,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(newRun(a), newSmoke(a), newCompare(a), newAddressable(a), newShow(a))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if se, ok := errors.AsType[*statusError](err); ok {
		if se.text != "" {
			_, _ = fmt.Fprintln(stderr, "loadtest:", se.text)
		}
		return se.status
	}
	_, _ = fmt.Fprintln(stderr, "loadtest:", err)
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}
