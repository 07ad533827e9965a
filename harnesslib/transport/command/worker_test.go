package command_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
	"github.com/sandbus/sandbus/internal/testenv"
)

var declaredWorker = transport.Declaration{FastTier: transport.FastNative, StopMechanism: transport.StopRemoteAbort, Streams: true}

var built struct {
	once sync.Once
	dir  string
	path string
	err  error
	said []byte
}

// workerd is the binary, built once.
func workerd(tb testing.TB) string {
	tb.Helper()
	tool := testenv.Tool(tb, "go")
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "sandbus-test-"); built.err != nil { //nolint:usetesting // it outlives this test: TestMain removes it
			return
		}
		built.path = built.dir + "/workerd"
		cmd := exec.Command(tool, "build", "-buildvcs=false", "-o", built.path, "github.com/sandbus/sandbus/cmd/workerd")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		built.said, built.err = cmd.CombinedOutput()
	})
	require.NoError(tb, built.err, "%s", built.said)
	return built.path
}

func openWorker(tb testing.TB, cfg command.WorkerConfig) *command.Worker {
	tb.Helper()
	tr, err := command.NewWorker(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, tr.Close()) })
	return tr
}

func workerOpener(cfg command.WorkerConfig) func(tb testing.TB) transport.Transport {
	return func(tb testing.TB) transport.Transport {
		tb.Helper()
		return openWorker(tb, cfg)
	}
}

// near is a worker behind the prefix that stands for docker exec.
func near(tb testing.TB) command.WorkerConfig {
	tb.Helper()
	return command.WorkerConfig{Config: command.Config{Prefix: []string{"env", "-i", "bash"}, PrefixIsShell: true}, Worker: workerd(tb)}
}

func TestWorkerConformance(t *testing.T) {
	cfg := near(t)
	conformance.Run(t, workerOpener(cfg), declaredWorker)
}

// TestWorkerOnShells: each shell makes way for the worker, and takes nothing of what is meant for it.
func TestWorkerOnShells(t *testing.T) {
	path := workerd(t)
	for name, prefix := range shells(t) {
		t.Run(name, func(t *testing.T) {
			tr := openWorker(t, command.WorkerConfig{Config: command.Config{Prefix: prefix, PrefixIsShell: true, Dir: t.TempDir()}, Worker: path})
			require.NoError(t, tr.Files().WriteFile(t.Context(), "f", []byte("content"), 0o644))
			res := run(t, tr, transport.Command{Script: "cat f"})
			require.Equal(t, "content", string(res.Stdout))
			require.Equal(t, transport.TierFast, res.Tier)
			require.Equal(t, declaredWorker, transport.Declared(tr))
			require.Equal(t, command.Stats{Processes: 1}, tr.Stats())
		})
	}
}

// pidOf asks a worker for a process of it: the parent of its warm shell.
func pidOf(t *testing.T, tr transport.Transport) int {
	t.Helper()
	var out bytes.Buffer
	_, err := tr.Exec(t.Context(), transport.Command{Script: "echo $PPID", Stdout: &out})
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	require.NoError(t, err)
	return pid
}

// killWorker ends the worker W, and itself when that is gone: nobody else would end it.
const killWorker = `kill -9 $W; while [ -d /proc/$W ]; do sleep 0.01; done`

// TestWorkerKilled: what was under way is lost, and the next operation starts another one.
func TestWorkerKilled(t *testing.T) {
	cfg := near(t)
	cfg.Dir = t.TempDir()
	tr := openWorker(t, cfg)
	pid := pidOf(t, tr)
	for name, c := range map[string]transport.Command{
		"collected": {Script: "echo ran >>ran; " + killWorker},
		"streaming": {Script: "echo ran >>ran; " + killWorker, Stdout: &bytes.Buffer{}},
	} {
		t.Run(name, func(t *testing.T) {
			c.Env = []string{fmt.Sprintf("W=%d", pidOf(t, tr))}
			_, err := tr.Exec(t.Context(), c)
			require.ErrorIs(t, err, transport.ErrLost)
			require.NotErrorIs(t, err, transport.ErrClosed)
			require.NotEqual(t, pid, pidOf(t, tr))
		})
	}
	b, err := tr.Files().ReadFile(t.Context(), "ran")
	require.NoError(t, err)
	require.Equal(t, "ran\nran\n", string(b), "what may have run is not run again")
	once := transport.Command{Script: "[ -e once ] && echo second || { : >once; " + killWorker + "; }", Repeatable: true}
	once.Env = []string{fmt.Sprintf("W=%d", pidOf(t, tr))}
	require.Equal(t, "second\n", string(run(t, tr, once).Stdout))
	require.Equal(t, int64(1), tr.Stats().Fallbacks)
}

