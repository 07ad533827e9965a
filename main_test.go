package sandbus_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/sandbus/sandbus/bus/hub/hubtest"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd/command"
)

// workerVar makes this binary a worker: some faults need one in a process of its own.
const workerVar = "SANDBUS_TEST_WORKER"

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
	testenv.Main(m)
}
