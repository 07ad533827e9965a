package command_test

import (
	"os"
	"testing"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m, func() {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir) // litter at worst
		}
	})
}
