package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// TestStreamRefusedAtOnce holds that a refusal which comes before Open has returned ends the caller's own stream, too.
func TestStreamRefusedAtOnce(t *testing.T) {
	b := bustest.Start(t)
	target := bus.Target{Zone: bus.DefaultZone, Sandbox: "box1", Instance: bus.NewInstanceID()}
	conn := b.Connect(t, bus.RoleSandbox, "box1")
	srv := bus.NewServer(conn, target, nil)
	srv.HandleStream("fs.write", func(req *bus.Request) { req.Fail(bus.Errorf(sandbusv1.Code_CODE_PERMISSION, "no")) })
	require.NoError(t, srv.Start())
	require.NoError(t, conn.Flush(t.Context()))
	defer srv.Stop(t.Context())
	caller, err := bus.NewCaller(b.Connect(t, bus.RoleHarness, "tester"))
	require.NoError(t, err)
	defer caller.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 3000 {
		st, err := caller.Open(ctx, target, "fs.write", bus.NewOpID(), &sandbusv1.WriteRequest{}, 0, true)
		require.NoError(t, err)
		if err := st.CloseSend(ctx); err != nil {
			require.ErrorIs(t, err, bus.ErrClosed)
		}
		var be *bus.Error
		require.ErrorAs(t, st.Answer(ctx, &sandbusv1.WriteResponse{}), &be)
		st.Close()
	}
}
