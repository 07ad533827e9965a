package sandbus_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/bus/hub/hubtest"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd/command"
)

// workerVar makes this binary a worker: some faults need one in a process of its own.
const workerVar = "SANDBUS_TEST_WORKER"

// hubVar makes this binary a hub on the state directory that it names, at the port of hubPortVar.
const (
	hubVar     = "SANDBUS_TEST_HUB"
	hubPortVar = "SANDBUS_TEST_HUB_PORT"
)

func TestMain(m *testing.M) {
	if status, ok := hubtest.Main(); ok {
		os.Exit(status) //nolint:forbidigo // a server that a test has started
	}
	if os.Getenv(workerVar) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := command.Run(ctx, "worker", os.Args[1:], os.Getenv, os.Stdout, os.Stderr, nil, "test")
		stop()
		os.Exit(code) //nolint:forbidigo // a test's main
	}
	if dir := os.Getenv(hubVar); dir != "" {
		if err := hubProcess(dir); err != nil {
			fmt.Fprintln(os.Stderr, "hub:", err)
			os.Exit(1) //nolint:forbidigo // a test's main
		}
		return
	}
	testenv.Main(m)
}

// hubProcess runs a hub until its standard input is closed; it prints its URL.
func hubProcess(dir string) error {
	port, err := strconv.Atoi(os.Getenv(hubPortVar))
	if err != nil {
		return err
	}
	h, err := hub.Start(context.Background(), hub.Config{Dir: dir, Port: port})
	if err != nil {
		return err
	}
	defer h.Stop()
	fmt.Println(h.URL())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
