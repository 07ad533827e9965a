package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/bus/hub/hubtest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// patience is for what must happen, on a machine that has other things to do.
const patience = time.Minute

// logBuffer is a log that a test reads.
type logBuffer struct {
	mu sync.Mutex // guards the field below
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b.Bytes(), []byte(s))
}

// startLogged is a hub whose log the test reads.
func startLogged(t *testing.T) (*bustest.Bus, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	h, err := hub.Start(t.Context(), hub.Config{Port: hub.NoListen, Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	return &bustest.Bus{Hub: h}, log
}

func openDirectory(t *testing.T, conn *bus.Conn) *bus.Directory {
	t.Helper()
	dir, err := bus.OpenDirectory(t.Context(), conn)
	require.NoError(t, err)
	return dir
}

func awaitGone(t *testing.T, dir *bus.Directory, id bus.SandboxID) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := dir.Lookup(t.Context(), bus.DefaultZone, id)
		return errors.Is(err, bus.ErrUnknownSandbox)
	}, patience, 5*time.Millisecond)
}

// TestClosedConnectionIsNoticed closes a worker's connection without a goodbye: the system account tells.
func TestClosedConnectionIsNoticed(t *testing.T) {
	b, log := startLogged(t)
	dir := openDirectory(t, b.Connect(t, bus.RoleHarness, "h"))
	_, a, _ := announce(t, b, "box")
	announce(t, b, "other")
	a.Conn.Close()
	awaitGone(t, dir, "box")
	require.Eventually(t, func() bool { return log.contains("its connection was closed") }, patience, time.Millisecond,
		"it did not have to expire")
	_, err := dir.Lookup(t.Context(), bus.DefaultZone, "other")
	require.NoError(t, err)
}

// hello says hello as a worker that nobody has written, and returns the answer.
func hello(t *testing.T, nc *nats.Conn, box string, h *sandbusv1.Hello) *sandbusv1.HelloResponse {
	t.Helper()
	payload, err := proto.Marshal(h)
	require.NoError(t, err)
	m, err := nc.Request("evt."+box+".hello", payload, patience)
	require.NoError(t, err)
	resp := &sandbusv1.HelloResponse{}
	require.NoError(t, proto.Unmarshal(m.Data, resp))
	return resp
}

// TestDuplicateThatStaysIsDisconnected has one second worker that does not go, and one that names another's connection
// as its own.
func TestDuplicateThatStaysIsDisconnected(t *testing.T) {
	t.Parallel()
	b, log := startLogged(t)
	first, a, _ := announce(t, b, "box")
	other, _, _ := announce(t, b, "victim")
	stays, _ := raw(t, b, bus.RoleSandbox, "box", "_I.main.box")
	_, err := stays.SubscribeSync("_I.main.box.probe.second")
	require.NoError(t, err)
	gone := make(chan struct{})
	stays.SetDisconnectErrHandler(func(*nats.Conn, error) { close(gone) })
	number, err := stays.GetClientID()
	require.NoError(t, err)
	h := &sandbusv1.Hello{Instance: "second", Protocol: 1, Slots: 1, ServerId: stays.ConnectedServerId(), ClientId: number}
	resp := hello(t, stays, "main.box", h)
	require.Equal(t, string(first.Instance), resp.GetHolder())
	require.Equal(t, sandbusv1.Code_CODE_EXISTS, resp.GetError().GetCode())

	liar, _ := raw(t, b, bus.RoleSandbox, "victim", "_I.main.victim")
	_, err = liar.SubscribeSync("_I.main.victim.probe.liar")
	require.NoError(t, err)
	closed := bus.ConnectionNumber(a.Conn) // that of box's first worker
	resp = hello(t, liar, "main.victim", &sandbusv1.Hello{Instance: "liar", Protocol: 1, Slots: 1, ServerId: h.GetServerId(), ClientId: closed})
	require.Equal(t, string(other.Instance), resp.GetHolder())

	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("the second worker stays")
	}
	stays.Close()
	require.Eventually(t, func() bool { return log.contains("duplicate worker disconnected") }, patience, time.Millisecond)
	require.Never(t, func() bool { return !bus.IsConnected(a.Conn) || bus.ConnectionNumber(a.Conn) != closed }, 2*time.Second, 10*time.Millisecond,
		"nobody has another one disconnected")
}

// TestDeadHolderMakesPlace restarts a worker that has died without a word, at a hub without a system account: the
// probe of the old one finds nobody.
func TestDeadHolderMakesPlace(t *testing.T) {
	c := hubtest.Start(t, 1)
	c.Registrar(t, 0, "r", bus.RegistrarConfig{})
	start := func() (*bus.Announcer, chan error) {
		a := &bus.Announcer{
			Conn: c.Connect(t, 0, bus.RoleSandbox, "box"), Hello: &sandbusv1.Hello{Slots: 1}, Logger: bustest.Logger(t),
			Target: bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: bus.NewInstanceID()},
		}
		ready := make(chan error, 2)
		a.Ready = func() { ready <- nil }
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := a.Run(ctx); err != nil {
				ready <- err
			}
		}()
		t.Cleanup(func() {
			cancel(nil)
			<-done
		})
		return a, ready
	}
	a, ready := start()
	require.NoError(t, <-ready)
	b, refused := start()
	require.ErrorIs(t, <-refused, bus.ErrDuplicate, "the first one lives")
	b.Conn.Close()
	a.Conn.Close()
	c2, ready := start()
	require.NoError(t, <-ready)
	p, err := openDirectory(t, c.Connect(t, 0, bus.RoleHarness, "h")).Lookup(t.Context(), bus.DefaultZone, "box")
	require.NoError(t, err)
	require.Equal(t, c2.Target, p.Target())
}

