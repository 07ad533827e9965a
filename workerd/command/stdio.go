package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/workerd"
)

const stdioHelp = "serve one harness over the standard input and output instead of a hub, without a credential, until the input ends"

// errStdioHub says that the worker was told of two to serve.
var errStdioHub = errors.New("--stdio: a hub or a credential is set, too: want neither, who has the pipes is the harness")

// stdio serves over the standard input and output. The log goes to the standard error.
func (o *options) stdio(ctx context.Context, name string, stderr io.Writer) int {
	if o.cfg.URL != "" || o.token != "" || o.credsFile != "" || len(o.credsCommand) > 0 || o.tokenFD != 0 || o.insecure || o.id != "" || o.zone != bus.DefaultZone {
		return fail(stderr, name, exitUsage, errStdioHub)
	}
	keepInherited()
	debug.SetGCPercent(400) // as for a hub's
	o.cfg.Pipes, o.cfg.StateDir = true, ""
	o.cfg.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: o.level}))
	// A harness that is gone must not end the worker before its commands: it reads no output and no log then. A handler,
	// unlike ignoring, is not handed on to commands.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	// A Close of the input must end a Read, for which the runtime has to know that it may wait for it.
	if err := syscall.SetNonblock(0, true); err != nil {
		return fail(stderr, name, exitFailed, err)
	}
	in := os.NewFile(0, "stdin")
	w, err := workerd.New(o.cfg)
	if err != nil {
		return fail(stderr, name, exitUsage, err)
	}
	if err := w.RunPipes(ctx, in, os.Stdout); err != nil && ctx.Err() == nil {
		return fail(stderr, name, exitFailed, err)
	}
	return 0
}
