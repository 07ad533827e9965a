package auth_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// live is a sandbox that its registrar knows, with a request that a test answers.
type live struct {
	target bus.Target
	asked  chan *bus.Request
	answer chan struct{}
}

// startVictim runs a worker's bus side for the neighbour and returns when it is known at the hub.
func startVictim(t *testing.T, a *arena) *live {
	t.Helper()
	conn := a.Connect(t, a.Issue(t, sandbox(neighbour), 0))
	v := &live{
		target: bus.Target{Zone: bus.DefaultZone, Sandbox: neighbour, Instance: bus.NewInstanceID()},
		asked:  make(chan *bus.Request, 1), answer: make(chan struct{}),
	}
	srv := bus.NewServer(conn, v.target, bustest.Logger(t))
	bus.Handle(srv, "fs.stat", func(ctx context.Context, _ *sandbusv1.StatRequest) (*sandbusv1.StatResponse, error) {
		select {
		case <-v.answer:
		case <-ctx.Done():
		}
		return &sandbusv1.StatResponse{Info: &sandbusv1.FileInfo{Size: 42}}, nil
	})
	require.NoError(t, srv.Start())
	ready := make(chan struct{})
	an := &bus.Announcer{
		Conn: conn, Target: v.target, Hello: &sandbusv1.Hello{Slots: 1}, Ready: func() { close(ready) }, Logger: bustest.Logger(t),
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := an.Run(ctx); err != nil {
			t.Errorf("the neighbour was put out: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		wg.Wait()
		srv.Stop(context.Background())
	})
	select {
	case <-ready:
	case <-time.After(patience):
		require.Fail(t, "the neighbour never came up")
	}
	return v
}

// presence is what the hub says of the neighbour.
func presence(t *testing.T, a *arena) (bus.Presence, error) {
	t.Helper()
	conn := a.Connect(t, a.Issue(t, bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h9"}, 0))
	defer conn.Close()
	d, err := bus.OpenDirectory(t.Context(), conn)
	require.NoError(t, err)
	return d.Lookup(t.Context(), bus.DefaultZone, neighbour)
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}

// TestAttackWithContent says wrong things on subjects that the sandbox may use. They are harmless: the registrar or the
// harness drops them, and nothing of others changes.
func TestAttackWithContent(t *testing.T) {
	a := newArena(t)
	v := startVictim(t, a)
	m := a.client(t, a.URL(), shown(t, a.Issue(t, sandbox(attacker), 0)), nats.CustomInboxPrefix("_I.main.mallory"))
	other := string(bus.NewInstanceID())
	good := &sandbusv1.Hello{Instance: other, Protocol: bus.ProtocolVersion, Slots: 1}
	changed := func(f func(*sandbusv1.Hello)) []byte {
		h, ok := proto.Clone(good).(*sandbusv1.Hello)
		require.True(t, ok)
		f(h)
		return encode(t, h)
	}
	labels := map[string]string{}
	for i := range 65 {
		labels[fmt.Sprint("l", i)] = "x"
	}
	hello := "evt.main.mallory.hello"
	for name, p := range map[string]*nats.Msg{
		// The registrar answers on a subject of its asker only.
		"a hello that is to be answered into presence":  {Subject: hello, Reply: "$KV.presence.main.victim", Data: encode(t, good)},
		"a hello that is to be answered to a neighbour": {Subject: hello, Reply: "_I.main.victim.hello", Data: encode(t, good)},
		"a hello that is to be answered to a harness":   {Subject: hello, Reply: "_G.h1.x", Data: encode(t, good)},
		"a hello that is to be answered as a request":   {Subject: hello, Reply: "sbx.main.victim.i.exec.start", Data: encode(t, good)},
		"a hello of bytes":                                {Subject: hello, Reply: "_I.main.mallory.r", Data: []byte("\xff\xff\xff\xff")},
		"a hello without anything":                        {Subject: hello, Reply: "_I.main.mallory.r"},
		"a hello with 65 labels":                          {Subject: hello, Reply: "_I.main.mallory.r", Data: changed(func(h *sandbusv1.Hello) { h.Labels = labels })},
		"a hello with a label of 100 kB":                  {Subject: hello, Reply: "_I.main.mallory.r", Data: changed(func(h *sandbusv1.Hello) { h.Labels = map[string]string{"a": strings.Repeat("x", 100_000)} })},
		"a hello with a million slots":                    {Subject: hello, Reply: "_I.main.mallory.r", Data: changed(func(h *sandbusv1.Hello) { h.Slots = 1_000_000 })},
		"a hello with trust of its own invention":         {Subject: hello, Reply: "_I.main.mallory.r", Data: changed(func(h *sandbusv1.Hello) { h.Trust = "root" })},
		"a hello with an instance that is no token":       {Subject: hello, Reply: "_I.main.mallory.r", Data: changed(func(h *sandbusv1.Hello) { h.Instance = "*" })},
		"a beat of the neighbour's instance":              {Subject: "hb.main.mallory", Data: encode(t, &sandbusv1.Beat{Instance: string(v.target.Instance), Draining: true})},
		"a beat of bytes":                                 {Subject: "hb.main.mallory", Data: []byte("\xff\xff\xff\xff")},
		"a beat with rollup":                              {Subject: "hb.main.mallory", Header: nats.Header{"Nats-Rollup": {"all"}}, Data: encode(t, &sandbusv1.Beat{Instance: other})},
		"a beat that never ends":                          {Subject: "hb.main.mallory", Header: nats.Header{"Nats-TTL": {"never"}}, Data: encode(t, &sandbusv1.Beat{Instance: other})},
		"a beat of 900 kB":                                {Subject: "hb.main.mallory", Data: make([]byte, 900_000)},
		"a goodbye of the neighbour's instance":           {Subject: "evt.main.mallory.goodbye", Data: encode(t, &sandbusv1.Goodbye{Instance: string(v.target.Instance)})},
		"an event that nobody knows":                      {Subject: "evt.main.mallory.x.y.z", Data: []byte("x")},
		"a trace that the server is to send to a witness": {Subject: "evt.main.mallory.x", Header: nats.Header{"Nats-Trace-Dest": {"rep.main.mallory.h1.c.trace"}}, Data: []byte("x")},
	} {
		require.NoError(t, m.PublishMsg(p), name)
	}
	require.NoError(t, m.Flush())
	select {
	case err := <-m.said:
		require.NoError(t, err, "the hub lets a sandbox say what it likes on its own subjects")
	default:
	}

	// A reply subject of JetStream's is refused by the hub itself, in the name of the sender.
	deletion := "$JS.API.STREAM.DELETE.KV_presence"
	require.NoError(t, m.PublishMsg(&nats.Msg{Subject: hello, Reply: deletion, Data: encode(t, good)}))
	m.refused(t, deletion)

	// The server's own header is a publish by itself, and is held to the same permissions.
	require.NoError(t, m.PublishMsg(&nats.Msg{Subject: "hb.main.mallory", Header: nats.Header{"Nats-Trace-Dest": {"rep.main.victim.h1.c.op"}}}))
	select {
	case err := <-m.said:
		require.ErrorIs(t, err, nats.ErrPermissionViolation)
	case <-time.After(patience):
		require.Fail(t, "a trace to another's subject was not refused")
	}

	// The registrar is still there, and has taken in what came before: it answers in the order of one sandbox's messages.
	reply, err := m.Request(hello, encode(t, good), patience)
	require.NoError(t, err)
	var resp sandbusv1.HelloResponse
	require.NoError(t, proto.Unmarshal(reply.Data, &resp))
	p, err := presence(t, a)
	require.NoError(t, err)
	require.Equal(t, v.target.Instance, p.Instance)
	require.False(t, p.Draining)

	for {
		msg, err := a.seen.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		for _, s := range []string{"_I.main.victim.hello", "_G.h1.x", "sbx.main.victim.i.exec.start", "$JS.API.STREAM.DELETE.KV_presence"} {
			require.NotEqual(t, s, msg.Subject, "the registrar was made to speak for the sandbox")
		}
	}
}

// TestAttackOnACall forges answers to a harness's call to the neighbour, with full knowledge of its reply subject.
func TestAttackOnACall(t *testing.T) {
	a := newArena(t)
	v := startVictim(t, a)
	m := a.client(t, a.URL(), shown(t, a.Issue(t, sandbox(attacker), 0)))
	caller, err := bus.NewCaller(a.Connect(t, a.Issue(t, bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"}, 0)))
	require.NoError(t, err)
	defer caller.Close()
	type result struct {
		resp sandbusv1.StatResponse
		err  error
	}
	done := make(chan *result, 1)
	go func() {
		r := &result{}
		r.err = caller.Request(t.Context(), v.target, "fs.stat", "", &sandbusv1.StatRequest{Path: "x"}, &r.resp)
		done <- r
	}()
	var reply string
	for reply == "" {
		msg, err := a.seen.NextMsg(patience)
		require.NoError(t, err)
		if strings.HasPrefix(msg.Subject, "sbx.main.victim.") && strings.HasSuffix(msg.Subject, ".fs.stat") {
			reply = msg.Reply
		}
	}
	forged := encode(t, &sandbusv1.StatResponse{Info: &sandbusv1.FileInfo{Size: 666}})
	mine := strings.Replace(reply, "rep.main.victim.", "rep.main.mallory.", 1)
	require.NotEqual(t, reply, mine)
	for _, h := range []nats.Header{nil, {"Status": {"503"}}, {"Nats-Service-Error": {"x"}}} {
		require.NoError(t, m.PublishMsg(&nats.Msg{Subject: reply, Header: h, Data: forged}))
		m.refused(t, reply) // by the hub
		require.NoError(t, m.PublishMsg(&nats.Msg{Subject: mine, Header: h, Data: forged}))
	}
	require.NoError(t, m.Flush()) // these arrive, and the harness drops them: it asked somebody else
	close(v.answer)
	r := <-done
	require.NoError(t, r.err)
	require.EqualValues(t, 42, r.resp.GetInfo().GetSize())
}

// TestAttackFlood sends more than anybody asked for. It costs the neighbour nothing: its presence stays, its calls are
// answered.
func TestAttackFlood(t *testing.T) {
	a := newArena(t)
	require.NoError(t, a.seen.Unsubscribe()) // the witness would be the slow one
	v := startVictim(t, a)
	close(v.answer)
	caller, err := bus.NewCaller(a.Connect(t, a.Issue(t, bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"}, 0)))
	require.NoError(t, err)
	defer caller.Close()
	before, err := presence(t, a)
	require.NoError(t, err)

	quit := make(chan struct{})
	var wg sync.WaitGroup
	for _, subject := range []string{"hb.main.mallory", "evt.main.mallory.hello", "rep.main.mallory.h1.c.op"} {
		m := a.client(t, a.URL(), shown(t, a.Issue(t, sandbox(attacker), 0)))
		wg.Go(func() {
			payload := make([]byte, 1024)
			for range 4_000 {
				select {
				case <-quit:
					return
				default:
				}
				if m.Publish(subject, payload) != nil {
					return // the hub has put it out
				}
			}
		})
	}
	for range 20 {
		var resp sandbusv1.StatResponse
		require.NoError(t, caller.Request(t.Context(), v.target, "fs.stat", "", &sandbusv1.StatRequest{Path: "x"}, &resp))
		require.EqualValues(t, 42, resp.GetInfo().GetSize())
	}
	close(quit)
	wg.Wait()
	require.Eventually(t, func() bool { // a beat that the neighbour sent meanwhile or after has come through
		p, err := presence(t, a)
		return err == nil && p.LastBeat.After(before.LastBeat)
	}, patience, 100*time.Millisecond)
	p, err := presence(t, a)
	require.NoError(t, err)
	require.Equal(t, v.target.Instance, p.Instance)
	require.Equal(t, before.Started, p.Started, "it was lost in between")
}

// rawDialer keeps the network connection, so that a test can write what no NATS client would.
type rawDialer struct{ nc net.Conn }

func (d *rawDialer) Dial(network, address string) (net.Conn, error) {
	nc, err := (&net.Dialer{}).Dial(network, address)
	d.nc = nc
	return nc, err
}

// TestAttackWithMalformedProtocol writes wrong protocol on an admitted connection: the server ends that connection or
// drops the line, and goes on for others.
func TestAttackWithMalformedProtocol(t *testing.T) {
	a := newArena(t)
	v := startVictim(t, a)
	close(v.answer)
	cred := a.Issue(t, sandbox(attacker), 0)
	for name, c := range map[string]struct {
		line  string
		fatal bool // the server ends the connection
	}{
		"oversize payload":        {"PUB rep.main.mallory.h1.c.op 2000000\r\n", true},
		"negative size":           {"PUB rep.main.mallory.h1.c.op -1\r\n", true},
		"a size that overflows":   {"PUB rep.main.mallory.h1.c.op 99999999999999999999\r\n", true},
		"a subject of 5 kB":       {"PUB rep.main.mallory." + strings.Repeat("x", 5000) + " 0\r\n\r\n", true},
		"an unknown verb":         {"EVIL x\r\n", true},
		"a leaf's verb":           {"LS+ >\r\n", true},
		"a route's verb":          {"RS+ $G >\r\n", true},
		"a payload without end":   {"PUB rep.main.mallory.h1.c.op 2\r\nxxxxx\r\n", true},
		"a header that is none":   {"HPUB rep.main.mallory.h1.c.op 99 5\r\nhello\r\n", true},
		"empty tokens":            {"PUB rep.main..victim 6\r\nforged\r\n", false},
		"a wildcard as a subject": {"PUB rep.main.* 6\r\nforged\r\n", false},
		"NUL in a subject":        {"PUB rep.main.victim.\x00 6\r\nforged\r\n", false},
		"upper case of another":   {"PUB REP.main.victim.h1.c.op 6\r\nforged\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			raw := &rawDialer{}
			closed := make(chan struct{})
			m := dial(t, a.URL(), nats.Options{CustomDialer: raw}, shown(t, cred), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
			require.NoError(t, m.Flush())
			_, err := raw.nc.Write([]byte(c.line))
			require.NoError(t, err)
			if c.fatal {
				select {
				case <-closed:
				case <-time.After(patience):
					require.Fail(t, "the server did not end the connection")
				}
				return
			}
			sentinel := a.mark()
			require.NoError(t, m.Publish("rep.main.mallory.h1.c.sentinel", []byte(sentinel)))
			require.NoError(t, m.Flush())
			require.False(t, a.arrived(t, "forged", sentinel), "it was delivered")
		})
	}
	p, err := presence(t, a)
	require.NoError(t, err)
	require.Equal(t, v.target.Instance, p.Instance)
}