// TestWorkerLeavesNothing: when the transport is closed the worker, its shells and its commands are gone.
func TestWorkerLeavesNothing(t *testing.T) {
	cfg := near(t)
	cfg.Dir = t.TempDir()
	tr := openWorker(t, cfg)
	worker := pidOf(t, tr)
	first := &signalled{first: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := tr.Exec(t.Context(), transport.Command{Script: "echo $$ >pid; echo up; sleep 300", Stdout: first})
		ended <- err
	}()
	<-first.first
	b, err := os.ReadFile(cfg.Dir + "/pid")
	require.NoError(t, err)
	command, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	require.ErrorIs(t, <-ended, transport.ErrClosed)
	for _, pid := range []int{worker, command} {
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, time.Minute, 10*time.Millisecond)
	}
	_, err = tr.Exec(t.Context(), transport.Command{Script: "true"})
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.Files().ReadFile(t.Context(), "pid")
	require.ErrorIs(t, err, transport.ErrClosed)
}

// TestNoWorker: where none can be started the shell serves, which shows, and nothing hangs.
func TestNoWorker(t *testing.T) {
	dir := t.TempDir()
	foreign := dir + "/foreign"
	elf := make([]byte, 4096) // the head of a program for a machine that there is not
	copy(elf, "\x7fELF\x02\x01\x01")
	elf[16], elf[18], elf[19], elf[20] = 2, 0xad, 0xde, 1
	require.NoError(t, writeScript(foreign, string(elf)))
	ends, babbles := dir+"/ends", dir+"/babbles"
	require.NoError(t, writeScript(ends, "#!/bin/sh\necho 'no such flag' >&2; exit 2\n"))
	require.NoError(t, writeScript(babbles, "#!/bin/sh\nexec yes\n"))
	for name, c := range map[string]struct{ path, want string }{
		"not there":            {"no-such-workerd", "it is not there"},
		"of another machine":   {foreign, "xec format error"},
		"does not serve":       {ends, "no such flag"},
		"says something else":  {babbles, "want \\\"sandbus-pipe/1\\\""},
		"directory not there ": {workerd(t), "no-such-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log lockedBuffer
			cfg := near(t)
			cfg.Worker, cfg.Logger = c.path, slog.New(slog.NewTextHandler(&log, nil))
			if cfg.Dir = t.TempDir(); c.want == "no-such-dir" {
				cfg.Dir = "/no-such-dir"
			}
			tr := openWorker(t, cfg)
			require.Equal(t, declaredWorker, transport.Declared(tr))
			res, err := tr.Exec(t.Context(), transport.Command{Script: "echo shell"})
			require.Contains(t, log.String(), c.want)
			require.Equal(t, declared, transport.Declared(tr))
			if c.want == "no-such-dir" {
				require.NotZero(t, tr.Stats().Fallbacks)
				require.ErrorContains(t, err, "no-such-dir")
				return
			}
			require.NoError(t, err)
			require.Equal(t, int64(1), tr.Stats().Fallbacks)
			require.Equal(t, "shell\n", string(res.Stdout))
			require.NoError(t, tr.Files().WriteFile(t.Context(), "f", []byte("x"), 0o644))
			require.Equal(t, int64(2), tr.Stats().Fallbacks)
			require.Equal(t, 1, strings.Count(log.String(), `msg="no worker`), "it is not looked for again")
		})
	}
	t.Run("no way in", func(t *testing.T) {
		tr := openWorker(t, command.WorkerConfig{Config: command.Config{Prefix: wrapper(t, "echo 'No such container: box' >&2; exit 1")}})
		_, err := tr.Exec(t.Context(), transport.Command{Script: "true"})
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorContains(t, err, "No such container: box")
	})
	for _, cfg := range []command.WorkerConfig{
		{}, {Config: command.Config{Prefix: []string{"sh"}}, InstallWorker: "/no/such/file"}, {Config: command.Config{Prefix: []string{"sh"}}, Worker: "a\x00b"},
	} {
		_, err := command.NewWorker(cfg)
		require.Error(t, err)
	}
}

