package main

import (
	"os"
	"testing"

	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/loadtest/rig"
)

// mainVar makes this binary the command itself, for signals.
const mainVar = "SANDBUS_TEST_LOADTEST"

func TestMain(m *testing.M) {
	if status, ran := rig.Role(); ran {
		os.Exit(status) //nolint:forbidigo // a test's main
	}
	if os.Getenv(mainVar) != "" {
		_ = os.Unsetenv(mainVar)
		main()
	}
	testenv.Main(m)
}
