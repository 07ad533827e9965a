package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub/hubtest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// events collects what a watch tells.
type events struct {
	t    *testing.T
	next chan bus.PresenceEvent
	err  chan error
}

func watch(t *testing.T, dir *bus.Directory) *events {
	t.Helper()
	e := &events{t: t, next: make(chan bus.PresenceEvent), err: make(chan error, 1)}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range dir.Watch(ctx) {
			if err != nil {
				e.err <- err
				return
			}
			select {
			case e.next <- ev:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		<-done
	})
	return e
}

// until returns the first event of a kind about a sandbox.
func (e *events) until(kind bus.PresenceKind, id bus.SandboxID) bus.Presence {
	e.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case ev := <-e.next:
			if ev.Kind == kind && ev.Presence.Sandbox == id {
				return ev.Presence
			}
		case err := <-e.err:
			require.NoError(e.t, err)
		case <-limit:
			e.t.Fatalf("no event %s of %q", kind, id)
		}
	}
}

func TestWatchTellsWhatHappens(t *testing.T) {
	b := bustest.Start(t)
	dir := openDirectory(t, b.Connect(t, bus.RoleHarness, "h"))
	target, _, _ := announce(t, b, "old")
	w := watch(t, dir)
	require.Equal(t, target, w.until(bus.PresenceLive, "old").Target())
	w.until(bus.PresenceListed, "")
	first, a, stop := announce(t, b, "box")
	require.Equal(t, first, w.until(bus.PresenceLive, "box").Target())
	a.Beat = func(b *sandbusv1.Beat) { b.Load, b.Draining = 5, true }
	a.BeatNow()
	p := w.until(bus.PresenceChanged, "box")
	require.EqualValues(t, 5, p.Load)
	require.True(t, p.Draining)
	require.NoError(t, stop())
	a.Goodbye("over")
	require.Equal(t, first, w.until(bus.PresenceGone, "box").Target())
	second, _, _ := announce(t, b, "box")
	require.Equal(t, second, w.until(bus.PresenceLive, "box").Target())
}

// TestWatchEndsWithItsContext also gives up watches of many in the middle, which must leave nothing.
func TestWatchEndsWithItsContext(t *testing.T) {
	c := hubtest.Start(t, 1)
	c.Registrar(t, 0, "r", bus.RegistrarConfig{})
	dir := openDirectory(t, c.Connect(t, 0, bus.RoleHarness, "h"))
	c.Swarm(t, 1000)
	require.Eventually(t, func() bool {
		list, err := dir.List(t.Context())
		return err == nil && len(list) == 1000
	}, patience, 20*time.Millisecond)
	for range 5 {
		told := 0
		for _, err := range dir.Watch(t.Context()) {
			require.NoError(t, err)
			if told++; told == 10 {
				break
			}
		}
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		for _, err := range dir.Watch(ctx) {
			cancel(why)
			if err != nil {
				require.ErrorIs(t, err, why)
			}
		}
		cancel(nil)
		ctx, cancel = context.WithCancelCause(t.Context())
		cancel(why)
		_, err := dir.List(ctx)
		require.ErrorIs(t, err, why)
	}
}

// TestPresenceOutlivesTheConnection has questions under way when the hub dies, and when it just does not answer: they are
// asked again. None of them has a deadline that would end it.
func TestPresenceOutlivesTheConnection(t *testing.T) {
	for name, question := range map[string]func(context.Context, *bus.Directory, *bus.Conn) error{
		"lookup": func(ctx context.Context, d *bus.Directory, _ *bus.Conn) error {
			_, err := d.Lookup(ctx, bus.DefaultZone, "box0")
			return err
		},
		"list": func(ctx context.Context, d *bus.Directory, _ *bus.Conn) error {
			_, err := d.List(ctx)
			return err
		},
		"open": func(ctx context.Context, _ *bus.Directory, c *bus.Conn) error {
			_, err := bus.OpenDirectory(ctx, c)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := hubtest.Start(t, 1)
			first.Registrar(t, 0, "r", bus.RegistrarConfig{})
			way := hubtest.NewProxy(t, first.URL(0))
			conn, err := bus.Connect(t.Context(), bus.Config{URL: way.URL(), Credential: first.Credential(t, bus.RoleHarness, "h"), Logger: bustest.Logger(t)})
			require.NoError(t, err)
			t.Cleanup(conn.Close)
			dir := openDirectory(t, conn)
			w := watch(t, dir)
			w.until(bus.PresenceListed, "")
			first.Swarm(t, 1)
			w.until(bus.PresenceLive, "box0")
			ask := func() chan error {
				way.Lose()
				answered := make(chan error, 1)
				go func() { answered <- question(t.Context(), dir, conn) }()
				require.Eventually(t, func() bool { return way.Lost() > 0 }, patience, time.Millisecond)
				return answered
			}
			answered := ask()
			way.Mend("")
			require.NoError(t, <-answered, "after silence")

			answered = ask()
			way.Cut()
			first.Kill(t, 0)
			second := first.Another(t)
			second.Registrar(t, 0, "r", bus.RegistrarConfig{})
			second.Swarm(t, 1)
			way.Mend(second.URL(0))
			if name == "lookup" {
				require.Eventually(t, func() bool { return dirHas(t, second, "box0") }, patience, 10*time.Millisecond)
			}
			err = <-answered
			if errors.Is(err, bus.ErrUnknownSandbox) { // asked before the new hub knew of it: an answer
				err = nil
			}
			require.NoError(t, err, "after the hub's death")
			w.until(bus.PresenceLive, "box0") // another instance at the new hub
		})
	}
}

func dirHas(t *testing.T, c *hubtest.Cluster, id bus.SandboxID) bool {
	t.Helper()
	_, err := openDirectory(t, c.Connect(t, 0, bus.RoleHarness, "h2")).Lookup(t.Context(), bus.DefaultZone, id)
	return err == nil
}

// TestHubIsGone has calls wait for the hub until their own deadline, and say then that it is gone.
func TestHubIsGone(t *testing.T) {
	c := hubtest.Start(t, 1)
	c.Registrar(t, 0, "r", bus.RegistrarConfig{})
	way := hubtest.NewProxy(t, c.URL(0))
	conn, err := bus.Connect(t.Context(), bus.Config{URL: way.URL(), Credential: c.Credential(t, bus.RoleHarness, "h"), Logger: bustest.Logger(t)})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	dir := openDirectory(t, conn)
	caller, err := bus.NewCaller(conn)
	require.NoError(t, err)
	t.Cleanup(caller.Close)
	way.Cut()
	require.Eventually(t, func() bool { return !bus.IsConnected(conn) }, patience, time.Millisecond)
	for name, call := range map[string]func(context.Context) error{
		"lookup": func(ctx context.Context) error {
			_, err := dir.Lookup(ctx, bus.DefaultZone, "box")
			return err
		},
		"request": func(ctx context.Context) error {
			return caller.Request(ctx, bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: "i"}, "echo", "", &statReq{}, &statResp{})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := call(ctx)
		cancel()
		var gone *bus.HubGoneError
		require.ErrorAs(t, err, &gone, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.ErrorContains(t, err, way.URL(), name)
		require.Positive(t, gone.After, name)
	}
}
