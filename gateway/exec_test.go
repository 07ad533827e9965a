package gateway_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/gateway"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// TestExecOverTheGateway has a plain client of the public contract run commands in a sandbox of the bus.
func TestExecOverTheGateway(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, harnessToken)
	big := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	req := uint64(0)
	for _, streaming := range []bool{false, true} {
		t.Run("streaming "+strconv.FormatBool(streaming), func(t *testing.T) {
			run := func(command string, stdin []byte, timeout uint32) *outcome {
				req++
				return c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: req, Command: command, Stdin: stdin, TimeoutS: timeout, Streaming: streaming})
			}
			o := run("echo out; echo err >&2; exit 3", nil, 0)
			o.exited(t, 3)
			require.Equal(t, "out\n", o.stdout.String())
			require.Equal(t, "err\n", o.stderr.String())
			require.Equal(t, req, o.end.GetReqId())

			o = run("cat; printf x >&2", []byte("in\x00\xff"), 0)
			o.exited(t, 0)
			require.Equal(t, "in\x00\xff", o.stdout.String())
			o = run("cat", nil, 0)
			o.exited(t, 0)
			require.Zero(t, o.stdout.Len(), "no input is the end of it, at once")
			o = run("cat", big, 0)
			o.exited(t, 0)
			require.True(t, bytes.Equal(big, o.stdout.Bytes()), "%d bytes came back", o.stdout.Len())

			o = run("printf start; sleep 300", nil, 1)
			require.Equal(t, "timeout:1", o.failure.GetMessage())
			require.Equal(t, "start", o.stdout.String())

			o = run("kill -9 $BASHPID", nil, 0)
			if streaming {
				o.exited(t, -9)
			} else { // the fast tier tells a signal on Linux 6.15 and later; else it has what a shell has
				require.Contains(t, []int32{-9, 137}, o.end.GetExitCode())
			}
			run("exit 137", nil, 0).exited(t, 137)
			run("no-such-program", nil, 0).exited(t, 127)
			run("if", nil, 0).exited(t, 2)
		})
	}
}

func TestRefusedCommandsDidNotRun(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, harnessToken)
	for want, req := range map[string]*sandboxv1.ExecRequest{
		"unknown sandbox":        {SandboxId: "nobody", Exec: &sandboxv1.Exec{ReqId: 1, Command: "true"}},
		"1 to 63":                {SandboxId: "No.Such", Exec: &sandboxv1.Exec{ReqId: 1, Command: "true"}},
		"empty":                  {SandboxId: "box", Exec: &sandboxv1.Exec{ReqId: 2}},
		"NUL byte at offset 2":   {SandboxId: "box", Exec: &sandboxv1.Exec{ReqId: 3, Command: "a;\x00"}},
		"timeout_s 604801":       {SandboxId: "box", Exec: &sandboxv1.Exec{ReqId: 4, Command: "true", TimeoutS: 604801}},
		"one message holds":      {SandboxId: "box", Exec: &sandboxv1.Exec{ReqId: 5, Command: ":" + strings.Repeat(" ", 2<<20)}},
		"unknown sandbox: no li": {SandboxId: "nobody", Exec: &sandboxv1.Exec{ReqId: 6, Command: "true", Streaming: true}},
	} {
		o := c.run(t.Context(), req.GetSandboxId(), req.GetExec())
		require.NoError(t, o.err)
		require.Contains(t, o.failure.GetMessage(), want)
		require.True(t, strings.HasPrefix(o.failure.GetMessage(), "refused: "))
	}
}

// TestOutputComesAtTheExit holds a command that does not stream until its output could have come.
func TestOutputComesAtTheExit(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, harnessToken)
	for _, streaming := range []bool{false, true} {
		t.Run("streaming "+strconv.FormatBool(streaming), func(t *testing.T) {
			fifo := filepath.Join(r.dir, "go"+strconv.FormatBool(streaming))
			require.NoError(t, syscall.Mkfifo(fifo, 0o600))
			s := c.start(t.Context(), "box", &sandboxv1.Exec{ReqId: 7, Command: "echo first; read x <" + fifo + "; echo $x", Streaming: streaming})
			first := make(chan struct{})
			done := make(chan *outcome)
			go func() {
				ev, err := s.Recv()
				if err == nil && ev.GetChunk() != nil {
					close(first)
				}
				o := finish(s)
				o.stdout = *bytes.NewBufferString(string(ev.GetChunk().GetData()) + o.stdout.String())
				done <- o
			}()
			w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // returns when the command reads
			require.NoError(t, err)
			if streaming {
				<-first
			} else {
				select {
				case <-first:
					t.Error("output came before the exit")
				default:
				}
			}
			_, err = w.WriteString("second\n")
			require.NoError(t, err)
			require.NoError(t, w.Close())
			o := <-done
			o.exited(t, 0)
			require.Equal(t, "first\nsecond\n", o.stdout.String())
		})
	}
}

