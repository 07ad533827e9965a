package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// announce makes a sandbox known for the length of the test, and returns what ends it.
func announce(t *testing.T, b *bustest.Bus, id string) (bus.Target, *bus.Announcer, func() error) {
	t.Helper()
	target := bus.Target{Zone: bus.DefaultZone, Sandbox: bus.SandboxID(id), Instance: bus.NewInstanceID()}
	ready := make(chan struct{})
	a := &bus.Announcer{
		Conn: b.Connect(t, bus.RoleSandbox, id), Target: target, Logger: bustest.Logger(t),
		Hello: &sandbusv1.Hello{Slots: 3, Arch: "amd64", Os: "linux", Version: "v", Labels: map[string]string{"team": "alpha"}},
		Ready: func() { close(ready) },
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err)
	}
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel(errors.New("over"))
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	return target, a, stop
}

func TestPresence(t *testing.T) {
	b := bustest.Start(t)
	dir, err := bus.OpenDirectory(t.Context(), b.Connect(t, bus.RoleHarness, "h"))
	require.NoError(t, err)
	list, err := dir.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = dir.Lookup(t.Context(), bus.DefaultZone, "box2")
	require.ErrorIs(t, err, bus.ErrUnknownSandbox)

	target, a, stop := announce(t, b, "box2")
	announce(t, b, "box1")
	p, err := dir.Lookup(t.Context(), bus.DefaultZone, "box2")
	require.NoError(t, err)
	require.Equal(t, target, p.Target())
	require.EqualValues(t, 3, p.Slots)
	require.Equal(t, "untrusted", p.Trust)
	require.Equal(t, map[string]string{"team": "alpha"}, p.Labels)
	list, err = dir.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, bus.SandboxID("box1"), list[0].Sandbox, "sorted")

	dup := &bus.Announcer{
		Conn: b.Connect(t, bus.RoleSandbox, "box2"), Target: bus.Target{Zone: bus.DefaultZone, Sandbox: "box2", Instance: bus.NewInstanceID()},
		Hello: &sandbusv1.Hello{Slots: 1},
	}
	err = dup.Run(t.Context())
	require.ErrorIs(t, err, bus.ErrDuplicate)
	require.ErrorContains(t, err, string(target.Instance))

	require.NoError(t, stop())
	a.Goodbye("over")
	require.Eventually(t, func() bool {
		_, err := dir.Lookup(t.Context(), bus.DefaultZone, "box2")
		return errors.Is(err, bus.ErrUnknownSandbox)
	}, 5*time.Second, 5*time.Millisecond)
	again, _, _ := announce(t, b, "box2")
	p, err = dir.Lookup(t.Context(), bus.DefaultZone, "box2")
	require.NoError(t, err)
	require.Equal(t, again, p.Target(), "a new instance is adopted when the old one is gone")
}

// TestRegistrarRefusesGarbage feeds it what an untrusted worker may say; a good record stays as it was.
func TestRegistrarRefusesGarbage(t *testing.T) {
	b := bustest.Start(t)
	dir, err := bus.OpenDirectory(t.Context(), b.Connect(t, bus.RoleHarness, "h"))
	require.NoError(t, err)
	announce(t, b, "box")
	before, err := dir.Lookup(t.Context(), bus.DefaultZone, "box")
	require.NoError(t, err)
	nc, _ := raw(t, b, bus.RoleSandbox, "box", "_I.main.box")
	beat, err := proto.Marshal(&sandbusv1.Beat{Instance: "other", Load: 7})
	require.NoError(t, err)
	bye, err := proto.Marshal(&sandbusv1.Goodbye{Instance: "other"})
	require.NoError(t, err)
	for _, payload := range [][]byte{nil, []byte("garbage"), make([]byte, 100<<10), beat} {
		require.NoError(t, nc.Publish("hb.main.box", payload))
	}
	require.NoError(t, nc.Publish("evt.main.box.goodbye", bye))
	require.NoError(t, nc.Publish("evt.main.box.nosuch", []byte("x")))
	for _, h := range []*sandbusv1.Hello{
		{},
		{Instance: "a.b", Protocol: 1, Slots: 1},
		{Instance: "i", Protocol: 9, Slots: 1},
		{Instance: "i", Protocol: 1},
		{Instance: "i", Protocol: 1, Slots: 1 << 20},
		{Instance: "i", Protocol: 1, Slots: 1, Trust: "very"},
		{Instance: "i", Protocol: 1, Slots: 1, Labels: map[string]string{"": "x"}},
		{Instance: "i", Protocol: 1, Slots: 1, Features: make([]string, 65)},
		{Instance: "i", Protocol: 1, Slots: 1, Image: string(make([]byte, 300))},
	} {
		payload, err := proto.Marshal(h)
		require.NoError(t, err)
		m, err := nc.Request("evt.main.box.hello", payload, 5*time.Second)
		require.NoError(t, err)
		var resp sandbusv1.HelloResponse
		require.NoError(t, proto.Unmarshal(m.Data, &resp))
		require.Equal(t, sandbusv1.Code_CODE_INVALID, resp.GetError().GetCode(), "%v", h)
		require.NotEmpty(t, resp.GetError().GetMessage())
	}
	after, err := dir.Lookup(t.Context(), bus.DefaultZone, "box")
	require.NoError(t, err)
	require.Equal(t, before, after)
}
