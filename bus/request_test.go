package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

type (
	statReq  = sandbusv1.StatRequest
	statResp = sandbusv1.StatResponse
)

// serve runs a server for sandbox "box" with a few verbs, and a caller.
func serve(t *testing.T) (*bustest.Bus, bus.Target, *bus.Caller) {
	t.Helper()
	b := bustest.Start(t)
	target := bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: bus.NewInstanceID()}
	s := bus.NewServer(b.Connect(t, bus.RoleSandbox, "box"), target, bustest.Logger(t))
	bus.Handle(s, "echo", func(_ context.Context, req *statReq) (*statResp, error) {
		return &statResp{Info: &sandbusv1.FileInfo{Name: req.GetPath()}}, nil
	})
	s.HandleQuick("quick", bus.Quick(func(req *statReq) (*statResp, error) {
		return nil, &bus.Error{Code: sandbusv1.Code_CODE_NOT_FOUND, Message: "no " + req.GetPath(), Errno: 2, Path: "p\xff"}
	}))
	bus.Handle(s, "long", func(_ context.Context, req *statReq) (*statResp, error) {
		return &statResp{Info: &sandbusv1.FileInfo{NameRaw: bytes.Repeat([]byte(req.GetPath()), 1<<20)}}, nil
	})
	bus.HandleOp(s, "wait", func(ctx context.Context, _ *statReq) (*statResp, error) {
		<-ctx.Done()
		return nil, bus.Errorf(sandbusv1.Code_CODE_ABORTED, "%v", context.Cause(ctx))
	})
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		now, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("now"))
		s.Stop(now)
	})
	c, err := bus.NewCaller(b.Connect(t, bus.RoleHarness, "h"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return b, target, c
}

func TestRequest(t *testing.T) {
	_, target, c := serve(t)
	resp := &statResp{}
	require.NoError(t, c.Request(t.Context(), target, "echo", "", &statReq{Path: "x"}, resp))
	require.Equal(t, "x", resp.GetInfo().GetName())

	err := c.Request(t.Context(), target, "quick", "", &statReq{Path: "x"}, &statResp{})
	var be *bus.Error
	require.ErrorAs(t, err, &be)
	require.Equal(t, bus.Error{Code: sandbusv1.Code_CODE_NOT_FOUND, Message: "no x", Errno: 2, Path: "p\xff"}, *be)

	err = c.Request(t.Context(), target, "nosuch", "", &statReq{}, &statResp{})
	require.ErrorAs(t, err, &be)
	require.Equal(t, sandbusv1.Code_CODE_UNKNOWN_VERB, be.Code)

	resp = &statResp{}
	require.NoError(t, c.Request(t.Context(), target, "long", "", &statReq{Path: "abcdefgh"}, resp), "8 MiB in chunks")
	require.Equal(t, strings.Repeat("abcdefgh", 1<<20), string(resp.GetInfo().GetNameRaw()))

	err = c.Request(t.Context(), target, "echo", "", &statReq{Path: strings.Repeat("x", 1<<20)}, &statResp{})
	require.ErrorAs(t, err, &be)
	require.Equal(t, sandbusv1.Code_CODE_TOO_LARGE, be.Code)
}

func TestNoRespondersComesAtOnce(t *testing.T) {
	_, target, c := serve(t)
	for _, wrong := range []bus.Target{
		{Zone: target.Zone, Sandbox: target.Sandbox, Instance: "another"},
		{Zone: target.Zone, Sandbox: "other", Instance: target.Instance},
	} {
		require.ErrorIs(t, c.Request(t.Context(), wrong, "echo", "", &statReq{}, &statResp{}), bus.ErrNoResponders)
		st, err := c.Open(t.Context(), wrong, "echo", bus.NewOpID(), &statReq{}, 0, false)
		require.NoError(t, err)
		_, err = st.Next(t.Context())
		require.ErrorIs(t, err, bus.ErrNoResponders)
		st.Close()
	}
}

func TestAbortOfARequest(t *testing.T) {
	_, target, c := serve(t)
	op := bus.NewOpID()
	var be *bus.Error
	ended := make(chan error, 1)
	go func() { ended <- c.Request(t.Context(), target, "wait", op, &statReq{}, &statResp{}) }()
	state := ""
	require.Eventually(t, func() bool {
		resp := &sandbusv1.AbortResponse{}
		if err := c.Control(t.Context(), target, op, "abort", &sandbusv1.AbortRequest{}, resp); err != nil {
			return false
		}
		state = resp.GetState()
		return true
	}, 5*time.Second, time.Millisecond)
	require.Contains(t, []string{"running", "unknown"}, state, "also before the start")
	require.ErrorAs(t, <-ended, &be)
	require.Equal(t, sandbusv1.Code_CODE_ABORTED, be.Code)

	resp := &sandbusv1.AbortResponse{}
	require.NoError(t, c.Control(t.Context(), target, op, "abort", &sandbusv1.AbortRequest{}, resp), "twice is no error")
	require.Equal(t, "ended", resp.GetState())

	early := bus.NewOpID()
	require.NoError(t, c.Control(t.Context(), target, early, "abort", &sandbusv1.AbortRequest{}, resp))
	require.Equal(t, "unknown", resp.GetState())
	require.ErrorAs(t, c.Request(t.Context(), target, "wait", early, &statReq{}, &statResp{}), &be)
	require.Equal(t, sandbusv1.Code_CODE_ABORTED, be.Code)

	require.ErrorAs(t, c.Request(t.Context(), target, "wait", op, &statReq{}, &statResp{}), &be)
	require.Equal(t, sandbusv1.Code_CODE_ABORTED, be.Code, "the same again has the same answer")
	require.ErrorAs(t, c.Request(t.Context(), target, "wait", op, &statReq{Path: "other"}, &statResp{}), &be)
	require.Equal(t, sandbusv1.Code_CODE_CONFLICT, be.Code, "an op is never used for anything else")
}

type dialer func() (net.Conn, error)

func (d dialer) InProcessConn() (net.Conn, error) { return d() }

// raw is a client without anything of ours, as nats.go or the stock CLI are.
func raw(t *testing.T, b *bustest.Bus, role bus.Role, name, inbox string) (*nats.Conn, *atomic.Int32) {
	t.Helper()
	cred, err := b.Credential(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name})
	require.NoError(t, err)
	denied := &atomic.Int32{}
	nc, err := nats.Connect("", nats.InProcessServer(dialer(b.Dial)), nats.Token(cred.Token()), nats.CustomInboxPrefix(inbox),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				denied.Add(1)
			}
		}))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc, denied
}

