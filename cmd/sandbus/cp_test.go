package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cli runs one command line with a hub and a worker of its own, in a new current directory.
func cli(t *testing.T, args ...string) (status int, stderr string) {
	t.Helper()
	for _, name := range []string{"SANDBUS_URL", "SANDBUS_CREDS", "SANDBUS_TOKEN", "SANDBUS_SANDBOX", "SANDBUS_ZONE"} {
		t.Setenv(name, "")
	}
	t.Setenv("SANDBUS_STATE_DIR", t.TempDir())
	var errs bytes.Buffer
	status = run(t.Context(), args, strings.NewReader("from stdin"), io.Discard, &errs)
	return status, errs.String()
}

func TestCpFiles(t *testing.T) {
	t.Chdir(t.TempDir()) // the sandbox's directory, too
	require.NoError(t, os.WriteFile("small", []byte("small\n"), 0o751))
	large := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB: in the resumable way
	require.NoError(t, os.WriteFile("large", []byte(large), 0o640))
	require.NoError(t, os.Mkdir("d", 0o755))
	for _, args := range [][]string{
		{"small", ":up"}, {":small", "down"}, {"small", ":d"}, {":small", "./d/"}, {"large", ":upl"}, {":large", "downl"}, {"-", ":in"},
	} {
		status, stderr := cli(t, append([]string{"cp"}, args...)...)
		require.Zero(t, status, stderr)
	}
	for name, want := range map[string]string{
		"up": "small\n", "down": "small\n", "d/small": "small\n", "upl": large, "downl": large, "in": "from stdin",
	} {
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, want == string(got), name)
	}
	info, err := os.Stat("down")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o751), info.Mode())
	parts, err := filepath.Glob(".sandbus*")
	require.NoError(t, err)
	require.Empty(t, parts)

	status, stderr := cli(t, "cp", "d", ":x")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "copy d: is a directory; use -r")
	status, stderr = cli(t, "cp", ":absent", "x")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "not found")
	status, _ = cli(t, "cp", "a", "b")
	require.Equal(t, exitUsage, status)
}

func TestCpTree(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("src/sub", 0o755))
	require.NoError(t, os.WriteFile("src/sub/f", []byte("f"), 0o644))
	require.NoError(t, os.Symlink("sub/f", "src/link"))
	require.NoError(t, syscall.Mkfifo("src/fifo", 0o644))
	require.NoError(t, os.Mkdir("there", 0o755))
	for _, args := range [][]string{{"src", ":new"}, {"src", ":there"}, {"src/.", ":content"}, {":src", "out"}, {":src", "there"}} {
		for range 2 {
			status, stderr := cli(t, append([]string{"cp", "-r"}, args...)...)
			require.Zero(t, status, stderr)
		}
	}
	for _, dir := range []string{"new", "there/src", "content", "out"} {
		got, err := os.ReadFile(dir + "/link")
		require.NoError(t, err)
		require.Equal(t, "f", string(got))
	}
	require.NoError(t, os.Symlink("/etc", "src/etc"))
	status, stderr := cli(t, "cp", "-r", ":src/.", "out")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, `archive entry "etc" refused: a link to an absolute path: "/etc"`)
	_, err := os.Lstat("out/etc")
	require.ErrorIs(t, err, os.ErrNotExist)
	status, stderr = cli(t, "cp", "-r", "src", ":/proc/nowhere")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "sandbus: ")
}

// lines is a Writer that tells of each line.
type lines struct{ to chan string }

func (l lines) Write(b []byte) (int, error) {
	l.to <- string(b)
	return len(b), nil
}

func TestWatchVerb(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("w", 0o755))
	t.Setenv("SANDBUS_STATE_DIR", t.TempDir())
	t.Setenv("SANDBUS_URL", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	out := lines{make(chan string, 100)} // more than the lines that come
	ended := make(chan int, 1)
	var errs bytes.Buffer
	go func() { ended <- run(ctx, []string{"watch", "--json", ":w"}, nil, out, &errs) }()
	var line watchLine
	tick := time.NewTicker(50 * time.Millisecond) // the watch is in place some time after the start
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for line.Path == "" {
		select {
		case got := <-out.to:
			require.NoError(t, json.Unmarshal([]byte(got), &line))
		case <-tick.C:
			require.NoError(t, os.WriteFile("w/file", []byte("x"), 0o644))
		case <-limit:
			require.Fail(t, "no event", errs.String())
		}
	}
	require.Equal(t, "file", line.Path)
	cancel(&interrupted{syscall.SIGINT})
	require.Equal(t, 130, <-ended, errs.String())
}
