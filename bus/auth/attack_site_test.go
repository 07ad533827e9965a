package auth_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
)

// TestAttackFromAHostileSite has a site's server that refuses its clients nothing, and a client there that does what it
// likes: the hub holds the site to its zone. Nobody tells the client; the hub drops what it sends.
func TestAttackFromAHostileSite(t *testing.T) {
	a := newArena(t)
	site := a.site(t, a.Issue(t, bus.Identity{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "s1"}, 0), false, true)
	m := a.client(t, site.URL())
	a.control(t, m) // within its zone a site may speak for everybody

	var tried []publish
	for _, s := range []string{
		"rep.eu.mallory.h1.c.op", "rep.eu.x.h1.c.op", "hb.eu.x", "evt.eu.x.hello", "sbx.eu.x.i.exec.start", "sbx.main.victim.i.exec.start",
		"bc.main", "bc.eu", "_I.main.victim.hello", "_I.eu.x.hello", "_G.h1.x", "_INBOX.x", "$KV.presence.main.victim", "$KV.presence.eu.x",
		"$JS.API.STREAM.DELETE.KV_presence", "$JS.API.STREAM.CREATE.evil", "$JS.API.INFO", "$JS.API.CONSUMER.CREATE.KV_presence",
		"$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.SERVER.PING", "$SRV.PING", "anything",
	} {
		tried = append(tried, publish{subject: s}, publish{subject: s, header: nats.Header{"Nats-Rollup": {"all"}}})
	}
	for _, p := range tried {
		mark := a.mark()
		require.NoError(t, m.PublishMsg(&nats.Msg{Subject: p.subject, Header: p.header, Data: []byte(mark)}))
		sentinel := a.mark()
		require.NoError(t, m.Publish("rep.main.mallory.h1.c.sentinel", []byte(sentinel)))
		require.NoError(t, m.Flush())
		require.False(t, a.arrived(t, mark, sentinel), "%s %v was delivered", p.subject, p.header)
	}

	heard, err := m.SubscribeSync(">")
	require.NoError(t, err)
	require.NoError(t, heard.SetPendingLimits(-1, -1))
	require.NoError(t, m.Flush())
	own, err := m.SubscribeSync("sbx.main.victim.>")
	require.NoError(t, err)
	require.NoError(t, m.Flush())
	secrets := []string{
		"sbx.eu.x.i.exec.start", "rep.main.victim.h1.c.op", "rep.eu.x.h1.c.op", "hb.main.victim", "hb.eu.x", "evt.main.victim.hello",
		"bc.eu", "_I.eu.x.hello", "_G.h1.x", "_INBOX.x", "$KV.presence.eu.x", "anything",
	}
	require.Eventually(t, func() bool {
		for _, s := range secrets {
			require.NoError(t, a.witness.Publish(s, []byte("secret")))
		}
		require.NoError(t, a.witness.Publish("sbx.main.victim.i.sentinel", []byte("for the site")))
		msg, err := own.NextMsg(200 * time.Millisecond)
		return err == nil && string(msg.Data) == "for the site"
	}, patience, time.Millisecond, "the site hears nothing at all")
	require.NoError(t, m.Flush())
	for {
		msg, err := heard.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		require.NotEqual(t, "secret", string(msg.Data), msg.Subject)
	}
	t.Logf("%d publishes dropped by the hub, %d subjects not carried by it: the site's permissions", len(tried), len(secrets))
}

// TestAttackWithTheWrongKindOfConnection shows a site's credential as a client, and a sandbox's as a leaf node.
func TestAttackWithTheWrongKindOfConnection(t *testing.T) {
	a := newArena(t)
	site := a.Issue(t, bus.Identity{Role: bus.RoleSite, Zone: bus.DefaultZone, Name: "s1"}, 0)
	for _, url := range []string{a.URL(), a.WebSocketURL()} {
		require.Eventually(t, func() bool { // the hub may close before the client has written all: then it does not say why
			_, err := nats.Connect(url, shown(t, site), nats.Timeout(patience))
			require.Error(t, err)
			return errors.Is(err, nats.ErrAuthorization)
		}, patience, time.Millisecond, "refused by the hub: the role's connection types")
	}
	_, err := bus.Connect(t.Context(), a.Config(t, site))
	require.ErrorContains(t, err, "leaf node")

	// The site with a sandbox's credential is tried first; when another, right one has come in, the wrong one is not in.
	wrong := a.site(t, a.Issue(t, sandbox(attacker), 0), false, false)
	right := a.site(t, site, false, true)
	require.Equal(t, 1, a.Leafs())
	require.Equal(t, 1, right.Leafs())
	require.Zero(t, wrong.Leafs())
}

// TestAttackByALimitedHarness holds a harness to the zones of its credential, and each role to what is its own.
func TestAttackByALimitedHarness(t *testing.T) {
	a := newArena(t)
	id := bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h2", Zones: []bus.Zone{"eu", "us"}}
	m := a.client(t, a.URL(), shown(t, a.Issue(t, id, 0)))
	for _, s := range []string{
		"sbx.main.victim.i.exec.start", "rep.eu.x.h2.c.op", "hb.eu.x", "evt.eu.x.hello", "$KV.presence.eu.x", "$JS.API.STREAM.DELETE.KV_presence",
		"$JS.API.STREAM.PURGE.KV_presence", "$JS.API.STREAM.CREATE.evil", "bc.eu", "_I.eu.x.hello", "_G.h1.x", "$SYS.REQ.SERVER.PING",
	} {
		require.NoError(t, m.Publish(s, nil))
		m.refused(t, s)
	}
	for _, s := range []string{">", "sbx.eu.>", "hb.>", "evt.>", "rep.eu.>", "rep.*.*.h1.>", "_G.h1.>", "_I.>", "$KV.>", "$SYS.>"} {
		_, err := m.SubscribeSync(s)
		require.NoError(t, err)
		m.refused(t, s)
	}
	for _, s := range []string{"sbx.eu.x.i.exec.start", "sbx.us.x.i.exec.start"} {
		mark := a.mark()
		require.NoError(t, m.Publish(s, []byte(mark)))
		require.NoError(t, m.Flush())
		for {
			msg, err := a.seen.NextMsg(patience)
			require.NoError(t, err)
			if string(msg.Data) == mark {
				break
			}
		}
	}
}
