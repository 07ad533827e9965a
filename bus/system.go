package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
)

// System is a connection to a hub's system account, by which a registrar learns at once of closed connections and ends
// those of duplicate workers. It reconnects by itself.
type System struct{ conn *Conn }

// ConnectSystem reaches the system account with a credential of [RoleSystem]. Errors: another role; as Connect.
func ConnectSystem(ctx context.Context, cfg Config) (*System, error) {
	if role := cfg.Credential.Identity().Role; role != RoleSystem {
		return nil, fmt.Errorf("system account: the credential is a %s's, want a %s's", role, RoleSystem)
	}
	conn, err := Connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("system account: %w", err)
	}
	return &System{conn: conn}, nil
}

// Close ends the connection.
func (s *System) Close() { s.conn.Close() }

// connection is one client connection of the hub. The zero value is none.
type connection struct {
	server string // the server's id
	client uint64 // its number there
}

// disconnectEvent is what is read of the server's message.
type disconnectEvent struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Client struct {
		ID uint64 `json:"id"`
	} `json:"client"`
	Reason string `json:"reason"`
}

// serverShutdown is the reason of a server that ends in good order: its clients go to another one, which is no news of
// them.
const serverShutdown = "Server Shutdown"

// onDisconnect tells of every connection that was closed, until stop is called.
func (s *System) onDisconnect(tell func(connection)) (stop func(), err error) {
	sub, err := s.conn.nc.Subscribe("$SYS.ACCOUNT.*.DISCONNECT", func(m *nats.Msg) {
		var e disconnectEvent
		if json.Unmarshal(m.Data, &e) == nil && e.Reason != serverShutdown {
			tell(connection{e.Server.ID, e.Client.ID})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("system account: %w", err)
	}
	if err := errors.Join(sub.SetPendingLimits(pendingMsgs, pendingBytes), s.conn.nc.FlushTimeout(drainTimeout)); err != nil {
		return nil, fmt.Errorf("system account: subscribe to disconnect events: %w", err)
	}
	return func() { endSubscription(sub) }, nil
}

// subscribes says whether a connection is open and subscribes to a subject. What a client subscribes to is what the hub
// allows it: this is how a connection is known to be a sandbox's, whatever it says of itself.
func (s *System) subscribes(ctx context.Context, c connection, subject string) (bool, error) {
	answer := struct {
		Data struct {
			Connections []struct {
				Subscriptions []string `json:"subscriptions_list"`
			} `json:"connections"`
		} `json:"data"`
	}{}
	if err := s.ask(ctx, c.server, "CONNZ", map[string]any{"cid": c.client, "subscriptions": true}, &answer); err != nil {
		return false, err
	}
	for _, conn := range answer.Data.Connections {
		if slices.Contains(conn.Subscriptions, subject) {
			return true, nil
		}
	}
	return false, nil
}

// kick closes a connection.
func (s *System) kick(ctx context.Context, c connection) error {
	return s.ask(ctx, c.server, "KICK", map[string]any{"cid": c.client}, &struct{}{})
}

func (s *System) ask(ctx context.Context, server, what string, req, answer any) error {
	if !isServerID(server) {
		return fmt.Errorf("system account: server id %.80q: want capital letters and digits", server)
	}
	payload, err := json.Marshal(req)
	if err != nil {
		return err
	}
	m, err := s.conn.nc.RequestWithContext(ctx, join("$SYS.REQ.SERVER", server, what), payload)
	if err != nil {
		return fmt.Errorf("system account: %s: %w", what, err)
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return fmt.Errorf("system account: %s: %w", what, err)
	}
	return nil
}

// isServerID knows the ids that servers give themselves (public keys in base 32): others must not stand in a subject.
func isServerID(s string) bool {
	for _, c := range s {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
