package sandbus_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd"
)

// staticWorker builds the worker as it is delivered: without cgo.
func staticWorker(t *testing.T) string {
	t.Helper()
	tool := testenv.Tool(t, "go")
	path := filepath.Join(t.TempDir(), "workerd")
	build := exec.Command(tool, "build", "-buildvcs=false", "-o", path, "./cmd/workerd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// TestRunAs has a worker of root run commands as another user: on every tier, and for files.
func TestRunAs(t *testing.T) {
	testenv.Need(t, "root", os.Getuid() == 0)
	binary := staticWorker(t)
	for name, path := range testenv.Shells(t) {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			dir, err := os.MkdirTemp("", "sandbus-run-as-") //nolint:usetesting // the user must be able to reach it
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
			require.NoError(t, os.Chmod(dir, 0o777))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600))
			n.dir = dir
			token := n.token(t, bus.RoleSandbox, "box")
			worker := n.startProcess(t, exec.Command(binary, "--run-as=12345:23456", "--max-files=64", "--shell="+path), "SANDBUS_TOKEN="+token)
			p := n.place(t, n.hub.URL())
			ctx := t.Context()
			session, err := p.Session(ctx, "s", "")
			require.NoError(t, err)
			const who = `cat /proc/self/status; echo home "$HOME"; ulimit -n; cat /proc/$PPID/environ; kill -9 $PPID; : >made-$1`
			for tier, run := range map[string]func(script string) ([]byte, error){
				"fast":   func(s string) ([]byte, error) { return p.ScriptCommand(s).Output(ctx) },
				"stream": func(s string) ([]byte, error) { return p.Command(path, shellArgs(path, s)...).Output(ctx) },
				"session": func(s string) ([]byte, error) {
					r, err := session.Run(ctx, s)
					return r.Stdout, err
				},
			} {
				out, err := run(strings.ReplaceAll(who, "$1", tier))
				require.NoError(t, err, tier)
				for _, want := range []string{
					"Uid:\t12345\t12345\t12345\t12345\n", "Gid:\t23456\t23456\t23456\t23456\n", "Groups:\t \n", "CapEff:\t0000000000000000\n",
					"NoNewPrivs:\t1\n", "home /\n", "\n64\n",
				} {
					require.Contains(t, string(out), want, tier)
				}
				require.NotContains(t, string(out), "SANDBUS_", "%s: the worker's environment is not to be read", tier)
				fi, err := os.Stat(filepath.Join(dir, "made-"+tier))
				require.NoError(t, err)
				require.Equal(t, "12345:23456", owner(t, fi), tier)
			}

			// File operations are that user's, too.
			require.NoError(t, p.WriteFile(ctx, "written", []byte("x"), 0o600))
			fi, err := os.Stat(filepath.Join(dir, "written"))
			require.NoError(t, err)
			require.Equal(t, "12345:23456", owner(t, fi))
			_, err = p.ReadFile(ctx, "secret")
			require.ErrorIs(t, err, fs.ErrPermission, "root's")
			require.ErrorIs(t, p.WriteFile(ctx, "/etc/sandbus-test", nil, 0o600), fs.ErrPermission)
			_, err = p.ReadFile(ctx, "/proc/"+strconv.Itoa(worker.Process.Pid)+"/mem")
			require.Error(t, err)

			// What commands leave behind can be ended, an abort reaches what has left its session.
			c := p.Command(path, shellArgs(path, "setsid sleep 300 & echo $! >pid; wait")...)
			c.Timeout = 500 * time.Millisecond
			_, err = c.Output(ctx)
			require.ErrorIs(t, err, harnesslib.ErrTimedOut)
			gone(t, &place{Sandbox: p.Sandbox, dir: dir}, "pid")

			info, err := p.Info(ctx)
			require.NoError(t, err)
			require.NoError(t, harnesslib.Requirements{RequireUnprivileged: true}.Check(info))
			require.Zero(t, info.Worker.UID)
		})
	}
}

