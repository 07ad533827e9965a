package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// plainRelay runs a relay with a "bash -c" worker for the length of the test.
func plainRelay(tb testing.TB, dir string) string {
	tb.Helper()
	pr := plainrelay.NewRelay(harnessToken)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	running(tb, func(ctx context.Context) error { return pr.Serve(ctx, ln) })
	running(tb, (&plainrelay.Worker{Relay: ln.Addr().String(), Token: harnessToken, Sandbox: "box", Dir: dir, Slots: 16}).Run)
	require.Eventually(tb, func() bool { return pr.Attached("box") }, patience, 10*time.Millisecond)
	return ln.Addr().String()
}

func relayTo(tb testing.TB, addr string, change func(*relay.Config)) *relay.Transport {
	tb.Helper()
	cfg := relay.Config{Addr: addr, Sandbox: "box", Token: harnessToken}
	if change != nil {
		change(&cfg)
	}
	tr, err := relay.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, tr.Close()) })
	return tr
}

// TestRelayTransport runs the seam over the gateway and over the plain relay.
func TestRelayTransport(t *testing.T) {
	r := startRig(t)
	for name, addr := range map[string]string{"gateway": r.gateway(nil).addr, "plain": plainRelay(t, r.dir)} {
		t.Run(name, func(t *testing.T) {
			fast := transport.TierStream
			tr := relayTo(t, addr, func(c *relay.Config) {
				if name == "gateway" {
					c.FastTier, fast = transport.FastShell, transport.TierFast
				}
			})
			testExec(t, tr, fast)
			testLimits(t, tr)
			testEnds(t, r, tr, name)
			testFiles(t, tr)
		})
	}
}

func testExec(t *testing.T, tr *relay.Transport, fast transport.Tier) {
	t.Helper()
	res, err := tr.Exec(t.Context(), transport.Command{Script: "echo out; echo err >&2; exit 3"})
	require.NoError(t, err)
	require.Equal(t, "out\n", string(res.Stdout))
	require.Equal(t, "err\n", string(res.Stderr))
	require.Equal(t, 3, *res.ExitCode)
	require.Equal(t, fast, res.Tier)

	var both bytes.Buffer
	res, err = tr.Exec(t.Context(), transport.Command{Script: "echo 1; echo 2 >&2; cat", Stdin: strings.NewReader("3\x00\xff"), Stdout: &both, Stderr: &both})
	require.NoError(t, err)
	require.Equal(t, "1\n2\n3\x00\xff", both.String())
	require.Equal(t, transport.TierStream, res.Tier)

	dir := t.TempDir()
	res, err = tr.Exec(t.Context(), transport.Command{Script: "printf '%s|' \"$A\" \xff; pwd; printf e >&2", Dir: dir, Env: []string{"A=1", "A=it's\n$HOME"}})
	require.NoError(t, err)
	require.Equal(t, "it's\n$HOME|\xff|"+dir+"\n", string(res.Stdout))
	require.Equal(t, "e", string(res.Stderr))
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	for name, errno := range map[string]syscall.Errno{"/none": syscall.ENOENT, "/file": syscall.ENOTDIR} {
		var stderr bytes.Buffer
		for _, c := range []transport.Command{{}, {Stdout: io.Discard, Stderr: &stderr}} {
			c.Script, c.Dir = "echo ran", dir+name
			_, err = tr.Exec(t.Context(), c)
			var ee *harnesslib.ExitError
			require.ErrorAs(t, err, &ee)
			require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind)
			require.ErrorIs(t, err, errno)
			require.ErrorContains(t, err, name)
		}
		require.Zero(t, stderr.Len(), "the marker is nobody's output")
	}
	res, err = tr.Exec(t.Context(), transport.Command{Script: "kill -9 $$"})
	require.NoError(t, err)
	require.Nil(t, res.ExitCode)
	require.Equal(t, "KILL", res.Signal)
}