// TestRegistrarKeepsItsBucketRight feeds it what an untrusted worker may say; the records stay as they were.
func TestRegistrarKeepsItsBucketRight(t *testing.T) {
	b := bustest.Start(t)
	dir := openDirectory(t, b.Connect(t, bus.RoleHarness, "h"))
	target, a, stop := announce(t, b, "box")
	a.BeatNow()
	a.BeatNow()
	require.Eventually(t, func() bool {
		p, err := dir.Lookup(t.Context(), bus.DefaultZone, "box")
		return err == nil && p.Seq == 2
	}, patience, 5*time.Millisecond)
	require.NoError(t, stop()) // it beats no more, so that nothing changes by itself
	nc, denied := raw(t, b, bus.RoleSandbox, "box", "_I.main.box")
	_, err := nc.SubscribeSync("_I.main.box.probe." + string(target.Instance)) // but is there
	require.NoError(t, err)
	east, err := b.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: "east", Name: "box"})
	require.NoError(t, err)
	eastConn, err := nats.Connect("", nats.InProcessServer(dialer(b.Dial)), nats.Token(east.Token()), nats.CustomInboxPrefix("_I.east.box"))
	require.NoError(t, err)
	defer eastConn.Close()
	say := func(nc *nats.Conn, subject string, m proto.Message) {
		payload, err := proto.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, nc.Publish(subject, payload))
	}
	inst := string(target.Instance)
	before, err := dir.List(t.Context())
	require.NoError(t, err)
	require.Len(t, before, 1)
	for name, feed := range map[string]func(){
		"garbage": func() {
			require.NoError(t, nc.Publish("hb.main.box", []byte("garbage")))
			require.NoError(t, nc.Publish("evt.main.box.goodbye", []byte("\xff\xff")))
			require.NoError(t, nc.Publish("evt.main.box.nosuch", []byte("x")))
			require.NoError(t, nc.Publish("hb.main.box", nil))
		},
		"oversize": func() {
			require.NoError(t, nc.Publish("hb.main.box", make([]byte, 100<<10)))
			say(nc, "hb.main.box", &sandbusv1.Beat{Instance: inst, Seq: 3, Load: 7, Version: string(make([]byte, 70<<10))})
		},
		"another zone's": func() {
			say(nc, "hb.east.box", &sandbusv1.Beat{Instance: inst, Seq: 3, Load: 7})
			say(eastConn, "hb.east.box", &sandbusv1.Beat{Instance: inst, Seq: 3, Load: 7})
			say(eastConn, "evt.east.box.goodbye", &sandbusv1.Goodbye{Instance: inst})
			require.NoError(t, eastConn.Flush())
		},
		"replayed": func() {
			for seq := range uint64(3) {
				say(nc, "hb.main.box", &sandbusv1.Beat{Instance: inst, Seq: seq, Load: 7, Draining: true})
			}
		},
		"future": func() {
			say(nc, "hb.main.box", &sandbusv1.Beat{Instance: inst, Seq: 1 << 40, Load: 7})
			say(nc, "hb.main.box", &sandbusv1.Beat{Instance: inst, Seq: math.MaxUint64, Load: 7})
		},
		"a stale instance's": func() {
			say(nc, "hb.main.box", &sandbusv1.Beat{Instance: "old", Seq: 3, Load: 7})
			say(nc, "evt.main.box.goodbye", &sandbusv1.Goodbye{Instance: "old"})
			resp := hello(t, nc, "main.box", &sandbusv1.Hello{Instance: "old", Protocol: 1, Slots: 9})
			require.NotEmpty(t, resp.GetError().GetMessage())
		},
	} {
		feed()
		// Answered behind all that was said before: one lane has all of a sandbox.
		resp := hello(t, nc, "main.box", &sandbusv1.Hello{})
		require.Equal(t, sandbusv1.Code_CODE_INVALID, resp.GetError().GetCode(), name)
		resp = hello(t, eastConn, "east.box", &sandbusv1.Hello{})
		require.Equal(t, sandbusv1.Code_CODE_INVALID, resp.GetError().GetCode(), name)
		after, err := dir.List(t.Context())
		require.NoError(t, err)
		require.Equal(t, before, after, name)
	}
	require.Positive(t, denied.Load(), "the hub refuses another zone's subjects")

	// Numbers beyond what there is are held to bounds, and the next right beat counts.
	say(nc, "hb.main.box", &sandbusv1.Beat{Instance: inst, Seq: 3, Load: math.MaxInt32, Used: -5})
	hello(t, nc, "main.box", &sandbusv1.Hello{})
	p, err := dir.Lookup(t.Context(), bus.DefaultZone, "box")
	require.NoError(t, err)
	require.EqualValues(t, 65535, p.Load)
	require.Zero(t, p.Used)
	require.EqualValues(t, 3, p.Seq)
}