// TestC42CapOverTheGateway holds the cap of what comes at the exit: exactly at it is complete, also with some stderr.
func TestC42CapOverTheGateway(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, harnessToken)
	const limit = 8 << 20
	o := c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 1, Command: "echo err >&2; head -c " + strconv.Itoa(limit) + " /dev/zero"})
	o.exited(t, 0)
	require.Equal(t, limit, o.stdout.Len())
	require.Equal(t, "err\n", o.stderr.String())

	o = c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 2, Command: "head -c " + strconv.Itoa(limit+1) + " /dev/zero"})
	require.True(t, o.end.GetTruncated())
	require.Equal(t, int32(-1), o.end.GetExitCode())
	require.Equal(t, limit, o.stdout.Len())

	o = c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 3, Command: "echo $BASHPID >endless; exec yes"})
	require.True(t, o.end.GetTruncated(), "and the producer is ended")
	require.Equal(t, limit, o.stdout.Len())
	pid, err := os.ReadFile(filepath.Join(r.dir, "endless"))
	require.NoError(t, err)
	require.NoDirExists(t, "/proc/"+strings.TrimSpace(string(pid)))

	o = c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 4, Command: "head -c " + strconv.Itoa(limit+1) + " /dev/zero", Streaming: true})
	o.exited(t, 0)
	require.Equal(t, limit+1, o.stdout.Len(), "a stream has no cap here: it is the caller's")
}

func TestAbortOverTheGateway(t *testing.T) {
	r := startRig(t)
	g := r.gateway(func(c *gateway.Config) { c.Rejoin = 1 })
	c := dial(t, g.addr, harnessToken)
	for i, streaming := range []bool{false, true} {
		for _, how := range []string{"abort", "stream ends", "elsewhere"} {
			t.Run(how+" streaming "+strconv.FormatBool(streaming), func(t *testing.T) {
				if how == "elsewhere" && !streaming {
					t.Skip("the fast tier is known to its replica only")
				}
				name := how[:2] + strconv.Itoa(i)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				req := &sandboxv1.Exec{ReqId: uint64(100 + i*10 + len(how)), Command: "echo $BASHPID >" + name + "; exec sleep 300", Streaming: streaming}
				s := c.start(ctx, "box", req)
				r.eventually(func() bool { return r.lines(name) == 1 }, "it runs")
				switch how {
				case "abort":
					_, err := c.exec.Abort(c.ctx(t.Context()), &sandboxv1.AbortRequest{SandboxId: "box", ReqId: req.GetReqId()})
					require.NoError(t, err)
					finish(s).exited(t, -1)
				case "elsewhere":
					other := dial(t, r.gateway(nil).addr, harnessToken)
					_, err := other.exec.Abort(other.ctx(t.Context()), &sandboxv1.AbortRequest{SandboxId: "box", ReqId: req.GetReqId()})
					require.NoError(t, err)
					finish(s).exited(t, -1)
				default:
					cancel(errTestOver)
				}
				pid, err := os.ReadFile(filepath.Join(r.dir, name))
				require.NoError(t, err)
				r.eventually(func() bool {
					_, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)))
					return os.IsNotExist(err)
				}, "nothing of it is alive")
			})
		}
	}
	_, err := c.exec.Abort(c.ctx(t.Context()), &sandboxv1.AbortRequest{SandboxId: "box", ReqId: 424242})
	require.NoError(t, err, "of what is not known")
}

// TestC50SameRequestTwice joins a run, gets the stored end, and is refused with other content.
func TestC50SameRequestTwice(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, harnessToken)
	for _, streaming := range []bool{false, true} {
		t.Run("streaming "+strconv.FormatBool(streaming), func(t *testing.T) {
			name := "runs" + strconv.FormatBool(streaming)
			fifo := filepath.Join(r.dir, name+"go")
			require.NoError(t, syscall.Mkfifo(fifo, 0o600))
			req := &sandboxv1.Exec{ReqId: 9, Command: "echo x >>" + name + "; echo first; read x <" + fifo + "; echo $x; exit 4", Streaming: streaming}
			first := c.start(t.Context(), "box", req)
			w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
			require.NoError(t, err)
			second := c.start(t.Context(), "box", req)
			other := c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 9, Command: "echo y >>" + name, Streaming: streaming})
			require.Contains(t, other.failure.GetMessage(), "other content")
			_, err = w.WriteString("second\n")
			require.NoError(t, err)
			require.NoError(t, w.Close())
			for _, s := range []*outcome{finish(first), finish(second), c.run(t.Context(), "box", req)} {
				s.exited(t, 4)
				require.Equal(t, "first\nsecond\n", s.stdout.String())
			}
			require.Equal(t, 1, r.lines(name), "it ran once")
			c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 9, Command: "echo y >>" + name, Streaming: streaming}).exited(t, 0)
			require.Equal(t, 2, r.lines(name), "after the end the name is free for other content")
		})
	}
	// Another harness's requests are its own.
	r.worker("other")
	n := dial(t, r.gateway(nil).addr, otherToken)
	n.run(t.Context(), "other", &sandboxv1.Exec{ReqId: 9, Command: "exit 6"}).exited(t, 6)
}

