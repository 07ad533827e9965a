package testenv

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// Main runs a package's tests, then what is to be cleaned up after all of them, and fails when they leave goroutines or
// child processes behind.
func Main(m *testing.M, after ...func()) {
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // what go test was started with is nobody's business
	code := m.Run()
	for _, f := range after {
		f()
	}
	if code == 0 {
		if err := leftovers(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // a test's main
}

// leftovers waits a little for what is on its way out.
func leftovers() error {
	if err := goleak.Find(); err != nil {
		return err
	}
	var left []string
	for range 100 {
		if left = children(); len(left) == 0 {
			return nil
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // there is nothing to wait on
	}
	return fmt.Errorf("processes are left behind: %v", left)
}

// children lists the processes of which this one is the parent.
func children() []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var left []string
	for _, e := range entries {
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			left = append(left, fmt.Sprintf("%s %q state %s", e.Name(), cmd, f[0]))
		}
	}
	return left
}