func TestJSONFromAnyClient(t *testing.T) {
	b, target, _ := serve(t)
	nc, _ := raw(t, b, bus.RoleHarness, "h", "rep.main.box.h.cli")
	ask := func(verb, body string) string {
		m := nats.NewMsg("sbx." + target.String() + "." + verb)
		m.Data = []byte(body)
		m.Header.Set("Content-Type", "application/json")
		answer, err := nc.RequestMsg(m, 5*time.Second)
		require.NoError(t, err)
		require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
		return strings.ReplaceAll(string(answer.Data), " ", "")
	}
	require.JSONEq(t, `{"info":{"name":"/etc"}}`, ask("echo", `{"path":"/etc"}`))
	require.JSONEq(t, `{"info":{}}`, ask("echo", ``))
	require.Contains(t, ask("echo", `{"paht":"/etc"}`), `"CODE_INVALID"`)
	require.Contains(t, ask("echo", `garbage`), `"CODE_INVALID"`)
	require.Contains(t, ask("quick", `{"path":"x"}`), `"CODE_NOT_FOUND"`)
	require.Contains(t, ask("long", `{"path":"abcdefgh"}`), `"CODE_TOO_LARGE"`)
	require.Contains(t, ask("nosuch", `{}`), `"CODE_UNKNOWN_VERB"`)
	require.Contains(t, ask("echo", `{"meta":{"op":"Not.A.Token"}}`), `"CODE_INVALID"`)
}

