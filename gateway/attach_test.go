package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// TestAttachedWorker drives an existing gRPC worker by a harness of the bus.
func TestAttachedWorker(t *testing.T) {
	r := startRig(t)
	sb, _ := r.plainWorker(r.gateway(nil).addr, func(w *plainrelay.Worker) {
		w.Labels, w.Capabilities = map[string]string{"team": "a"}, []string{"gpu", "files"}
	})
	info, err := sb.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"exec", "shell", "gpu"}, info.Capabilities, "without files, whatever it says")
	require.Equal(t, map[string]string{"team": "a"}, info.Labels)
	require.Equal(t, "amd64", info.Arch)
	require.Equal(t, int32(4), info.Slots)
	require.Equal(t, "untrusted", info.Trust)

	dir := filepath.Join(r.dir, "it's a dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for name, cmd := range map[string]*harnesslib.Cmd{
		"fast":   sb.ScriptCommand("echo \"$A\"; pwd; echo err >&2; exit 3"),
		"stream": sb.Command("sh", "-c", "echo \"$A\"; pwd; echo err >&2; exit 3"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Dir, cmd.Env = dir, []string{"A=it's $HOME \xff"}
			out, err := cmd.Output(t.Context())
			var ee *harnesslib.ExitError
			require.ErrorAs(t, err, &ee)
			require.Equal(t, harnesslib.Outcome{Kind: harnesslib.Exited, Code: 3}, ee.Outcome)
			require.Equal(t, "it's $HOME \xff\n"+dir+"\n", string(out))
			require.Equal(t, "err\n", string(ee.Stderr))
		})
	}
	data := bytes.Repeat([]byte{0, 1, 2, 0xff}, 1<<20)
	cmd := sb.Command("cat")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output(t.Context())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, out), "%d bytes came back", len(out))

	long := strings.Repeat("# a long script\n", 20_000)
	for _, stdin := range []string{"", "input\n"} {
		cmd := sb.ScriptCommand(long + "cat; echo end")
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, stdin+"end\n", string(out))
	}
	both, err := sb.Command("sh", "-c", "echo 1; echo 2 >&2; echo 3").CombinedOutput(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1\n2\n3\n", string(both))

	require.ErrorContains(t, sb.Command("no-such-program").Run(t.Context()), "127")
	_, err = sb.ReadFile(t.Context(), "x")
	require.ErrorContains(t, err, "does not serve it")
	term := sb.Command("sh")
	term.Terminal = &harnesslib.Size{Cols: 80, Rows: 24}
	require.ErrorContains(t, term.Run(t.Context()), "does not have a terminal")
}

func TestAttachedWorkerEndsCommands(t *testing.T) {
	r := startRig(t)
	sb, _ := r.plainWorker(r.gateway(nil).addr, nil)
	for name, cmd := range map[string]*harnesslib.Cmd{
		"fast": sb.ScriptCommand("printf start; sleep 300"), "stream": sb.Command("sh", "-c", "printf start; sleep 300"),
	} {
		t.Run("timeout "+name, func(t *testing.T) {
			cmd.Timeout = 300 * time.Millisecond
			_, err := cmd.Output(t.Context())
			require.ErrorIs(t, err, harnesslib.ErrTimedOut)
			require.Equal(t, "total", cmd.Outcome.Clock)
		})
	}
	for name, cmd := range map[string]*harnesslib.Cmd{
		"fast": sb.ScriptCommand("echo $$ >fast; exec sleep 300"), "stream": sb.Command("sh", "-c", "echo $$ >stream; exec sleep 300"),
	} {
		t.Run("abort "+name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("the user changed his mind")
			go func() {
				r.eventually(func() bool { return r.lines(name) == 1 }, "it runs")
				cancel(why)
			}()
			_, err := cmd.Output(ctx)
			require.ErrorIs(t, err, harnesslib.ErrAborted)
			require.ErrorIs(t, err, why)
			pid, err := os.ReadFile(filepath.Join(r.dir, name))
			require.NoError(t, err)
			require.NoDirExists(t, "/proc/"+strings.TrimSpace(string(pid)))
		})
	}
	idle := sb.Command("sh", "-c", "printf start; sleep 300")
	idle.IdleTimeout = 300 * time.Millisecond
	require.ErrorIs(t, idle.Run(t.Context()), harnesslib.ErrTimedOut)
	require.Equal(t, "idle", idle.Outcome.Clock)

	for size, want := range map[string]error{"1000": nil, "1001": harnesslib.ErrOutputLimit} {
		cmd := sb.Command("head", "-c", size, "/dev/zero")
		cmd.OutputLimit = 1000
		out, err := cmd.Output(t.Context())
		require.ErrorIs(t, err, want)
		require.Len(t, out, 1000)
	}
	var ee *harnesslib.ExitError
	require.ErrorAs(t, sb.Command("sh", "-c", "kill -9 $$").Run(t.Context()), &ee)
	require.Equal(t, harnesslib.Outcome{Kind: harnesslib.Signalled, Signal: "KILL"}, ee.Outcome)
}