// TestRegistrarsAgree has three of them hear the same beats, and two of them end.
func TestRegistrarsAgree(t *testing.T) {
	c := hubtest.Start(t, 1)
	var stops []func()
	for i := range 3 {
		stops = append(stops, c.Registrar(t, 0, fmt.Sprintf("r%d", i), bus.RegistrarConfig{System: c.System(t, 0)}))
	}
	dir := openDirectory(t, c.Connect(t, 0, bus.RoleHarness, "h"))
	const boxes, beats = 10, 40
	var workers []*bus.Announcer
	var wg sync.WaitGroup
	for i := range boxes {
		id := fmt.Sprintf("box%d", i)
		ready := make(chan struct{})
		a := &bus.Announcer{
			Conn: c.Connect(t, 0, bus.RoleSandbox, id), Target: bus.Target{Zone: bus.DefaultZone, Sandbox: bus.SandboxID(id), Instance: bus.NewInstanceID()},
			Hello: &sandbusv1.Hello{Slots: 1}, Ready: func() { close(ready) }, Logger: bustest.Logger(t),
		}
		workers = append(workers, a)
		ended := make(chan error, 1)
		go func() { ended <- a.Run(t.Context()) }()
		t.Cleanup(func() { require.NoError(t, <-ended) })
		select {
		case <-ready:
		case err := <-ended:
			require.NoError(t, err)
		}
	}
	for _, a := range workers {
		wg.Go(func() {
			for range beats {
				a.BeatNow()
			}
		})
	}
	stops[0]()
	wg.Wait()
	stops[1]()
	for _, a := range workers {
		a.BeatNow()
	}
	require.Eventually(t, func() bool {
		list, err := dir.List(t.Context())
		if err != nil || len(list) != boxes {
			return false
		}
		for _, p := range list {
			if p.Seq <= beats {
				return false
			}
		}
		return true
	}, patience, 10*time.Millisecond, "every worker's last beat is in the bucket")
	for i, a := range workers { // hb and evt are heard by the one that is left
		if i%2 == 0 {
			a.Goodbye("over")
			awaitGone(t, dir, a.Target.Sandbox)
		}
	}
	list, err := dir.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, boxes/2)
}

// TestRegistrarSeesAllAgain loses the bucket and the registrar of some thousand workers.
func TestRegistrarSeesAllAgain(t *testing.T) {
	const workers = 3000
	c := hubtest.Start(t, 1)
	stop := c.Registrar(t, 0, "r1", bus.RegistrarConfig{})
	dir := openDirectory(t, c.Connect(t, 0, bus.RoleHarness, "h"))
	swarm := c.Swarm(t, workers)
	all := func() bool {
		list, err := dir.List(t.Context())
		return err == nil && len(list) == workers
	}
	require.Eventually(t, all, patience, 50*time.Millisecond)
	stop()
	swarm.LoseBucket(t)
	begin := time.Now()
	c.Registrar(t, 0, "r2", bus.RegistrarConfig{})
	require.Eventually(t, all, patience, 50*time.Millisecond)
	t.Logf("all %d seen again after %s", workers, time.Since(begin))
}

// TestBucketIsMadeAnew loses the bucket under a registrar that runs.
func TestBucketIsMadeAnew(t *testing.T) {
	c := hubtest.Start(t, 1)
	c.Registrar(t, 0, "r", bus.RegistrarConfig{})
	dir := openDirectory(t, c.Connect(t, 0, bus.RoleHarness, "h"))
	swarm := c.Swarm(t, 50)
	all := func() bool {
		list, err := dir.List(t.Context())
		return err == nil && len(list) == 50
	}
	require.Eventually(t, all, patience, 20*time.Millisecond)
	swarm.LoseBucket(t)
	require.Eventually(t, all, patience, 20*time.Millisecond)
}

func TestRegistrarChecksItsConfig(t *testing.T) {
	c := hubtest.Start(t, 1)
	conn := c.Connect(t, 0, bus.RoleRegistrar, "r")
	_, err := bus.StartRegistrar(t.Context(), conn, bus.RegistrarConfig{Replicas: 6})
	require.ErrorContains(t, err, "want 1 to 5")
	_, err = bus.StartRegistrar(t.Context(), conn, bus.RegistrarConfig{Replicas: 3})
	require.ErrorContains(t, err, "3 replicas", "one server cannot have them")
	_, err = bus.ConnectSystem(t.Context(), bus.Config{URL: c.URL(0), Credential: c.Credential(t, bus.RoleHarness, "h")})
	require.ErrorContains(t, err, "is a harness's, want a system's")
}
