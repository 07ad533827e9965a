package auth_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
)

// publish is a wrong publish of a sandbox.
type publish struct {
	subject string
	header  nats.Header
	reply   string
}

// concrete is a subject that a pattern matches.
func concrete(pattern string) string {
	t := strings.Split(pattern, ".")
	for i, tok := range t {
		if tok == "*" || tok == ">" {
			t[i] = "x"
		}
	}
	return strings.Join(t, ".")
}

// others are the identities of all roles, beside the attacker.
func others() []bus.Identity {
	return []bus.Identity{
		sandbox(neighbour),
		{Role: bus.RoleSandbox, Zone: elsewhere, Name: attacker}, // the same id in another zone
		{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h1"},
		{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h2", Zones: []bus.Zone{bus.DefaultZone}},
		{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: "r1"},
		{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "s1"},
		{Role: bus.RoleSite, Zone: elsewhere, Name: "s2"},
		{Role: bus.RoleSystem, Zone: bus.DefaultZone, Name: "watch"},
		{Role: bus.RoleAdmin, Zone: bus.DefaultZone, Name: "auth"},
	}
}

// wrongPublishes are what a sandbox must not publish: all that others may, by each row of the permission table, and what
// the server itself would act on.
func wrongPublishes() []publish {
	var out []publish
	for _, id := range others() {
		for _, s := range id.Permissions().Publish {
			out = append(out, publish{subject: concrete(s)})
		}
	}
	for _, s := range []string{
		// Forged replies, beats and events; requests; answers to another's hello.
		"rep.main.victim.h1.c.op", "rep.eu.mallory.h1.c.op", "rep.main.mallory", "rep", "hb.main.victim", "hb.eu.mallory",
		"hb.main.mallory.x", "hb.main", "evt.main.victim.hello", "evt.main.victim.goodbye", "evt.eu.mallory.hello", "evt.main.mallory",
		"sbx.main.victim.i.exec.start", "sbx.main.victim.i.lease.acquire", "sbx.main.mallory.i.exec.start", "bc.main", "bc.eu",
		"_I.main.victim.hello", "_I.main.mallory.x", "_G.h1.x", "_INBOX.x", "_INBOX.main.mallory.x", "_R_.x",
		// Presence, JetStream.
		"$KV.presence.main.victim", "$KV.presence.main.mallory", "$KV.presence", "$KV.other.x",
		"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.CREATE.evil", "$JS.API.STREAM.UPDATE.KV_presence",
		"$JS.API.STREAM.DELETE.KV_presence", "$JS.API.STREAM.PURGE.KV_presence", "$JS.API.STREAM.INFO.KV_presence",
		"$JS.API.STREAM.MSG.GET.KV_presence", "$JS.API.STREAM.MSG.DELETE.KV_presence", "$JS.API.STREAM.SNAPSHOT.KV_presence",
		"$JS.API.DIRECT.GET.KV_presence", "$JS.API.DIRECT.GET.KV_presence.$KV.presence.main.victim",
		"$JS.API.CONSUMER.CREATE.KV_presence", "$JS.API.CONSUMER.CREATE.KV_presence.c.>", "$JS.API.CONSUMER.DURABLE.CREATE.KV_presence.d",
		"$JS.API.CONSUMER.MSG.NEXT.KV_presence.d", "$JS.API.CONSUMER.LIST.KV_presence", "$JS.API.ACCOUNT.PURGE.x", "$JS.API.META.LEADER.STEPDOWN",
		"$JS.ACK.KV_presence.c.1.1.1.1.1", "$JS.FC.KV_presence.c.x", "$JS.hub.API.STREAM.DELETE.KV_presence",
		// The server, discovery.
		"$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.CLAIMS.UPDATE",
		"$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.SERVER.x.KICK", "$SYS.ACCOUNT.x.DISCONNECT", "$SRV.PING", "$SRV.INFO.x.y", "anything", "svc.main.mallory.x",
	} {
		out = append(out, publish{subject: s})
	}
	for _, key := range []string{"$KV.presence.main.mallory", "$KV.presence.main.victim"} {
		for _, h := range []nats.Header{
			{"Nats-Rollup": {"all"}},
			{"Nats-Rollup": {"sub"}},
			{"Nats-TTL": {"never"}},
			{"Nats-TTL": {"1s"}},
			{"KV-Operation": {"PURGE"}},
			{"Nats-Expected-Last-Sequence": {"0"}},
		} {
			out = append(out, publish{subject: key, header: h})
		}
	}
	out = append(out, publish{subject: "rep.main.victim.h1.c.op", header: nats.Header{"Status": {"503"}}})
	own := sandbox(attacker).Permissions().Publish
	return slices.DeleteFunc(out, func(p publish) bool { return slices.Contains(own, p.subject) })
}

// wrongSubscribes are what a sandbox must not hear, with a subject that it would hear then.
func wrongSubscribes() map[string]string {
	out := map[string]string{}
	own := sandbox(attacker).Permissions().Subscribe
	for _, id := range others() {
		for _, s := range id.Permissions().Subscribe {
			out[s] = concrete(s)
		}
		for _, s := range id.Permissions().Publish { // and what is said to others by them
			out[s] = concrete(s)
		}
	}
	for _, s := range []string{
		">", "*", "*.>", "sbx.>", "sbx.main.>", "sbx.*.mallory.>", "sbx.main.*.>", "sbx.main.victim.>", "sbx.main.victim.i.exec.start",
		"sbx.eu.mallory.>", "rep.>", "rep.main.mallory.>", "rep.*.*.h1.>", "rep.main.victim.h1.>", "hb.>", "hb.main.mallory", "hb.main.victim",
		"evt.>", "evt.main.mallory.>", "evt.main.victim.>", "bc.>", "bc.*", "bc.eu", "_I.>", "_I.main.>", "_I.main.victim.>", "_I.eu.mallory.>",
		"_G.>", "_G.h1.>", "_INBOX.>", "_INBOX.x", "_R_.>", "$KV.>", "$KV.presence.>", "$KV.presence.main.victim", "$KV.presence.main.mallory",
		"$JS.>", "$JS.API.>", "$JS.EVENT.>", "$JS.EVENT.ADVISORY.>", "$JS.ACK.>", "$SYS.>", "$SYS.ACCOUNT.>", "$SRV.>", "$SRV.PING", "$G.>", "anything",
	} {
		out[s] = concrete(s)
	}
	for _, s := range own {
		delete(out, s)
	}
	return out
}

// ways are how a sandbox with a credential reaches the hub.
func ways(t *testing.T, a *arena) map[string]string {
	t.Helper()
	site := a.site(t, a.Issue(t, bus.Identity{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "s1"}, 0), true, true)
	return map[string]string{
		"direct":                a.URL(),
		"websocket":             a.WebSocketURL(),
		"through a leaf's site": site.URL(),
	}
}

// TestAttackPublish tries every wrong publish on every way: each is refused by the server that the sandbox is connected
// to, and nothing of it arrives anywhere in the account.
func TestAttackPublish(t *testing.T) {
	a := newArena(t)
	for way, url := range ways(t, a) {
		t.Run(way, func(t *testing.T) {
			m := a.client(t, url, shown(t, a.Issue(t, sandbox(attacker), time.Hour)))
			a.control(t, m)
			for _, p := range wrongPublishes() {
				mark := a.mark()
				require.NoError(t, m.PublishMsg(&nats.Msg{Subject: p.subject, Header: p.header, Reply: p.reply, Data: []byte(mark)}))
				sentinel := a.mark()
				require.NoError(t, m.Publish("rep.main.mallory.h1.c.sentinel", []byte(sentinel)))
				require.NoError(t, m.Flush())
				m.refused(t, p.subject)
				require.False(t, a.arrived(t, mark, sentinel), "%s %v was delivered", p.subject, p.header)
			}
			t.Logf("%d publishes: each refused by the server's permissions", len(wrongPublishes()))
		})
	}
}

// control makes sure that the witness would see what the attacker publishes.
func (a *arena) control(t *testing.T, m *client) {
	t.Helper()
	require.Eventually(t, func() bool { // a new leaf connection may not carry interest yet
		mark := a.mark()
		require.NoError(t, m.Publish("rep.main.mallory.h1.c.control", []byte(mark)))
		require.NoError(t, m.Flush())
		for {
			msg, err := a.seen.NextMsg(200 * time.Millisecond)
			if err != nil {
				return false
			}
			if string(msg.Data) == mark {
				return true
			}
		}
	}, patience, time.Millisecond, "the witness sees nothing")
}

// TestAttackSubscribe tries every wrong subscribe on every way: each is refused by the server that the sandbox is
// connected to, and nothing is heard.
func TestAttackSubscribe(t *testing.T) {
	a := newArena(t)
	for way, url := range ways(t, a) {
		t.Run(way, func(t *testing.T) {
			m := a.client(t, url, shown(t, a.Issue(t, sandbox(attacker), time.Hour)))
			a.control(t, m)
			heard := make(chan *nats.Msg, 1024) // more than there are attempts
			for _, queue := range []string{"", "q"} {
				for s := range wrongSubscribes() {
					_, err := m.ChanQueueSubscribe(s, queue, heard)
					require.NoError(t, err, "the client itself refuses")
					require.NoError(t, m.Flush())
					m.refused(t, s)
				}
			}
			own, err := m.SubscribeSync("sbx.main.mallory.>")
			require.NoError(t, err)
			require.NoError(t, m.Flush())
			for s, bait := range wrongSubscribes() {
				if !strings.HasPrefix(bait, "$JS.API") { // the hub would act on it
					require.NoError(t, a.witness.Publish(bait, []byte("secret")), s)
				}
			}
			require.Eventually(t, func() bool {
				require.NoError(t, a.witness.Publish("sbx.main.mallory.i.sentinel", []byte("for you")))
				msg, err := own.NextMsg(200 * time.Millisecond)
				return err == nil && string(msg.Data) == "for you"
			}, patience, time.Millisecond, "the sandbox hears nothing at all")
			require.Empty(t, heard)
			t.Logf("%d subscribes, each alone and in a queue group: refused by the server's permissions", len(wrongSubscribes()))
		})
	}
}

// TestAttackEmbeddedHub tries the same at an embedded hub, which has the same role definitions.
func TestAttackEmbeddedHub(t *testing.T) {
	b := bustest.Start(t)
	cred, err := b.Credential(sandbox(attacker))
	require.NoError(t, err)
	m := newClient(t, "", shown(t, cred), nats.InProcessServer(inProcess(b.Dial)))
	for _, p := range wrongPublishes() {
		require.NoError(t, m.PublishMsg(&nats.Msg{Subject: p.subject, Header: p.header, Data: []byte("x")}))
		m.refused(t, p.subject)
	}
	heard := make(chan *nats.Msg, 1024) // more than there are attempts
	for s := range wrongSubscribes() {
		_, err := m.ChanSubscribe(s, heard)
		require.NoError(t, err)
		m.refused(t, s)
	}
	require.Empty(t, heard)
}

// TestC67 is the case's own list, by the means of a NATS client: another's subject, everything, another's inbox,
// another's presence, leases, streams and consumers.
func TestC67SandboxReachesNothingOfOthers(t *testing.T) {
	a := newArena(t)
	_, err := a.witness.Subscribe("sbx.main.victim.i.lease.acquire", func(m *nats.Msg) { _ = m.Respond([]byte("granted")) })
	require.NoError(t, err)
	require.NoError(t, a.witness.Flush())
	m := a.client(t, a.URL(), shown(t, a.Issue(t, sandbox(attacker), 0)), nats.CustomInboxPrefix("_I.main.mallory"))
	for _, s := range []string{"sbx.main.victim.>", ">", "_I.main.victim.>", "_G.h1.>", "$KV.presence.main.victim"} {
		_, err := m.SubscribeSync(s)
		require.NoError(t, err)
		m.refused(t, s)
	}
	js, err := jetstream.New(m.Conn, jetstream.WithDefaultTimeout(300*time.Millisecond))
	require.NoError(t, err)
	ctx := t.Context()
	for what, f := range map[string]func() error{
		"bind the presence bucket": func() error { _, err := js.KeyValue(ctx, bus.PresenceBucket); return err },
		"write presence":           func() error { _, err := js.Publish(ctx, "$KV.presence.main.victim", []byte("{}")); return err },
		"create a stream": func() error {
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "evil", Subjects: []string{"sbx.>"}})
			return err
		},
		"create a consumer": func() error {
			_, err := js.CreateOrUpdateConsumer(ctx, "KV_presence", jetstream.ConsumerConfig{})
			return err
		},
		"delete the bucket": func() error { return js.DeleteKeyValue(ctx, bus.PresenceBucket) },
		"acquire a lease": func() error {
			_, err := m.Request("sbx.main.victim.i.lease.acquire", nil, 300*time.Millisecond)
			return err
		},
	} {
		require.Error(t, f(), what)
		select {
		case err := <-m.said:
			require.ErrorIs(t, err, nats.ErrPermissionViolation, what)
		case <-time.After(patience):
			require.Fail(t, "nobody refused it", what)
		}
	}
	// Its own place is open to it.
	_, err = m.SubscribeSync("sbx.main.mallory.>")
	require.NoError(t, err)
	require.NoError(t, m.Flush())
	for len(m.said) > 0 {
		require.NotContains(t, (<-m.said).Error(), "sbx.main.mallory")
	}
}