// TestAttachedWorkerTwice asks for the same exec id twice: one run; with other content it is refused.
func TestAttachedWorkerTwice(t *testing.T) {
	r := startRig(t)
	sb, _ := r.plainWorker(r.gateway(nil).addr, nil)
	for _, script := range []string{"echo x >>runs; exit 5", "echo x >>runs; exit 5", "echo y >>runs"} {
		cmd := sb.ScriptCommand(script)
		cmd.ID = "same"
		err := cmd.Run(t.Context())
		if strings.Contains(script, "y") {
			require.ErrorContains(t, err, "other content")
			continue
		}
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee)
		require.Equal(t, 5, ee.Outcome.Code)
	}
	require.Equal(t, 1, r.lines("runs"))
}

// TestAttachedWorkerDies has a worker go away in the middle of a command: it is lost, and the sandbox not live any more.
func TestAttachedWorkerDies(t *testing.T) {
	r := startRig(t)
	g := r.gateway(nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	w := &plainrelay.Worker{Relay: g.addr, Token: workerToken, Sandbox: "plain", Dir: r.dir}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	sb, err := r.hub.Sandbox("plain")
	require.NoError(t, err)
	r.eventually(func() bool { _, err := sb.Info(t.Context()); return err == nil }, "it is live")
	go func() {
		r.eventually(func() bool { return r.lines("started") == 1 }, "it runs")
		cancel(errTestOver)
	}()
	err = sb.Command("sh", "-c", "echo x >started; sleep 300").Run(t.Context())
	require.ErrorIs(t, err, harnesslib.ErrLost)
	require.NoError(t, <-ended)
	r.eventually(func() bool {
		_, err := sb.Info(t.Context())
		return errors.Is(err, harnesslib.ErrUnknownSandbox)
	}, "it is not live any more")
	again, _ := r.plainWorker(g.addr, nil)
	require.NoError(t, again.Command("true").Run(t.Context()))
}

// TestSilentWorker attaches a worker that never beats.
func TestSilentWorker(t *testing.T) {
	r := startRig(t)
	g := r.gateway(func(c *gateway.Config) { c.WorkerSilence = 300 * time.Millisecond })
	s, err := dial(t, g.addr, "").work.Attach(client{token: workerToken}.ctx(t.Context()))
	require.NoError(t, err)
	require.NoError(t, s.Send(hello("plain")))
	_, err = s.Recv()
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "heartbeat")
}

func TestBeatingWorkerStays(t *testing.T) {
	r := startRig(t)
	g := r.gateway(func(c *gateway.Config) { c.WorkerSilence = time.Second })
	sb, ended := r.plainWorker(g.addr, func(w *plainrelay.Worker) { w.Heartbeat = 50 * time.Millisecond })
	require.NoError(t, sb.Command("sleep", "1.5").Run(t.Context())) // longer than it may be silent
	select {
	case err := <-ended:
		t.Fatalf("it was ended: %v", err)
	default:
	}
}

func hello(id string) *sandboxv1.WorkerFrame {
	return &sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Hello{Hello: &sandboxv1.Hello{SandboxId: id}}}
}

// TestC54DuplicateAttach has a second worker refused, at the same replica, at another one, and beside a worker of the bus.
func TestC54DuplicateAttach(t *testing.T) {
	r := startRig(t)
	g := r.gateway(nil)
	sb, ended := r.plainWorker(g.addr, nil)
	for _, addr := range []string{g.addr, r.gateway(nil).addr} {
		err := (&plainrelay.Worker{Relay: addr, Token: workerToken, Sandbox: "plain", Dir: r.dir}).Run(t.Context())
		require.Equal(t, codes.AlreadyExists, status.Code(err), "%v", err)
	}
	r.worker("taken")
	err := (&plainrelay.Worker{Relay: g.addr, Token: workerToken, Sandbox: "taken", Dir: r.dir}).Run(t.Context())
	require.Equal(t, codes.AlreadyExists, status.Code(err), "%v", err)
	require.NoError(t, sb.Command("true").Run(t.Context()), "the first one goes on")
	select {
	case err := <-ended:
		t.Fatalf("the first one was ended: %v", err)
	default:
	}
}

// TestReplicaOfAWorkerEnds has the worker attach to another replica when its own ends.
func TestReplicaOfAWorkerEnds(t *testing.T) {
	r := startRig(t)
	one, two := r.gateway(nil), r.gateway(nil)
	_, ended := r.plainWorker(one.addr, nil)
	one.stop()
	require.Equal(t, codes.Unavailable, status.Code(<-ended))
	sb, _ := r.plainWorker(two.addr, nil)
	require.NoError(t, sb.Command("true").Run(t.Context()))
}

func TestBadFirstFrames(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, workerToken)
	for want, f := range map[string]*sandboxv1.WorkerFrame{
		"is a Hello":                       {Msg: &sandboxv1.WorkerFrame_Heartbeat{Heartbeat: &sandboxv1.Heartbeat{}}},
		"1 to 63":                          hello("No.Such"),
		"not that of sandbox \"box\"":      hello("box"),
		"want a name of 1 to 64 bytes and": {Msg: &sandboxv1.WorkerFrame_Hello{Hello: &sandboxv1.Hello{SandboxId: "plain", Labels: map[string]string{"": "x"}}}},
	} {
		s, err := c.work.Attach(c.ctx(t.Context()))
		require.NoError(t, err)
		_ = s.Send(f) // a refusal comes from Recv
		_, err = s.Recv()
		require.ErrorContains(t, err, want)
	}
}
