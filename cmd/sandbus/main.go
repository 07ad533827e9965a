// The sandbus binary is the command line of harness, hub and worker: one file for each verb.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := notifyContext(context.Background())
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// interrupted is the cause with which a signal ends a command.
type interrupted struct{ sig os.Signal }

func (i *interrupted) Error() string { return "interrupted by " + i.sig.String() }

// notifyContext ends with the first INT or TERM; a second one kills at once.
func notifyContext(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if sig, ok := <-signals; ok {
			cancel(&interrupted{sig})
			signal.Stop(signals)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