func testLimits(t *testing.T, tr *relay.Transport) {
	t.Helper()
	var w bytes.Buffer
	for _, c := range []struct {
		script string
		limit  int64
		over   bool
	}{
		{"head -c 8388608 /dev/zero", 0, false},
		{"head -c 8388609 /dev/zero", 0, true},
		{"head -c 1000 /dev/zero; printf e >&2", 1000, false},
		{"head -c 1001 /dev/zero", 1000, true},
		{"head -c 9000000 /dev/zero", 9_000_000, false},
		{"yes", 9_000_000, true},
	} {
		res, err := tr.Exec(t.Context(), transport.Command{Script: c.script, OutputLimit: c.limit})
		require.NoError(t, err, c.script)
		require.Equal(t, c.over, res.Truncated, c.script)
		limit := c.limit
		if limit == 0 {
			limit = transport.DefaultOutputLimit
		}
		if c.over {
			require.Nil(t, res.ExitCode, c.script)
			require.Len(t, res.Stdout, int(limit)+len(transport.TruncatedMarker), c.script)
			require.True(t, bytes.HasSuffix(res.Stdout, []byte(transport.TruncatedMarker)), c.script)
		} else {
			require.Equal(t, 0, *res.ExitCode, c.script)
			require.Len(t, res.Stdout, int(limit), c.script)
		}
	}
	res, err := tr.Exec(t.Context(), transport.Command{Script: "yes", OutputLimit: 1000, Stdout: &w})
	require.NoError(t, err)
	require.True(t, res.Truncated)
	require.Equal(t, 1000, w.Len())
	_, err = tr.Exec(t.Context(), transport.Command{Script: "wc -c", Stdin: zeros{}})
	require.ErrorContains(t, err, "one message", "an input without an end is refused at the bound")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func testEnds(t *testing.T, r *rig, tr *relay.Transport, name string) {
	t.Helper()
	res, err := tr.Exec(t.Context(), transport.Command{Script: "printf start; sleep 300", Timeout: time.Second, Stdout: io.Discard})
	require.EqualError(t, err, "timeout:1")
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	require.NotNil(t, res)

	why := errors.New("the user changed his mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		r.eventually(func() bool { return r.lines(name) == 1 }, "it runs")
		cancel(why)
	}()
	_, err = tr.Exec(ctx, transport.Command{Script: "cd " + transport.Quote(r.dir) + "; echo $BASHPID >" + name + "; exec sleep 300"})
	require.EqualError(t, err, "aborted")
	require.ErrorIs(t, err, why)
	pid, err := os.ReadFile(filepath.Join(r.dir, name))
	require.NoError(t, err)
	require.NoDirExists(t, "/proc/"+strings.TrimSpace(string(pid)))
	_, err = tr.Exec(ctx, transport.Command{Script: "echo x >>" + name})
	require.ErrorIs(t, err, harnesslib.ErrAborted)
	require.Equal(t, 1, r.lines(name), "nothing ran")

	broken := errors.New("the writer broke")
	_, err = tr.Exec(t.Context(), transport.Command{Script: "yes", Stdout: failing{broken}})
	require.ErrorIs(t, err, broken)
}

func testFiles(t *testing.T, tr *relay.Transport) {
	t.Helper()
	f, dir := tr.Files(), t.TempDir()
	for _, name := range []string{"a b", "a'b\"c", "-rf", "$(x)", "new\nline", "\xff\xfe"} {
		data := []byte("content of " + name + "\x00\xff")
		require.NoError(t, f.WriteFile(t.Context(), dir+"/"+name, data, 0o640))
		got, err := f.ReadFile(t.Context(), dir+"/"+name)
		require.NoError(t, err)
		require.Equal(t, data, got)
		onDisk, err := os.ReadFile(dir + "/" + name)
		require.NoError(t, err)
		require.Equal(t, data, onDisk)
	}
	entries, err := f.ReadDir(t.Context(), dir)
	require.NoError(t, err)
	require.Len(t, entries, 6)
	_, err = f.ReadFile(t.Context(), dir+"/none")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestRelayRefusals tells what did not run from what nobody knows.
func TestRelayRefusals(t *testing.T) {
	r := startRig(t)
	gw, plain := r.gateway(nil).addr, plainRelay(t, r.dir)
	for _, addr := range []string{gw, plain} {
		for _, change := range []func(*relay.Config){
			func(c *relay.Config) { c.Token = "wrong-token-0123456789" },
			func(c *relay.Config) { c.Sandbox = "nobody" },
		} {
			_, err := relayTo(t, addr, change).Exec(t.Context(), transport.Command{Script: "true"})
			require.ErrorIs(t, err, transport.ErrUnreachable)
			require.NotErrorIs(t, err, transport.ErrLost)
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	tr := relayTo(t, ln.Addr().String(), nil)
	for range 2 {
		_, err = tr.Exec(t.Context(), transport.Command{Script: "true"})
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	tr = relayTo(t, gw, nil)
	ended := make(chan error, 1)
	go func() {
		_, err := tr.Exec(context.Background(), transport.Command{Script: "cd " + transport.Quote(r.dir) + "; echo x >closing; sleep 300"})
		ended <- err
	}()
	r.eventually(func() bool { return r.lines("closing") == 1 }, "it runs")
	require.NoError(t, tr.Close())
	require.ErrorIs(t, <-ended, transport.ErrClosed)
	require.NoError(t, tr.Close())
	_, err = tr.Exec(t.Context(), transport.Command{Script: "true"})
	require.ErrorIs(t, err, transport.ErrClosed)
	for _, cfg := range []relay.Config{
		{Addr: "nowhere", Sandbox: "box", Token: "x"},
		{Addr: gw, Sandbox: "No.Such", Token: "x"},
		{Addr: gw, Sandbox: "box"},
		{Addr: gw, Sandbox: "box", Token: "x", Ceiling: 365 * 24 * time.Hour},
	} {
		_, err := relay.New(cfg)
		require.Error(t, err)
	}
}

// odd is a relay that ends streams as none should.
type odd struct {
	sandboxv1.UnimplementedSandboxExecServer
	exec chan *sandboxv1.Exec
}

func (o odd) Exec(req *sandboxv1.ExecRequest, s grpc.ServerStreamingServer[sandboxv1.ExecEvent]) error {
	o.exec <- req.GetExec()
	chunk := &sandboxv1.ExecEvent{Event: &sandboxv1.ExecEvent_Chunk{Chunk: &sandboxv1.Chunk{Data: []byte("some"), Stream: sandboxv1.Stream_STREAM_UNSPECIFIED}}}
	switch req.GetExec().GetCommand() {
	case "ends":
		return s.Send(chunk)
	case "breaks":
		return errors.Join(s.Send(chunk), status.Error(codes.NotFound, "gone"))
	case "code":
		return s.Send(&sandboxv1.ExecEvent{Event: &sandboxv1.ExecEvent_End{End: &sandboxv1.End{ExitCode: 4711}}})
	case "error":
		return s.Send(&sandboxv1.ExecEvent{Event: &sandboxv1.ExecEvent_Error{Error: &sandboxv1.ExecError{Message: "who knows"}}})
	}
	<-s.Context().Done() // and never answers an abort
	return nil
}

// TestRelayThatDoesNotSay holds that what nobody knows is lost, never a success.
func TestRelayThatDoesNotSay(t *testing.T) {
	o := odd{exec: make(chan *sandboxv1.Exec, 8)}
	srv := grpc.NewServer(grpc.WaitForHandlers(true))
	sandboxv1.RegisterSandboxExecServer(srv, o)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	running(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, srv.Stop)()
		return srv.Serve(ln)
	})
	tr := relayTo(t, ln.Addr().String(), func(c *relay.Config) { c.AbortWindow = 300 * time.Millisecond })
	for _, script := range []string{"ends", "breaks", "code", "error"} {
		res, err := tr.Exec(t.Context(), transport.Command{Script: script})
		require.ErrorIs(t, err, transport.ErrLost, script)
		require.NotNil(t, res)
		require.Nil(t, res.ExitCode)
		require.Equal(t, uint32(1800), (<-o.exec).GetTimeoutS(), "the ceiling is sent along")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-o.exec
		cancel(errTestOver)
	}()
	_, err = tr.Exec(ctx, transport.Command{Script: "hangs"})
	require.ErrorIs(t, err, transport.ErrLost)
	require.ErrorContains(t, err, "not confirmed")
	_, err = tr.Exec(t.Context(), transport.Command{Script: "hangs", Timeout: time.Millisecond})
	require.ErrorIs(t, err, transport.ErrLost)
	require.Equal(t, uint32(1), (<-o.exec).GetTimeoutS(), "rounded up")
}
