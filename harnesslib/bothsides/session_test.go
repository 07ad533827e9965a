package bothsides

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd"
)

// onEachShell runs a test on a sandbox for every shell of this machine.
func onEachShell(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	for name, path := range testenv.Shells(t) {
		t.Run(name, func(t *testing.T) { test(t, start(t, func(c *workerd.Config) { c.Shell = path })) })
	}
}

func (p *place) session(t *testing.T, name string) *harnesslib.Session {
	t.Helper()
	s, err := p.Session(t.Context(), name, "")
	require.NoError(t, err)
	return s
}

// code is the exit code that an error stands for.
func code(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var ee *harnesslib.ExitError
	require.ErrorAs(t, err, &ee)
	require.Equal(t, harnesslib.Exited, ee.Outcome.Kind)
	return ee.Outcome.Code
}

func TestC20StrictModeStaysInItsExec(t *testing.T) {
	p := start(t, nil)
	for range 3 {
		_, err := p.ScriptCommand("set -euo pipefail; false").Output(t.Context())
		require.Equal(t, 1, code(t, err))
		out, err := p.ScriptCommand("false; echo $undefined ok").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "ok\n", string(out))
	}
}

func TestC21ExitInASession(t *testing.T) {
	onEachShell(t, func(t *testing.T, p *place) {
		s := p.session(t, "work")
		require.NoError(t, os.Mkdir(filepath.Join(p.dir, "sub"), 0o700))
		res, err := s.Run(t.Context(), "cd sub; V=1")
		require.NoError(t, err)
		require.True(t, res.Fresh)
		require.Equal(t, p.dir+"/sub", res.Dir)
		res, err = s.Run(t.Context(), "echo $V; echo e >&2; exit 7")
		require.Equal(t, 7, code(t, err))
		require.True(t, res.Lost)
		require.Equal(t, "1\n", string(res.Stdout))
		require.Equal(t, "e\n", string(res.Stderr))
		res, err = s.Run(t.Context(), "echo [$V]; pwd")
		require.NoError(t, err)
		require.Equal(t, "[]\n"+p.dir+"/sub\n", string(res.Stdout))
		require.True(t, res.Fresh)
	})
}

func TestC27DirectoryThatIsGone(t *testing.T) {
	onEachShell(t, func(t *testing.T, p *place) {
		s := p.session(t, "work")
		_, err := s.Run(t.Context(), "mkdir d; cd d; rm -rf ../d")
		require.NoError(t, err)
		res, err := s.Run(t.Context(), "pwd")
		require.NoError(t, err)
		require.Equal(t, p.dir+"/d", res.Gone)
		require.Equal(t, "/", res.Dir)
		require.Equal(t, "/\n", string(res.Stdout))
		cmd := s.Command("pwd")
		cmd.Dir = "nowhere"
		_, err = cmd.Run(t.Context())
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee)
		require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind)
		require.Equal(t, "cwd", ee.Outcome.Stage)
		require.ErrorContains(t, err, "nowhere")
	})
}

// TestC29OnlyBusybox has the same contract where the only program is a busybox.
func TestC29OnlyBusybox(t *testing.T) {
	busybox := testenv.Tool(t, "busybox")
	bin := t.TempDir()
	for _, name := range []string{"sh", "busybox", "cat", "sleep"} {
		require.NoError(t, os.Symlink(busybox, filepath.Join(bin, name)))
	}
	t.Setenv("PATH", bin)
	p := start(t, nil)
	out, err := p.ScriptCommand("cd /; export A=1; echo out; (exit 3)").Output(t.Context())
	require.Equal(t, 3, code(t, err))
	require.Equal(t, "out\n", string(out))
	out, err = p.ScriptCommand("pwd; echo [$A]").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, p.dir+"\n[]\n", string(out))
	cmd := p.ScriptCommand("printf start; while :; do :; done")
	cmd.Timeout = 200 * time.Millisecond
	out, err = cmd.Output(t.Context())
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	require.Equal(t, "start", string(out))
	s := p.session(t, "work")
	_, err = s.Run(t.Context(), "V=1")
	require.NoError(t, err)
	res, err := s.Run(t.Context(), "echo $V")
	require.NoError(t, err)
	require.Equal(t, "1\n", string(res.Stdout))
	cat := p.Command("cat")
	cat.Stdin = strings.NewReader("in")
	out, err = cat.Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "in", string(out))
}

// TestC29NoShell has files and argv execs where there is no shell.
func TestC29NoShell(t *testing.T) {
	cat := testenv.Tool(t, "cat")
	t.Setenv("PATH", t.TempDir())
	p := start(t, nil)
	require.NoError(t, p.WriteFile(t.Context(), "f", []byte("content"), 0o600))
	out, err := p.Command(cat, "f").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "content", string(out))
	stream := p.ScriptCommand("echo x")
	stream.Stdin = strings.NewReader("") // has the stream tier take it
	for name, cmd := range map[string]*harnesslib.Cmd{"fast": p.ScriptCommand("echo x"), "stream": stream} {
		_, err = cmd.Output(t.Context())
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee, name)
		require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind)
		require.Equal(t, "shell", ee.Outcome.Stage)
		require.ErrorIs(t, err, syscall.ENOENT)
	}
	_, err = p.Session(t.Context(), "work", "")
	require.ErrorContains(t, err, "no shell")
	list, err := p.Sessions(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
}

