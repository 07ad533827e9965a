package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/harnesslib"
)

// Exit statuses of our own failures; exec exits with the remote command's status otherwise.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitTimedOut    = 124 // as timeout(1)
	exitExecFailed  = 125 // as docker exec
	exitSignalsFrom = 128
)

// status is an error that carries the exit status; a nil err prints nothing.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(stdin, stdout, stderr)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !cmd.HasParent() { // no verb was found
		err = &usageError{err}
	}
	code := exitFailed
	var se *statusError
	var usage *usageError
	switch {
	case errors.As(err, &se):
		code = se.code
		err = se.err
	case cmd.Name() == "exec":
		code = exitExecFailed
	case errors.As(err, &usage):
		code = exitUsage
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "sandbus: %v\n", err)
	}
	if errors.As(err, &usage) {
		_, _ = fmt.Fprintf(stderr, "See: %s --help\n", cmd.CommandPath())
	}
	return code
}

// usageError is a command line that cannot be right.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// app is what the verbs share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	url            string
	creds          string
	credsCommand   string
	ca             string
	insecure       bool // show no credential
	zone           string
	sandbox        string
	stateDir       string
	verbose        bool
	lease          bool // hold a slot of the sandbox meanwhile
}

func newRoot(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "sandbus",
		Short: "Remote hands for coding agents, over a message bus",
		Long: `sandbus runs commands and file operations in sandboxes that dial out to a NATS hub.

Which hub: --hub (or SANDBUS_URL) names one; otherwise the one that runs on this machine ("sandbus up", "sandbus hub");
otherwise exec, ls, cat and cp start a hub and a worker of their own for the current directory and stop them afterwards.

Which sandbox: --sandbox (or SANDBUS_SANDBOX), or ID: before a path; otherwise the only live one.`,
		Example: `  sandbus exec -- uname -a             run a command here, through a bus of its own
  sandbus up                           hub and one worker for this directory, until Ctrl-C
  sandbus ps                           the live sandboxes
  sandbus exec -s box1 -- make test    run a command in box1
  sandbus cp box1:out.txt .            copy a file from box1`,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	f := root.PersistentFlags()
	f.StringVar(&a.url, "hub", "", "the hub's `URL`, such as tls://hub:4222 or wss://hub:443 (environment: SANDBUS_URL)")
	f.StringVar(&a.creds, "creds", "", "`file` with the credential (environment: SANDBUS_CREDS, or SANDBUS_TOKEN with its text)")
	f.StringVar(&a.credsCommand, "creds-command", "", "`program` that prints the credential, words separated by spaces (environment: SANDBUS_CREDS_COMMAND)")
	f.StringVar(&a.ca, "tls-ca", "", "`file` with the certificates of the authorities to trust for the hub's (environment: SANDBUS_CA)")
	f.BoolVar(&a.insecure, "insecure-no-auth", false, "show no credential, to a hub that believes everybody; for \"sandbus hub\": be such a hub")
	f.StringVar(&a.zone, "zone", "", "the sandbox's `zone` (default main; environment: SANDBUS_ZONE)")
	f.StringVar(&a.stateDir, "state-dir", "", "`directory` by which the hub of this machine is found (environment: SANDBUS_STATE_DIR)")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "say on standard error what happens")
	root.AddCommand(
		newExec(a), newUp(a), newHub(a), newWorker(a), newPs(a), newRegistrar(a), newLs(a), newCat(a), newCp(a), newWatch(a), newShell(a),
		newExecs(a), newLeases(a), newLogs(a), newAttach(a), newKill(a), newPortForward(a), newGateway(a), newAuth(a), newDoctor(a), newVersion(a),
	)
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	return root
}

// wrapArgs makes wrong arguments usage errors, as wrong flags are.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return &usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

// execStatus is the exit status for how a command ended, and what to say about it.
func execStatus(err error) error {
	if err == nil {
		return nil
	}
	var ee *harnesslib.ExitError
	if !errors.As(err, &ee) {
		if sig, ok := errors.AsType[*interrupted](err); ok {
			return &statusError{signalStatus(sig), err}
		}
		return &statusError{exitExecFailed, err}
	}
	switch o := ee.Outcome; o.Kind {
	case harnesslib.Exited:
		return &statusError{o.Code, nil}
	case harnesslib.Signalled:
		return &statusError{exitSignalsFrom + int(unix.SignalNum("SIG"+o.Signal)), err}
	case harnesslib.TimedOut:
		return &statusError{exitTimedOut, err}
	case harnesslib.StartFailed:
		return &statusError{o.Code, err}
	case harnesslib.Aborted:
		if sig, ok := errors.AsType[*interrupted](err); ok {
			return &statusError{signalStatus(sig), err}
		}
	case harnesslib.OutputLimit, harnesslib.OOM, harnesslib.Lost:
	}
	return &statusError{exitExecFailed, err}
}

func signalStatus(i *interrupted) int {
	if sig, ok := i.sig.(syscall.Signal); ok {
		return exitSignalsFrom + int(sig)
	}
	return exitExecFailed
}