// TestRolesAreEnforced tries with each credential what its role does not allow, and that the hub says no.
func TestRolesAreEnforced(t *testing.T) {
	b, target, _ := serve(t)
	for _, c := range []struct {
		role      bus.Role
		name      string
		subscribe []string
		publish   []string
	}{
		{
			bus.RoleSandbox, "box",
			[]string{">", "sbx.main.other.>", "sbx.>", "rep.>", "hb.>", "evt.>", "_INBOX.>", "_I.main.other.>", "bc.other", "$KV.>", "$JS.>", "$SYS.>"},
			[]string{"sbx." + target.String() + ".echo", "rep.main.other.h.c.o", "hb.main.other", "evt.main.other.hello", "bc.main", "_INBOX.x", "_I.main.box.x", "$KV.presence.main.box", "$JS.API.INFO", "$SRV.PING"},
		},
		{
			bus.RoleHarness, "h2",
			[]string{">", "rep.*.*.h.>", "rep.>", "sbx.>", "hb.>", "evt.>", "_G.h.>", "_INBOX.>", "$KV.>"},
			[]string{"rep.main.box.h.c.o", "hb.main.box", "evt.main.box.goodbye", "bc.main", "$KV.presence.main.box", "$JS.API.STREAM.DELETE.KV_presence", "$JS.API.STREAM.PURGE.KV_presence"},
		},
		{
			bus.RoleRegistrar, "r",
			[]string{">", "sbx.>", "rep.>"},
			[]string{"sbx." + target.String() + ".echo", "rep.main.box.h.c.o", "$JS.API.STREAM.DELETE.KV_presence"},
		},
	} {
		for _, s := range c.subscribe {
			nc, denied := raw(t, b, c.role, c.name, "_I.main.box")
			_, err := nc.SubscribeSync(s)
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			require.Eventually(t, func() bool { return denied.Load() > 0 }, 5*time.Second, time.Millisecond, "%s subscribes %s", c.role, s)
		}
		for _, s := range c.publish {
			nc, denied := raw(t, b, c.role, c.name, "_I.main.box")
			require.NoError(t, nc.Publish(s, []byte("x")))
			require.NoError(t, nc.Flush())
			require.Eventually(t, func() bool { return denied.Load() > 0 }, 5*time.Second, time.Millisecond, "%s publishes %s", c.role, s)
		}
	}
}

func TestWrongCredentialIsRefusedAtOnce(t *testing.T) {
	b, err := hub.Start(t.Context(), hub.Config{})
	require.NoError(t, err)
	defer b.Stop()
	id := bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h"}
	cred, err := bus.NewMinter().Issue(id)
	require.NoError(t, err)
	begin := time.Now()
	_, err = bus.Connect(t.Context(), bus.Config{URL: b.URL(), Credential: cred, ConnectTimeout: time.Minute})
	require.ErrorIs(t, err, bus.ErrRefused)
	require.Less(t, time.Since(begin), 30*time.Second)
	require.NotContains(t, err.Error(), cred.Proof())
	_, err = bus.Connect(t.Context(), bus.Config{URL: b.URL()})
	require.ErrorContains(t, err, "no credential")
	ok, err := b.Credential(id)
	require.NoError(t, err)
	_, err = bus.Connect(t.Context(), bus.Config{URL: "nats://127.0.0.1:1", Credential: ok, ConnectTimeout: 100 * time.Millisecond})
	var ce *bus.ConnectError
	require.ErrorAs(t, err, &ce)
	require.Contains(t, err.Error(), "nats://127.0.0.1:1")
	require.GreaterOrEqual(t, ce.After, 100*time.Millisecond)
}

// TestOnlyTheAskedSandboxAnswers has another sandbox say something on a reply subject of its own that names the same
// op: it must not count.
func TestOnlyTheAskedSandboxAnswers(t *testing.T) {
	b, target, c := serve(t)
	evil, _ := raw(t, b, bus.RoleSandbox, "evil", "_I.main.evil")
	op := bus.NewOpID()
	ended := make(chan error, 1)
	go func() { ended <- c.Request(t.Context(), target, "wait", op, &statReq{}, &statResp{}) }()
	spy, _ := raw(t, b, bus.RoleHarness, "h", "_G.h")
	sub, err := spy.SubscribeSync("rep.main.evil.h.>")
	require.NoError(t, err)
	require.NoError(t, spy.Flush())
	for i := range 100 {
		require.NoError(t, evil.Publish(fmt.Sprintf("rep.main.evil.h.conn%d.%s", i, op), []byte("\x0a\x02\x08\x01")))
	}
	require.NoError(t, evil.Flush())
	_, err = sub.NextMsg(5 * time.Second)
	require.NoError(t, err, "the hub lets it through: the sandbox may say that of itself")
	require.Eventually(t, func() bool {
		resp := &sandbusv1.AbortResponse{}
		require.NoError(t, c.Control(t.Context(), target, op, "abort", &sandbusv1.AbortRequest{}, resp))
		return resp.GetState() == "running" || resp.GetState() == "ended"
	}, 5*time.Second, time.Millisecond)
	var be *bus.Error
	require.ErrorAs(t, <-ended, &be)
	require.Equal(t, sandbusv1.Code_CODE_ABORTED, be.Code)
}