// TestC30FirstInFirstOut sends many commands to one session at once, each when the one before is known to wait.
func TestC30FirstInFirstOut(t *testing.T) {
	onEachShell(t, func(t *testing.T, p *place) {
		s := p.session(t, "work")
		fifo := filepath.Join(p.dir, "go")
		require.NoError(t, exec.CommandContext(t.Context(), "mkfifo", fifo).Run())
		var wg sync.WaitGroup
		run := func(i int, script string) {
			wg.Go(func() {
				res, err := s.Run(t.Context(), script)
				if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n", i) || string(res.Stderr) != fmt.Sprintf("e%d\n", i) {
					t.Error(i, err, res)
				}
			})
			require.Eventually(t, func() bool {
				list, err := p.Sessions(t.Context())
				return err == nil && len(list) == 1 && list[0].Busy && list[0].Queued == i
			}, 10*time.Second, time.Millisecond, "exec %d has arrived", i)
		}
		run(0, "read x <go; N=1; echo 0; echo e0 >&2")
		for i := 1; i < 10; i++ {
			run(i, fmt.Sprintf("[ $((N)) = %d ] || echo order; echo %d; echo e%d >&2; N=$((N + 1))", i, i, i))
		}
		require.NoError(t, os.WriteFile(fifo, []byte("go\n"), 0o600))
		wg.Wait()
	})
}

func TestC31TemporaryDirectoryIsRuined(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	p := start(t, nil)
	s := p.session(t, "work")
	for _, script := range []string{"rm -rf $TMPDIR/* $TMPDIR/.[!.]*", "chmod 000 $TMPDIR", "chmod 700 $TMPDIR; rm -rf $TMPDIR"} {
		_, _ = p.ScriptCommand(script).Output(t.Context()) // fails where there is nothing to delete
		out, err := p.ScriptCommand("echo ok").Output(t.Context())
		require.NoError(t, err, script)
		require.Equal(t, "ok\n", string(out))
		res, err := s.Run(t.Context(), "echo ok")
		require.NoError(t, err, script)
		require.Equal(t, "ok\n", string(res.Stdout))
		out, err = p.Command("echo", "ok").Output(t.Context())
		require.NoError(t, err, script)
		require.Equal(t, "ok\n", string(out))
	}
}

func TestC32TimeoutSparesTheSession(t *testing.T) {
	onEachShell(t, func(t *testing.T, p *place) {
		s := p.session(t, "work")
		_, err := s.Run(t.Context(), "V=1; f() { echo f; }")
		require.NoError(t, err)
		cmd := s.Command("printf start; while :; do :; done")
		cmd.Timeout = time.Second
		res, err := cmd.Run(t.Context())
		require.ErrorIs(t, err, harnesslib.ErrTimedOut)
		require.Equal(t, "start", string(res.Stdout))
		require.False(t, res.Lost)
		why := errors.New("the user changed his mind")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, why)
		defer cancel()
		_, err = s.Run(ctx, "while :; do f >/dev/null; done")
		require.ErrorIs(t, err, harnesslib.ErrAborted)
		require.ErrorIs(t, err, why)
		res, err = s.Run(t.Context(), "echo $V; f")
		require.NoError(t, err)
		require.Equal(t, "1\nf\n", string(res.Stdout))
	})
}

func TestC36ArgumentThatIsTooLong(t *testing.T) {
	p := start(t, nil)
	err := p.Command("echo", strings.Repeat("x", 131072)).Run(t.Context())
	require.ErrorContains(t, err, "131072 bytes")
	require.ErrorContains(t, err, "131071")
	out, err := p.ScriptCommand(":" + strings.Repeat(" ", 900_000) + "; echo ok").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "ok\n", string(out))
}

func TestSessionsOfAHarness(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.Sessions = 2 })
	s := p.session(t, "one")
	cmd := s.Command("cat; echo $A; pwd")
	cmd.Stdin, cmd.Env, cmd.Dir = make([]byte, 200_000), []string{"A=b\xff"}, "/"
	_, _ = rand.Read(cmd.Stdin)
	res, err := cmd.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, string(cmd.Stdin)+"b\xff\n/\n", string(res.Stdout))
	require.Equal(t, p.dir, res.Dir)
	_, err = s.Run(t.Context(), "V=1; head -c 3000000 /dev/zero")
	require.NoError(t, err, "an answer of several messages")
	again := p.session(t, "one")
	res, err = again.Run(t.Context(), "echo $V")
	require.NoError(t, err)
	require.Equal(t, "1\n", string(res.Stdout), "the same session")
	p.session(t, "two")
	_, err = p.Session(t.Context(), "three", "")
	require.ErrorIs(t, err, harnesslib.ErrBusy)
	require.ErrorContains(t, err, "the bound is 2")
	list, err := p.Sessions(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "one", list[0].Name)

	cred, err := p.bus.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "other"})
	require.NoError(t, err)
	h, err := harnesslib.Connect(t.Context(), harnesslib.Config{URL: p.bus.URL(), Dial: p.bus.Dial, Token: cred.Token()})
	require.NoError(t, err)
	defer h.Close()
	sb, err := h.Sandbox("box")
	require.NoError(t, err)
	list, err = sb.Sessions(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "another harness does not see them")
	require.NoError(t, s.Close(t.Context()))
	theirs, err := sb.Session(t.Context(), "one", "/")
	require.NoError(t, err)
	res, err = theirs.Run(t.Context(), "pwd; echo [$V]")
	require.NoError(t, err)
	require.Equal(t, "/\n[]\n", string(res.Stdout))

	_, err = again.Run(t.Context(), "echo $V")
	require.ErrorIs(t, err, harnesslib.ErrNoSession)
	require.ErrorContains(t, err, `"one"`)
	require.ErrorIs(t, s.Close(t.Context()), harnesslib.ErrNoSession)
	_, err = p.Session(t.Context(), "No.Such", "")
	require.ErrorContains(t, err, "63")
	_, err = p.Session(t.Context(), "two2", "/nowhere")
	require.ErrorContains(t, err, "/nowhere")
}
