package bothsides

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/internal/testenv"
)

// startProcess runs a worker's binary for the length of the test.
func (n *network) startProcess(t *testing.T, cmd *exec.Cmd, env ...string) *exec.Cmd {
	t.Helper()
	cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+n.hub.URL(), "SANDBUS_DIR="+n.dir, "SANDBUS_STATE_DIR="+n.state,
		"SANDBUS_LOG_LEVEL=warn")
	cmd.Env = append(cmd.Env, env...)
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return cmd
}

// secrets are the parts of a token that must be seen nowhere.
func secrets(token string) []string {
	return []string{token, token[strings.LastIndexByte(token, '.')+1:]}
}

// look prints all that a command can see of environments and arguments, its own and others'.
const look = `echo own:; env; cat /proc/self/environ /proc/$$/environ; echo; echo parent:; cat /proc/$PPID/environ; echo; echo arguments:;
for p in /proc/[0-9]*; do [ -r $p/cmdline ] && cat $p/cmdline; echo; done 2>/dev/null; :`

// TestC68SecretsAreNotSeen looks for the worker's credential, and for variables of other execs, wherever a command can.
func TestC68SecretsAreNotSeen(t *testing.T) {
	for name, path := range testenv.Shells(t) {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			token := n.token(t, bus.RoleSandbox, "box")
			n.startProcess(t, exec.Command(os.Args[0]), "SANDBUS_TOKEN="+token, "SANDBUS_SHELL="+path)
			p := n.place(t, n.hub.URL())
			session, err := p.Session(t.Context(), "s", "")
			require.NoError(t, err)

			// One exec of each tier that has ended, and one that runs, with variables of their own.
			const before, beside = "value-of-an-earlier-exec", "value-of-an-exec-beside"
			c := p.ScriptCommand(`test "$EARLIER" = ` + before)
			c.Env = []string{"EARLIER=" + before}
			_, err = c.Output(t.Context())
			require.NoError(t, err, "fast")
			c = p.Command("sh", "-c", `test "$EARLIER" = `+before[:5]+"-of-an-earlier-exec")
			c.Env = []string{"EARLIER=" + before}
			require.NoError(t, c.Run(t.Context()), "stream")
			sc := session.Command(`test "$EARLIER" = ` + before)
			sc.Env = []string{"EARLIER=" + before}
			_, err = sc.Run(t.Context())
			require.NoError(t, err, "session")
			running, cancel := context.WithCancelCause(t.Context())
			c = p.Command("sh", "-c", "echo $$ >running; exec sleep 300")
			c.Env = []string{"BESIDE=" + beside}
			require.NoError(t, c.Start(running))
			appears(t, p, "running")
			defer func() {
				cancel(errors.New("the test is over"))
				require.ErrorIs(t, c.Wait(), harnesslib.ErrAborted)
			}()

			for tier, run := range map[string]func() ([]byte, error){
				"fast":   func() ([]byte, error) { return p.ScriptCommand(look).Output(t.Context()) },
				"stream": func() ([]byte, error) { return p.Command(path, shellArgs(path, look)...).Output(t.Context()) },
				"session": func() ([]byte, error) {
					r, err := session.Command(look).Run(t.Context())
					return r.Stdout, err
				},
			} {
				out, err := run()
				require.NoError(t, err, tier)
				own, rest, _ := strings.Cut(string(out), "parent:")
				parent, arguments, _ := strings.Cut(rest, "arguments:")
				require.Contains(t, own, "PATH=", tier)
				require.Contains(t, parent, "SANDBUS_TOKEN_FD=", "%s: that is the worker's environment", tier)
				require.Contains(t, arguments, "sleep\x00300", "%s: and those are all processes", tier)
				for _, secret := range append(secrets(token), before, beside) {
					require.NotContains(t, own, secret, tier)
					require.NotContains(t, parent, secret, tier)
				}
				for _, secret := range append(secrets(token), beside) {
					require.NotContains(t, arguments, secret, tier)
				}
			}
		})
	}
}

// shellArgs are the arguments with which a shell's binary runs a text.
func shellArgs(path, text string) []string {
	if strings.HasSuffix(path, "/busybox") {
		return []string{"sh", "-c", text}
	}
	return []string{"-c", text}
}

