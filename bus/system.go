package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// SystemConfig says how to reach a hub's system account. One of Token and CredentialsFile must be set.
type SystemConfig struct {
	// URL is the hub's address, as in Config. Must not be empty, unless Dial is set.
	URL string
	// Dial connects to a hub in this process instead of URL; nil means URL.
	Dial func() (net.Conn, error)
	// Token is a secret of a hub in this process.
	Token string
	// CredentialsFile is a NATS credentials file of a user of the system account, which may subscribe to
	// "$SYS.ACCOUNT.*.DISCONNECT" and its own inboxes, and publish to "$SYS.REQ.SERVER.*.CONNZ" and "$SYS.REQ.SERVER.*.KICK".
	CredentialsFile string
	// Logger gets connection events; nil discards them.
	Logger *slog.Logger
}

// System is a connection to a hub's system account, by which a registrar learns at once of closed connections and ends
// those of duplicate workers. It reconnects by itself.
type System struct{ nc *nats.Conn }

// ConnectSystem reaches the system account; it makes one attempt.
func ConnectSystem(cfg SystemConfig) (*System, error) {
	if (cfg.Token == "") == (cfg.CredentialsFile == "") {
		return nil, errors.New("system account: want either a token or a credentials file")
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	opts := []nats.Option{
		nats.Name("sandbus registrar, system account"),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(200*time.Millisecond, time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Error("hub's system account reports", "error", err)
		}),
	}
	if cfg.Token != "" {
		opts = append(opts, nats.Token(cfg.Token))
	} else {
		opts = append(opts, nats.UserCredentials(cfg.CredentialsFile))
	}
	if cfg.Dial != nil {
		opts = append(opts, nats.InProcessServer(inProcess(cfg.Dial)))
	}
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("system account: connect: %w", err)
	}
	return &System{nc: nc}, nil
}

// Close ends the connection.
func (s *System) Close() { s.nc.Close() }

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
	sub, err := s.nc.Subscribe("$SYS.ACCOUNT.*.DISCONNECT", func(m *nats.Msg) {
		var e disconnectEvent
		if json.Unmarshal(m.Data, &e) == nil && e.Reason != serverShutdown {
			tell(connection{e.Server.ID, e.Client.ID})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("system account: %w", err)
	}
	if err := errors.Join(sub.SetPendingLimits(pendingMsgs, pendingBytes), s.nc.FlushTimeout(drainTimeout)); err != nil {
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
	m, err := s.nc.RequestWithContext(ctx, join("$SYS.REQ.SERVER", server, what), payload)
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
