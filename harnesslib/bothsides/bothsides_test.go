package bothsides

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd"
)

// place is a sandbox with its worker, seen from a harness.
type place struct {
	*harnesslib.Sandbox
	hub *harnesslib.Hub
	bus *bustest.Bus
	dir string
}

// start runs a hub and a worker in this process for the length of the test. change, when not nil, adjusts the worker.
func start(tb testing.TB, change func(*workerd.Config)) *place {
	tb.Helper()
	b := bustest.Start(tb)
	dir := tb.TempDir()
	startWorker(tb, b, "box", func(c *workerd.Config) {
		c.Dir = dir
		if change != nil {
			change(c)
		}
	})
	h := connect(tb, b)
	sb, err := h.Sandbox("box")
	require.NoError(tb, err)
	return &place{Sandbox: sb, hub: h, bus: b, dir: dir}
}

func connect(tb testing.TB, b *bustest.Bus) *harnesslib.Hub {
	tb.Helper()
	cred, err := b.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "test"})
	require.NoError(tb, err)
	h, err := harnesslib.Connect(tb.Context(), harnesslib.Config{URL: b.URL(), Dial: b.Dial, Token: cred.Token(), Logger: bustest.Logger(tb)})
	require.NoError(tb, err)
	tb.Cleanup(h.Close)
	return h
}

// startWorker runs a worker and returns when it is known at the hub. stop ends it and waits.
func startWorker(tb testing.TB, b *bustest.Bus, id string, change func(*workerd.Config)) (stop func()) {
	tb.Helper()
	cred, err := b.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: id})
	require.NoError(tb, err)
	ready := make(chan struct{})
	cfg := workerd.Config{
		URL: b.URL(), Dial: b.Dial, Credential: cred, StopGrace: 100 * time.Millisecond, Logger: bustest.Logger(tb),
		OnReady: func() { close(ready) },
	}
	change(&cfg)
	w, err := workerd.New(cfg)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel(errors.New("the test is over"))
		require.NoError(tb, <-ended)
	}
	tb.Cleanup(stop)
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(tb, err, "worker")
	}
	return stop
}

func TestExecKeepsStreamsApart(t *testing.T) {
	p := start(t, nil)
	for _, tier := range []string{"fast", "stream"} {
		t.Run(tier, func(t *testing.T) {
			var out, errOut bytes.Buffer
			var err error
			script := "echo out; echo err >&2; exit 3"
			if tier == "fast" {
				cmd := p.ScriptCommand(script)
				var b []byte
				b, err = cmd.Output(t.Context())
				out.Write(b)
				var ee *harnesslib.ExitError
				require.ErrorAs(t, err, &ee)
				errOut.Write(ee.Stderr)
			} else {
				cmd := p.Command("sh", "-c", script)
				cmd.Stdout, cmd.Stderr = &out, &errOut
				err = cmd.Run(t.Context())
			}
			var ee *harnesslib.ExitError
			require.ErrorAs(t, err, &ee)
			require.Equal(t, harnesslib.Outcome{Kind: harnesslib.Exited, Code: 3}, ee.Outcome)
			require.Equal(t, "out\n", out.String())
			require.Equal(t, "err\n", errOut.String())
		})
	}
}

func TestOtherShells(t *testing.T) {
	for name, path := range testenv.Shells(t) {
		t.Run(name, func(t *testing.T) {
			p := start(t, func(c *workerd.Config) { c.Shell = path })
			out, err := p.ScriptCommand("cd / && pwd").Output(t.Context())
			require.NoError(t, err)
			require.Equal(t, "/\n", string(out))
			cmd := p.ScriptCommand("cat; exit 4")
			cmd.Stdin = strings.NewReader("in")
			out, err = cmd.Output(t.Context())
			var ee *harnesslib.ExitError
			require.ErrorAs(t, err, &ee)
			require.Equal(t, 4, ee.Outcome.Code)
			require.Equal(t, "in", string(out))
		})
	}
}

func TestExecStdin(t *testing.T) {
	p := start(t, nil)
	data := make([]byte, 5_000_000)
	_, _ = rand.Read(data)
	cmd := p.Command("cat")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output(t.Context())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, out), "%d bytes came back", len(out))

	cmd = p.Command("head", "-c", "10")
	cmd.Stdin = bytes.NewReader(data)
	out, err = cmd.Output(t.Context())
	require.NoError(t, err, "a reader that stops early is no error")
	require.Equal(t, data[:10], out)
}

