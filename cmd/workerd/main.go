// The workerd binary serves one sandbox. It is static and needs nothing at run time.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandbus/sandbus/workerd/command"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once
	os.Exit(command.Run(ctx, "workerd", os.Args[1:], os.Getenv, os.Stdout, os.Stderr, nil, version))
}
