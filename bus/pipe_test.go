package bus_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// pipes connects a harness with a sandbox, and returns what ends the harness's input.
func pipes(t *testing.T) (sandbox, harness *bus.Conn, cut func()) {
	t.Helper()
	toSandboxR, toSandboxW, err := os.Pipe()
	require.NoError(t, err)
	toHarnessR, toHarnessW, err := os.Pipe()
	require.NoError(t, err)
	open := func(role bus.Role, name string, r, w *os.File) *bus.Conn {
		c := bus.NewPipe(bus.PipeConfig{Identity: bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name}, Logger: bustest.Logger(t)}, r, w)
		t.Cleanup(c.Close)
		return c
	}
	return open(bus.RoleSandbox, "box", toSandboxR, toHarnessW), open(bus.RoleHarness, "h", toHarnessR, toSandboxW), func() { _ = toHarnessW.Close() }
}

// servePipe answers a few verbs over pipes, and returns a caller. waits is told of a request that waits.
func servePipe(t *testing.T, waits chan<- struct{}) (target bus.Target, harness *bus.Conn, c *bus.Caller, cut func()) {
	t.Helper()
	sandbox, harness, cut := pipes(t)
	target = bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: bus.NewInstanceID()}
	c, err := bus.NewCaller(harness)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	startPipeServer(t, sandbox, target, waits)
	return target, harness, c, cut
}

func startPipeServer(t *testing.T, conn *bus.Conn, target bus.Target, waits chan<- struct{}) {
	t.Helper()
	s := bus.NewServer(conn, target, bustest.Logger(t))
	bus.Handle(s, "long", func(_ context.Context, req *statReq) (*statResp, error) {
		return &statResp{Info: &sandbusv1.FileInfo{NameRaw: bytes.Repeat([]byte(req.GetPath()), 3<<20)}}, nil
	})
	bus.HandleOp(s, "wait", func(ctx context.Context, _ *statReq) (*statResp, error) {
		waits <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		now, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("now"))
		s.Stop(now)
	})
}

// TestPipe: requests and answers of any length go over pipes, many at once.
func TestPipe(t *testing.T) {
	target, _, c, _ := servePipe(t, nil)
	done := make(chan error, 4)
	for range cap(done) {
		go func() {
			resp := &statResp{}
			err := c.Request(t.Context(), target, "long", "", &statReq{Path: "x"}, resp)
			if err == nil && !bytes.Equal(resp.GetInfo().GetNameRaw(), bytes.Repeat([]byte("x"), 3<<20)) {
				err = errors.New("another answer")
			}
			done <- err
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
	}
	require.ErrorContains(t, c.Request(t.Context(), target, "nothing", "", &statReq{}, &statResp{}), "does not serve it")
}

// TestPipeEnds: the end of a pipe is the connection's; what is under way fails when it is told, later calls at once.
func TestPipeEnds(t *testing.T) {
	waits := make(chan struct{}, 1)
	target, harness, c, cut := servePipe(t, waits)
	why := errors.New("the worker has ended")
	asked := make(chan error, 1)
	go func() { asked <- c.Request(t.Context(), target, "wait", "", &statReq{}, &statResp{}) }()
	<-waits
	require.NoError(t, harness.Flush(t.Context()))
	select {
	case <-harness.Done():
		require.Fail(t, "it has ended before the pipe")
	default:
	}
	cut()
	<-harness.Done()
	c.Lose(why)
	require.ErrorIs(t, <-asked, why)
	require.ErrorIs(t, c.Request(t.Context(), target, "wait", "", &statReq{}, &statResp{}), bus.ErrClosed)
	require.ErrorIs(t, harness.Flush(t.Context()), bus.ErrClosed)
	harness.Close()
	harness.Close()
}

// blocked is an end that takes nothing until it is closed.
type blocked struct{ closed chan struct{} }

func (b blocked) Write([]byte) (int, error) { <-b.closed; return 0, io.ErrClosedPipe }
func (b blocked) Read([]byte) (int, error)  { <-b.closed; return 0, io.EOF }
func (b blocked) Close() error {
	select {
	case <-b.closed:
	default:
		close(b.closed)
	}
	return nil
}

// TestPipeStalls: a pipe that takes nothing holds up no request beyond its context.
func TestPipeStalls(t *testing.T) {
	b := blocked{make(chan struct{})}
	conn := bus.NewPipe(bus.PipeConfig{Identity: bus.Identity{Role: bus.RoleHarness, Name: "h"}}, b, b)
	defer conn.Close()
	defer func() { _ = b.Close() }()
	c, err := bus.NewCaller(conn)
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	target := bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: bus.NewInstanceID()}
	for range 100 { // more than a pipe would hold
		err = c.Request(ctx, target, "echo", "", &statReq{Path: string(make([]byte, 64<<10))}, &statResp{})
		require.ErrorIs(t, err, io.ErrNoProgress)
	}
}

func TestPipeGreeting(t *testing.T) {
	want := bus.Target{Zone: "main", Sandbox: "pipe", Instance: "i1"}
	got, err := bus.ParsePipeGreeting(bus.PipeGreeting(want))
	require.NoError(t, err)
	require.Equal(t, want, got)
	for _, line := range []string{"", "Welcome", "sandbus-pipe/2 main pipe i1", "sandbus-pipe/1 main pipe", "sandbus-pipe/1 main pipe >", "sandbus-pipe/1 main pipe i1\r\n", "sandbus-pipe/1 main  i1"} {
		_, err := bus.ParsePipeGreeting(line)
		require.Error(t, err, "%q", line)
	}
}