func TestExecEnvironmentAndDirectory(t *testing.T) {
	p := start(t, nil)
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "it's a dir"), 0o755))
	for name, cmd := range map[string]*harnesslib.Cmd{
		"fast":   p.ScriptCommand(`printf '%s|' "$A" "$B" "$PAGER"; pwd`),
		"stream": p.Command("sh", "-c", `printf '%s|' "$A" "$B" "$PAGER"; pwd`),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Env = []string{"A=it's\n\"x\" $HOME", "B=\xff\xfe"}
			cmd.Dir = "it's a dir"
			out, err := cmd.Output(t.Context())
			require.NoError(t, err)
			require.Equal(t, "it's\n\"x\" $HOME|\xff\xfe|cat|"+p.dir+"/it's a dir\n", string(out))
		})
	}
	for name, cmd := range map[string]*harnesslib.Cmd{"fast": p.ScriptCommand("pwd"), "stream": p.Command("pwd")} {
		t.Run(name+" missing", func(t *testing.T) {
			cmd.Dir = "nowhere"
			_, err := cmd.Output(t.Context())
			var ee *harnesslib.ExitError
			require.ErrorAs(t, err, &ee)
			require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind)
			require.Equal(t, "cwd", ee.Outcome.Stage)
			require.ErrorIs(t, err, syscall.ENOENT)
			require.Contains(t, err.Error(), "nowhere")
		})
	}
}

func TestExecTimeoutKeepsOutput(t *testing.T) {
	p := start(t, nil)
	for name, cmd := range map[string]*harnesslib.Cmd{
		"fast":   p.ScriptCommand("printf start; sleep 300"),
		"stream": p.Command("sh", "-c", "printf start; sleep 300"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Timeout = 300 * time.Millisecond
			out, err := cmd.Output(t.Context())
			require.ErrorIs(t, err, harnesslib.ErrTimedOut)
			require.Equal(t, "start", string(out))
			require.Equal(t, "total", cmd.Outcome.Clock)
		})
	}
}

func TestExecAbort(t *testing.T) {
	p := start(t, nil)
	for name, cmd := range map[string]*harnesslib.Cmd{
		"fast":   p.ScriptCommand("echo $BASHPID >pid; sleep 300"),
		"stream": p.Command("sh", "-c", "echo $$ >pid; sleep 300"),
	} {
		t.Run(name, func(t *testing.T) {
			pidFile := filepath.Join(p.dir, "pid")
			_ = os.Remove(pidFile)
			why := errors.New("the user changed his mind")
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				for {
					if b, _ := os.ReadFile(pidFile); len(b) > 0 || t.Context().Err() != nil {
						break
					}
					time.Sleep(5 * time.Millisecond) //nolint:forbidigo // polls for what another process does
				}
				cancel(why)
			}()
			_, err := cmd.Output(ctx)
			require.ErrorIs(t, err, harnesslib.ErrAborted)
			require.ErrorIs(t, err, why)
			b, err := os.ReadFile(pidFile)
			require.NoError(t, err)
			require.NoDirExists(t, "/proc/"+strings.TrimSpace(string(b)))
		})
	}
}

func TestExecStartFailed(t *testing.T) {
	p := start(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "plain"), []byte("x"), 0o644))
	for _, c := range []struct {
		args  []string
		code  int
		errno syscall.Errno
	}{
		{[]string{"no-such-program"}, 127, syscall.ENOENT},
		{[]string{"./plain"}, 126, syscall.EACCES},
		{[]string{"/"}, 126, syscall.EACCES},
	} {
		err := p.Command(c.args[0], c.args[1:]...).Run(t.Context())
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee, c.args)
		require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind)
		require.Equal(t, "exec", ee.Outcome.Stage)
		require.Equal(t, c.code, ee.Outcome.Code)
		require.ErrorIs(t, err, c.errno)
	}
}

// TestBadInputIsRefusedBeforeAnythingIsSent uses a sandbox that does not exist: an error about it would mean that the
// request had left.
func TestBadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	h := connect(t, bustest.Start(t))
	_, err := h.Sandbox("No.Such")
	require.ErrorContains(t, err, "63")
	sb, err := h.Sandbox("nobody")
	require.NoError(t, err)
	for want, cmd := range map[string]*harnesslib.Cmd{
		"argument 1 has a NUL byte": sb.Command("echo", "a\x00b"),
		"offset 2":                  sb.ScriptCommand("a;\x00"),
		"168h":                      {},
		"want a program":            sb.Command(""),
		"want NAME=value":           sb.Command("true"),
	} {
		switch want {
		case "168h":
			cmd = sb.Command("true")
			cmd.Timeout = -time.Second
		case "want NAME=value":
			cmd.Env = []string{"A"}
		}
		require.ErrorContains(t, cmd.Run(t.Context()), want)
	}
	long := sb.Command("echo", strings.Repeat("x", 2<<20))
	err = long.Run(t.Context())
	require.ErrorIs(t, err, harnesslib.ErrUnknownSandbox, "the size can only be judged when the hub's bound is known")
}

func TestUnknownSandboxFailsAtOnce(t *testing.T) {
	h := connect(t, bustest.Start(t))
	sb, err := h.Sandbox("nobody")
	require.NoError(t, err)
	begin := time.Now()
	_, err = sb.ReadFile(t.Context(), "x")
	require.ErrorIs(t, err, harnesslib.ErrUnknownSandbox)
	require.ErrorContains(t, err, "nobody")
	require.Less(t, time.Since(begin), 5*time.Second, "not by a time-out")
}

