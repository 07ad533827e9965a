// The loadtest command answers how many harness sessions can share how many sandboxes, what bounds them, and what each
// transport costs for a file operation. It needs nothing but this repository:
//
//	go run ./loadtest run --arms echo,bus-native --rungs 1,4,16
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandbus/sandbus/loadtest/rig"
)

func main() {
	if status, ran := rig.Role(); ran { // one of the rig's processes
		os.Exit(status)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once
	status := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