// TestInstallWorker: it is copied in once, into a directory that is gone after Close.
func TestInstallWorker(t *testing.T) {
	tmp := t.TempDir()
	cfg := command.WorkerConfig{
		Config: command.Config{Prefix: []string{"env", "-i", "TMPDIR=" + tmp, "sh"}, PrefixIsShell: true}, Worker: "no-such-workerd", InstallWorker: workerd(t),
	}
	tr := openWorker(t, cfg)
	pid := pidOf(t, tr)
	found, err := filepath.Glob(tmp + "/sandbus-worker-*/workerd")
	require.NoError(t, err)
	require.Len(t, found, 1)
	info, err := os.Stat(filepath.Dir(found[0]))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), "of the directory")
	require.Zero(t, tr.Stats().Fallbacks)
	require.Equal(t, declaredWorker, transport.Declared(tr))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool {
		var out bytes.Buffer
		_, err := tr.Exec(t.Context(), transport.Command{Script: "echo $PPID", Stdout: &out})
		return err == nil && strings.TrimSpace(out.String()) != strconv.Itoa(pid)
	}, time.Minute, 10*time.Millisecond)
	found, err = filepath.Glob(tmp + "/*/workerd")
	require.NoError(t, err)
	require.Len(t, found, 1, "the copy serves again")
	require.NoError(t, tr.Close())
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestWorkerLargeInput: 50 MiB go in and come out through the pipes.
func TestWorkerLargeInput(t *testing.T) {
	tr := openWorker(t, near(t))
	const size = 50 << 20
	sum := sha256.New()
	in := io.TeeReader(io.LimitReader(&numbers{}, size), sum)
	res := run(t, tr, transport.Command{Script: "sha256sum", Stdin: in})
	require.Equal(t, hex.EncodeToString(sum.Sum(nil)), strings.Fields(string(res.Stdout))[0])
	back := sha256.New()
	_, err := tr.Exec(t.Context(), transport.Command{Script: "cat", Stdin: io.LimitReader(&numbers{}, size), Stdout: back})
	require.NoError(t, err)
	require.Equal(t, sum.Sum(nil), back.Sum(nil))
}

// numbers is input that no piece of repeats soon.
type numbers struct{ n uint32 }

func (r *numbers) Read(b []byte) (int, error) {
	for i := range b {
		r.n = r.n*1664525 + 1013904223
		b[i] = byte(r.n >> 24)
	}
	return len(b), nil
}

// TestWorkerStops: a timeout and an abort end what runs at the far side.
func TestWorkerStops(t *testing.T) {
	tr := openWorker(t, near(t))
	_, err := tr.Exec(t.Context(), transport.Command{Script: "sleep 300", Timeout: 100 * time.Millisecond})
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	ctx, cancel := context.WithCancelCause(t.Context())
	first := &signalled{first: make(chan struct{})}
	go func() {
		<-first.first
		cancel(io.ErrNoProgress)
	}()
	_, err = tr.Exec(ctx, transport.Command{Script: "echo up; sleep 300", Stdout: first})
	ae := &transport.AbortError{}
	require.ErrorAs(t, err, &ae)
	require.ErrorIs(t, ae.Cause, io.ErrNoProgress)
	require.Equal(t, int64(1), tr.Stats().Processes)
}