// owner is who a file belongs to.
func owner(t *testing.T, fi fs.FileInfo) string {
	t.Helper()
	st, ok := fi.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

func TestRunAsIsRefusedWhereItCannotBe(t *testing.T) {
	n := newNetwork(t)
	cmd := exec.Command(os.Args[0], "--run-as=nobody")
	cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+n.hub.URL(), "SANDBUS_TOKEN="+n.token(t, bus.RoleSandbox, "box"))
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "want UID:GID in numbers")
	if os.Getuid() != 0 {
		cmd = exec.Command(os.Args[0], "--run-as=1:1")
		cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+n.hub.URL(), "SANDBUS_TOKEN="+n.token(t, bus.RoleSandbox, "box"))
		out, err = cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "may not change identities")
	}
}

// TestPrivilegesAreSaid compares the hello with what a command sees of itself.
func TestPrivilegesAreSaid(t *testing.T) {
	for _, held := range []bool{false, true} {
		p := start(t, func(c *workerd.Config) { c.NoNewPrivs = held })
		info, err := p.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, held, info.Commands.NoNewPrivs)
		require.EqualValues(t, os.Geteuid(), info.Commands.UID)
		require.EqualValues(t, os.Geteuid(), info.Worker.UID)
		require.False(t, info.Worker.NoNewPrivs)
		out, err := p.ScriptCommand("grep NoNewPrivs /proc/self/status; grep CapEff /proc/self/status").Output(t.Context())
		require.NoError(t, err)
		f := strings.Fields(string(out))
		require.Len(t, f, 4)
		require.Equal(t, held, f[1] == "1")
		caps, err := strconv.ParseUint(f[3], 16, 64)
		require.NoError(t, err)
		require.Equal(t, caps, info.Commands.Capabilities)
		err = harnesslib.Requirements{RequireUnprivileged: true}.Check(info)
		if held && os.Geteuid() != 0 && caps == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, harnesslib.ErrRequirement)
		}
	}
}

func TestLimitsOfCommands(t *testing.T) {
	p := start(t, func(c *workerd.Config) {
		c.MaxFiles, c.MaxFileSize, c.MaxOutput, c.MaxExecs = 64, 64<<10, 1000, 1
	})
	ctx := t.Context()
	for tier, cmd := range map[string]func(string) *harnesslib.Cmd{
		"fast":   p.ScriptCommand,
		"stream": func(s string) *harnesslib.Cmd { return p.Command("sh", "-c", s) },
	} {
		out, err := cmd("ulimit -n; head -c 100000 /dev/zero >big 2>/dev/null; wc -c <big").Output(ctx)
		require.NoError(t, err, tier)
		require.Equal(t, []string{"64", "65536"}, strings.Fields(string(out)), tier)
		out, err = cmd("head -c 2000 /dev/zero").Output(ctx)
		require.ErrorIs(t, err, harnesslib.ErrOutputLimit, tier)
		require.Len(t, out, 1000, tier)
	}
	c := p.Command("sh", "-c", "echo $$ >running; read x")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = r.Close() }()
	c.Stdin = r
	require.NoError(t, c.Start(ctx))
	appears(t, p, "running")
	require.ErrorIs(t, p.Command("true").Run(ctx), harnesslib.ErrBusy)
	require.NoError(t, w.Close())
	require.Error(t, c.Wait(), "read meets the end of its input")
	require.NoError(t, p.Command("true").Run(ctx))
}

// TestSpoolTotal fills the room for full outputs: the oldest go first, and one that is too large is cut.
func TestSpoolTotal(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.SpoolDir, c.SpoolTotal = t.TempDir(), 100_000 })
	run := func(bytes string) *harnesslib.Cmd {
		c := p.Command("head", "-c", bytes, "/dev/zero")
		c.Spool = true
		require.NoError(t, c.Run(t.Context()))
		require.Empty(t, c.SpoolError)
		return c
	}
	a, b := run("40000"), run("40000")
	require.FileExists(t, a.SpoolPath)
	c := run("50000")
	require.NoFileExists(t, a.SpoolPath, "the oldest")
	require.FileExists(t, b.SpoolPath)
	require.Zero(t, c.SpoolOmitted)
	d := run("150000")
	require.NoFileExists(t, b.SpoolPath)
	require.NoFileExists(t, c.SpoolPath)
	require.EqualValues(t, 50_000, d.SpoolOmitted)
	fi, err := os.Stat(d.SpoolPath)
	require.NoError(t, err)
	require.EqualValues(t, 100_000, fi.Size())
}