// TestC68HandOver gives a worker its credential in every way that there is.
func TestC68HandOver(t *testing.T) {
	for name, give := range map[string]func(t *testing.T, cmd *exec.Cmd, token string) (env []string){
		"variable": func(_ *testing.T, _ *exec.Cmd, token string) []string { return []string{"SANDBUS_TOKEN=" + token} },
		"argument": func(_ *testing.T, cmd *exec.Cmd, token string) []string {
			cmd.Args = append(cmd.Args, "--slots", "3", "--token", token, "-label=a=b")
			return nil
		},
		"descriptor": func(t *testing.T, cmd *exec.Cmd, token string) []string {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			_, err = w.WriteString(token + "\n")
			require.NoError(t, err)
			require.NoError(t, w.Close())
			t.Cleanup(func() { _ = r.Close() })
			cmd.ExtraFiles = []*os.File{r}
			cmd.Args = append(cmd.Args, "--token-fd=3")
			return nil
		},
		"file": func(t *testing.T, _ *exec.Cmd, token string) []string {
			path := filepath.Join(t.TempDir(), "token")
			require.NoError(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
			return []string{"SANDBUS_CREDS=" + path}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			token := n.token(t, bus.RoleSandbox, "box")
			cmd := exec.Command(os.Args[0])
			env := give(t, cmd, token)
			n.startProcess(t, cmd, env...)
			p := n.place(t, n.hub.URL())
			for _, file := range []string{"environ", "cmdline"} {
				b, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/" + file)
				require.NoError(t, err)
				require.NotEmpty(t, b)
				for _, secret := range secrets(token) {
					require.NotContains(t, string(b), secret, file)
				}
			}
			if name == "argument" { // the others arrive
				info, err := p.Info(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 3, info.Slots)
				require.Equal(t, map[string]string{"a": "b"}, info.Labels)
			}
			// Nothing that has the credential is left open for children.
			out, err := p.Command("sh", "-c", `for f in /proc/self/fd/*; do case $f in */0|*/1|*/2) ;; *) cat "$f" 2>/dev/null; esac; done; :`).Output(t.Context())
			require.NoError(t, err)
			require.NotContains(t, string(out), secrets(token)[1])
		})
	}
}

// TestC70NothingSecretInLogs does a bit of everything with marked contents, and looks for the marks in what worker,
// harness and hub write at their most talkative.
func TestC70NothingSecretInLogs(t *testing.T) {
	var workerLog, harnessLog, hubLog lockedBuffer
	debug := func(to *lockedBuffer) *slog.Logger {
		return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	h, err := hub.Start(t.Context(), hub.Config{Logger: debug(&hubLog)})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	n := &network{hub: h, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
	token, harnessToken := n.token(t, bus.RoleSandbox, "box"), n.token(t, bus.RoleHarness, "test")
	cmd := exec.Command(os.Args[0])
	cmd.Stderr = &workerLog
	n.startProcess(t, cmd, "SANDBUS_TOKEN="+token, "SANDBUS_LOG_LEVEL=debug")
	n.place(t, h.URL())
	hl, err := harnesslib.Connect(t.Context(), harnesslib.Config{URL: h.URL(), Token: harnessToken, Logger: debug(&harnessLog)})
	require.NoError(t, err)
	t.Cleanup(hl.Close)
	p, err := hl.Sandbox("box")
	require.NoError(t, err)

	const mark = "xyzzy" // in every content, in no name of ours
	ctx := t.Context()
	c := p.ScriptCommand("echo " + mark + "; cat; exit 3")
	c.Env = []string{"V=" + mark}
	_, err = c.Output(ctx)
	require.Error(t, err)
	c = p.Command("sh", "-c", "cat; echo "+mark+" >&2; printenv V")
	c.Env, c.Stdin, c.Spool = []string{"V=" + mark}, strings.NewReader(mark), true
	out, err := c.Output(ctx)
	require.NoError(t, err)
	require.Equal(t, mark+mark+"\n", string(out))
	require.Error(t, p.Command("/"+mark).Run(ctx))
	require.Error(t, p.Command("echo", mark+"\x00").Run(ctx))
	c = p.Command("sh", "-c", "echo "+mark+"; sleep 300")
	c.Timeout = 50 * time.Millisecond
	_, err = c.Output(ctx)
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	c = p.Command("sh", "-c", "yes "+mark)
	c.OutputLimit = 1000
	_, err = c.Output(ctx)
	require.ErrorIs(t, err, harnesslib.ErrOutputLimit)
	session, err := p.Session(ctx, "s", "")
	require.NoError(t, err)
	_, err = session.Command("V=" + mark + "; echo $V; exit").Run(ctx)
	require.NoError(t, err)
	require.NoError(t, session.Close(ctx))
	require.NoError(t, p.WriteFile(ctx, "f", bytes.Repeat([]byte(mark), 100_000), 0o600))
	_, err = p.ReadFile(ctx, "f")
	require.NoError(t, err)
	_, err = p.ReadFile(ctx, mark)
	require.Error(t, err)
	bad, err := harnesslib.Connect(ctx, harnesslib.Config{URL: h.URL(), Token: harnessToken + mark, Logger: debug(&harnessLog)})
	if err == nil {
		bad.Close()
	}
	require.Error(t, err, "a credential that is wrong")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()

	require.Contains(t, workerLog.String(), "exec ended")
	require.Contains(t, hubLog.String(), "sandbox is live")
	for who, log := range map[string]string{"worker": workerLog.String(), "harness": harnessLog.String(), "hub": hubLog.String()} {
		for _, secret := range append(append(secrets(token), secrets(harnessToken)...), mark) {
			require.NotContains(t, log, secret, who)
		}
	}
}
