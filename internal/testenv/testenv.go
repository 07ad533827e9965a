// Package testenv says what a test may use on this machine.
package testenv

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Need skips a test loudly when a thing is absent, and fails it when SANDBUS_REQUIRE (names separated by commas) says
// that the thing must be there: so CI cannot pass by skipping.
func Need(tb testing.TB, name string, present bool) {
	tb.Helper()
	if present {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("SANDBUS_REQUIRE"), ","), name) {
		tb.Fatalf("%s is absent, and SANDBUS_REQUIRE names it", name)
	}
	tb.Skipf("SKIPPED: %s is absent on this machine", name)
}

// Tool returns the path of a program, or skips the test.
func Tool(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	Need(tb, name, err == nil)
	return path
}

// Shells are the shells that the worker knows: those of them that this machine has. It skips when there is none.
func Shells(tb testing.TB) map[string]string {
	tb.Helper()
	found := map[string]string{}
	for _, name := range []string{"bash", "dash", "busybox"} {
		if path, err := exec.LookPath(name); err == nil {
			found[name] = path
		} else if slices.Contains(strings.Split(os.Getenv("SANDBUS_REQUIRE"), ","), name) {
			tb.Fatalf("%s is absent, and SANDBUS_REQUIRE names it", name)
		}
	}
	Need(tb, "shell", len(found) > 0)
	return found
}
