package bus_test

import (
	"os"
	"testing"

	"github.com/sandbus/sandbus/bus/hub/hubtest"
	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) {
	if status, ok := hubtest.Main(); ok {
		os.Exit(status) //nolint:forbidigo // a server that a test has started
	}
	testenv.Main(m)
}
