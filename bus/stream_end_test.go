package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// serveStream serves the verb "stream" for the length of the test, and gives a caller for it.
func serveStream(t *testing.T, serve func(*bus.Request)) (bus.Target, *bus.Caller) {
	t.Helper()
	b := bustest.Start(t)
	target := bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: bus.NewInstanceID()}
	s := bus.NewServer(b.Connect(t, bus.RoleSandbox, "box"), target, bustest.Logger(t))
	s.HandleStream("stream", serve)
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		now, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("now"))
		s.Stop(now)
	})
	c, err := bus.NewCaller(b.Connect(t, bus.RoleHarness, "h"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return target, c
}

// TestSendEndsWithTheOp has a caller wait for credit from a worker that takes nothing: the op's end, or the caller's,
// ends the wait, although nobody calls Next.
func TestSendEndsWithTheOp(t *testing.T) {
	for name, end := range map[string]func(*bus.Request, *bus.Caller){
		"ended by a frame": func(r *bus.Request, _ *bus.Caller) {
			out, err := r.Outgoing(0)
			require.NoError(t, err)
			r.EndStream(out, &sandbusv1.StreamEnd{})
		},
		"ended by a message": func(r *bus.Request, _ *bus.Caller) { r.Fail(errors.New("no")) },
		"caller closed": func(r *bus.Request, c *bus.Caller) {
			c.Close()
			r.Fail(errors.New("no"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			full := make(chan *bus.Caller)
			target, c := serveStream(t, func(r *bus.Request) { end(r, <-full) })
			st, err := c.Open(t.Context(), target, "stream", bus.NewOpID(), &statReq{}, 0, true)
			require.NoError(t, err)
			defer st.Close()
			require.NoError(t, st.Send(t.Context(), make([]byte, bus.DefaultWindow)))
			waits := make(chan error, 1)
			go func() { waits <- st.Send(t.Context(), []byte("x")) }()
			full <- c
			select {
			case err := <-waits:
				require.ErrorIs(t, err, bus.ErrClosed)
				require.Equal(t, strings.HasPrefix(name, "ended"), errors.Is(err, bus.ErrEnded))
			case <-time.After(10 * time.Second):
				t.Error("Send still waits")
				st.Close()
				require.Error(t, <-waits)
			}
		})
	}
}

// TestOpEndsWhenItsCallerBreaksTheStream has an op that sends nothing learn that its caller cannot be trusted any more.
func TestOpEndsWhenItsCallerBreaksTheStream(t *testing.T) {
	ended := make(chan error, 1)
	target, c := serveStream(t, func(r *bus.Request) {
		out, err := r.Outgoing(0)
		require.NoError(t, err)
		require.NoError(t, out.Write(r.Context(), bus.FrameStarted, nil))
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})
	op := bus.NewOpID()
	st, err := c.Open(t.Context(), target, "stream", op, &statReq{}, 0, true)
	require.NoError(t, err)
	defer st.Close()
	_, err = st.Next(t.Context())
	require.NoError(t, err)
	c.Acknowledge(target, op, 99)
	var se *bus.StreamError
	require.ErrorAs(t, <-ended, &se)
}