// TestWorkerIsReplaced has the worker of an id end and another instance take over: calls find it.
func TestWorkerIsReplaced(t *testing.T) {
	b := bustest.Start(t)
	h := connect(t, b)
	sb, err := h.Sandbox("box")
	require.NoError(t, err)
	for range 2 {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "who"), []byte(dir), 0o600))
		stop := startWorker(t, b, "box", func(c *workerd.Config) { c.Dir = dir })
		got, err := sb.ReadFile(t.Context(), "who")
		require.NoError(t, err)
		require.Equal(t, dir, string(got))
		stop()
	}
	_, err = sb.ReadFile(t.Context(), "who")
	require.ErrorIs(t, err, harnesslib.ErrUnknownSandbox)
}

func TestSecondWorkerOfAnIDIsRefused(t *testing.T) {
	p := start(t, nil)
	cred, err := p.bus.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: "box"})
	require.NoError(t, err)
	w, err := workerd.New(workerd.Config{URL: p.bus.URL(), Dial: p.bus.Dial, Credential: cred})
	require.NoError(t, err)
	require.ErrorIs(t, w.Run(t.Context()), bus.ErrDuplicate)
	_, err = p.Command("true").Output(t.Context())
	require.NoError(t, err, "the first one goes on")
}

func TestFiles(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	for name, size := range map[string]int{"empty": 0, "small": 10, "inline": 256 << 10, "streamed": 256<<10 + 1, "big": 5_000_000} {
		t.Run(name, func(t *testing.T) {
			data := make([]byte, size)
			_, _ = rand.Read(data)
			require.NoError(t, p.WriteFile(ctx, name, data, 0o640))
			got, err := p.ReadFile(ctx, name)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got), "%d bytes came back", len(got))
			fi, err := p.Stat(ctx, name)
			require.NoError(t, err)
			require.Equal(t, int64(size), fi.Size())
			require.Equal(t, fs.FileMode(0o640), fi.Mode())
			var sum bytes.Buffer
			require.NoError(t, p.CopyFrom(ctx, name, &sum))
			require.Equal(t, sha256.Sum256(data), sha256.Sum256(sum.Bytes()))
			require.NoError(t, p.CopyTo(ctx, name+"2", bytes.NewReader(data), 0o600))
			onDisk, err := os.ReadFile(filepath.Join(p.dir, name+"2"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, onDisk))
		})
	}
	require.NoError(t, p.MkdirAll(ctx, "a/b/c", 0o755))
	require.NoError(t, p.Mkdir(ctx, "a/d", 0o755))
	require.ErrorIs(t, p.Mkdir(ctx, "a/d", 0o755), fs.ErrExist)
	require.NoError(t, os.Symlink("small", filepath.Join(p.dir, "a/link")))
	entries, err := p.ReadDir(ctx, "a")
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name()+" "+e.Type().String()[:1])
	}
	require.Equal(t, []string{"b d", "d d", "link L"}, names)
	require.ErrorIs(t, p.Remove(ctx, "a"), fs.ErrExist, "not empty")
	require.NoError(t, p.RemoveAll(ctx, "a"))
	require.NoError(t, p.RemoveAll(ctx, "a"))
	for _, err := range []error{p.Remove(ctx, "a"), second(p.ReadFile(ctx, "a")), second(p.Stat(ctx, "a")), second(p.ReadDir(ctx, "a"))} {
		var pe *fs.PathError
		require.ErrorAs(t, err, &pe)
		require.Equal(t, "a", pe.Path)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "not found")
	}
}

func second[T any](_ T, err error) error { return err }

// TestWriteWhoseSourceFailsLeavesTheFile gives up an upload in its middle.
func TestWriteWhoseSourceFailsLeavesTheFile(t *testing.T) {
	p := start(t, nil)
	require.NoError(t, p.WriteFile(t.Context(), "f", []byte("old"), 0o600))
	broken := errors.New("source broke")
	err := p.CopyTo(t.Context(), "f", io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), failing{broken}), 0o600)
	require.ErrorIs(t, err, broken)
	require.Eventually(t, func() bool {
		left, err := os.ReadDir(p.dir)
		return err == nil && len(left) == 1
	}, 5*time.Second, 10*time.Millisecond, "the temporary file goes")
	got, err := p.ReadFile(t.Context(), "f")
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestChildrenDoNotSeeTheWorkersVariables looks for what marks the worker's own settings.
func TestChildrenDoNotSeeTheWorkersVariables(t *testing.T) {
	t.Setenv("SANDBUS_TOKEN", "secret")
	t.Setenv("SANDBUS_CREDS", "/secret")
	p := start(t, nil)
	for _, cmd := range []*harnesslib.Cmd{p.ScriptCommand("env; :"), p.Command("env")} {
		out, err := cmd.Output(t.Context())
		require.NoError(t, err)
		require.Contains(t, string(out), "PATH=")
		require.NotContains(t, string(out), "SANDBUS_TOKEN")
		require.NotContains(t, string(out), "SANDBUS_CREDS")
		require.NotContains(t, string(out), "secret")
	}
}
