package auth_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
)

// TestSystemRole hears of a disconnect at once, and ends a connection; it may do nothing else in the system account.
func TestSystemRole(t *testing.T) {
	o := bustest.StartOperator(t)
	m := newClient(t, o.URL(), shown(t, o.Issue(t, bus.Identity{Role: bus.RoleSystem, Zone: bus.DefaultZone, Name: "watch"}, 0)),
		nats.CustomInboxPrefix("_G.watch"))
	connects, err := m.SubscribeSync("$SYS.ACCOUNT.*.CONNECT")
	require.NoError(t, err)
	disconnects, err := m.SubscribeSync("$SYS.ACCOUNT.*.DISCONNECT")
	require.NoError(t, err)
	require.NoError(t, m.Flush())

	closed := make(chan struct{})
	cred := o.Issue(t, sandbox("box1"), 0)
	d, _ := cred.Details()
	dial(t, o.URL(), nats.Options{}, shown(t, cred), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	type event struct {
		Server struct {
			ID string `json:"id"`
		} `json:"server"`
		Client struct {
			ID  uint64 `json:"id"`
			Key string `json:"user"`
		} `json:"client"`
	}
	next := func(sub *nats.Subscription) (e event) {
		for e.Client.Key != d.Key {
			msg, err := sub.NextMsg(patience)
			require.NoError(t, err)
			e = event{}
			require.NoError(t, json.Unmarshal(msg.Data, &e))
		}
		return e
	}
	e := next(connects)
	_, err = m.Request("$SYS.REQ.SERVER."+e.Server.ID+".KICK", fmt.Appendf(nil, `{"cid":%d}`, e.Client.ID), patience)
	require.NoError(t, err)
	select {
	case <-closed:
	case <-time.After(patience):
		require.Fail(t, "it was not put out")
	}
	require.Equal(t, e.Client.ID, next(disconnects).Client.ID)

	for _, s := range []string{"$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.SERVER.PING.JSZ", "$SYS.REQ.SERVER." + e.Server.ID + ".RELOAD"} {
		require.NoError(t, m.Publish(s, nil))
		m.refused(t, s)
	}
}