// TestRestartOfAReplica ends a gateway in the middle of a run: the caller cannot know how it ended, and finds it at another
// replica; what ran on the fast tier is refused there, and does not run twice.
func TestRestartOfAReplica(t *testing.T) {
	r := startRig(t)
	one, two := r.gateway(nil), r.gateway(nil)
	c, d := dial(t, one.addr, harnessToken), dial(t, two.addr, harnessToken)
	fifo := filepath.Join(r.dir, "go")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	stream := &sandboxv1.Exec{ReqId: 5, Command: "echo x >>streamed; read x <" + fifo + "; echo $x", Streaming: true}
	fast := &sandboxv1.Exec{ReqId: 6, Command: "echo x >>fast; sleep 300"}
	s, f := c.start(t.Context(), "box", stream), c.start(t.Context(), "box", fast)
	r.eventually(func() bool { return r.lines("streamed") == 1 && r.lines("fast") == 1 }, "both run")
	one.stop()
	for _, o := range []*outcome{finish(s), finish(f)} {
		require.Nil(t, o.end)
		require.Nil(t, o.failure)
		require.Equal(t, codes.Unavailable, status.Code(o.err), "%v", o.err)
	}
	again := d.start(t.Context(), "box", stream)
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = w.WriteString("done\n")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	o := finish(again)
	o.exited(t, 0)
	require.Equal(t, "done\n", o.stdout.String())
	require.Equal(t, 1, r.lines("streamed"))

	o = d.run(t.Context(), "box", fast)
	require.Nil(t, o.end)
	require.ErrorContains(t, o.err, "nobody knows how it ended")
	require.Equal(t, 1, r.lines("fast"))
}

func TestMessagesOf16MiB(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(nil).addr, harnessToken)
	req := &sandboxv1.Exec{ReqId: 1, Command: "wc -c", Stdin: make([]byte, 16<<20-64)}
	o := c.run(t.Context(), "box", req)
	o.exited(t, 0)
	require.Equal(t, strconv.Itoa(len(req.GetStdin())), strings.TrimSpace(o.stdout.String()))
}

// TestLongCommandsDoNotKeepTheFastTier fills it with commands that do not end.
func TestLongCommandsDoNotKeepTheFastTier(t *testing.T) {
	r := startRig(t)
	c := dial(t, r.gateway(func(c *gateway.Config) { c.FastWait, c.Rejoin = 1, 1 }).addr, harnessToken)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for i := range 6 {
		c.start(ctx, "box", &sandboxv1.Exec{ReqId: uint64(i), Command: "echo x >>long; sleep 300; # " + strconv.Itoa(i)})
	}
	r.eventually(func() bool { return r.lines("long") == 6 }, "all run")
	c.run(t.Context(), "box", &sandboxv1.Exec{ReqId: 77, Command: "true"}).exited(t, 0)
}

// TestNativeIsAsTheShell compares what native file operations answer with what the shell does.
func TestNativeIsAsTheShell(t *testing.T) {
	r := startRig(t)
	with := dial(t, r.gateway(nil).addr, harnessToken)
	without := dial(t, r.gateway(func(c *gateway.Config) { c.NoNative = true }).addr, harnessToken)
	data := bytes.Repeat([]byte{0, 1, 0xff, '\n'}, 1000)
	for name, b := range map[string][]byte{"file": data, "a b": data, "empty": nil, "large": bytes.Repeat(data, 100), "-n": data} {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, name), b, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(r.dir, "dir"), 0o755))
	require.NoError(t, os.Symlink("file", filepath.Join(r.dir, "link")))
	require.NoError(t, os.Symlink("/proc/self/comm", filepath.Join(r.dir, "proc")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(r.dir, "broken")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(r.dir, "fifo"), 0o600))
	commands := []string{"cat -n", "cat -- -n", "cat", "cat file file", "cat /proc/self/comm", "test file", "test -r", "[ -r file", "[ -r file ] "}
	for _, name := range []string{"file", "'a b'", "empty", "large", "dir", "link", "proc", "broken", "none", "''", r.dir + "/file", "./dir/../file", "file/x"} {
		commands = append(commands, "cat "+name)
		for _, op := range []string{"-e", "-f", "-d", "-s", "-r", "-L", "-x"} {
			commands = append(commands, "test "+op+" "+name)
		}
	}
	for i, command := range append(commands, "test -p fifo", "test -r fifo", "test -e fifo") {
		a := with.run(t.Context(), "box", &sandboxv1.Exec{ReqId: uint64(i), Command: command})
		b := without.run(t.Context(), "box", &sandboxv1.Exec{ReqId: uint64(i) + 1000, Command: command})
		require.NotNil(t, a.end, command)
		require.Equal(t, b.end.GetExitCode(), a.end.GetExitCode(), command)
		require.True(t, bytes.Equal(b.stdout.Bytes(), a.stdout.Bytes()), command)
		require.Equal(t, b.stderr.String(), a.stderr.String(), command)
	}
}
