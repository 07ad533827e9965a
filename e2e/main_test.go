package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// enabled skips a test unless the end-to-end tests were asked for.
func enabled(t *testing.T) {
	t.Helper()
	testenv.Need(t, "e2e", os.Getenv("SANDBUS_E2E") != "")
}

// engine skips a test unless a Docker engine answers.
func engine(t *testing.T) {
	t.Helper()
	enabled(t)
	testenv.Need(t, "docker", exec.CommandContext(t.Context(), "docker", "info", "-f", "{{.ServerVersion}}").Run() == nil)
}

// root is the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	require.NoError(t, err)
	return dir
}

// result is what a program printed, and its exit status.
type result struct {
	stdout, stderr string
	code           int
}

// run runs a program in the repository with an environment beyond ours.
func run(ctx context.Context, t *testing.T, env []string, name string, arg ...string) result {
	t.Helper()
	c := exec.CommandContext(ctx, name, arg...)
	c.Dir = root(t)
	c.Env = append(append(os.Environ(), "DOCKER_BUILDKIT=0"), env...)
	c.WaitDelay = time.Minute // a grandchild that holds the pipes
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		require.NoError(t, err, "%s %s: %s", name, strings.Join(arg, " "), stderr.String())
	}
	return result{stdout.String(), stderr.String(), c.ProcessState.ExitCode()}
}

// must runs a program that has to succeed, and returns what it printed, without the last newline.
func must(t *testing.T, name string, arg ...string) string {
	t.Helper()
	r := run(t.Context(), t, nil, name, arg...)
	require.Zero(t, r.code, "%s %s: %s%s", name, strings.Join(arg, " "), r.stdout, r.stderr)
	return strings.TrimRight(r.stdout, "\n")
}

// afterwards runs a program at the test's end, when t.Context has ended.
func afterwards(t *testing.T, name string, arg ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if r := run(ctx, t, nil, name, arg...); r.code != 0 {
			t.Errorf("%s %s: %s%s", name, strings.Join(arg, " "), r.stdout, r.stderr)
		}
	})
}
