// Package hub is a NATS server with JetStream and the registrar inside this process: the hub of one machine.
//
// It listens on loopback only, and every client needs a token that this hub's key made; the permissions are those of
// [bus.Identity.Permissions]. A hub for other machines is a nats-server of its own.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus"
)

// Config says how to run an embedded hub. Its zero value is a hub with a random port and no state.
type Config struct {
	// Dir is where the hub keeps its lock, its key and JetStream's data; other programs of the same user find the hub
	// by it. A hub that starts there again accepts the tokens of the one before. Empty means a temporary directory that Stop removes.
	Dir string
	// Port is the TCP port on 127.0.0.1; zero means a free one, and NoListen means none at all.
	Port int
	// Logger gets the registrar's and the server's messages; nil discards them.
	Logger *slog.Logger
}

// NoListen as a port means that the hub is reached by Dial only.
const NoListen = -1

const (
	readyWait      = 10 * time.Second
	maxPayload     = 1 << 20
	jetStreamMem   = 256 << 20 // presence of 10,000 sandboxes takes about 20 MiB
	jetStreamStore = 1 << 30
	registrarName  = "embedded"
)

// Hub is a running embedded hub.
type Hub struct {
	cfg       Config
	srv       *server.Server
	minter    *bus.Minter
	state     *stateDir
	temp      bool
	conn      *bus.Conn
	registrar *bus.Registrar
}

// ErrRunning says that another hub uses the directory.
var ErrRunning = errors.New("a hub is running there already")

// Start runs a hub; it serves when Start returns. Errors: ErrRunning, a taken port, a directory that cannot be used.
func Start(ctx context.Context, cfg Config) (_ *Hub, err error) {
	if cfg.Port < NoListen || cfg.Port > 65535 {
		return nil, fmt.Errorf("hub port %d: want 1 to 65535, or 0 for a free one", cfg.Port)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Hub{cfg: cfg}
	defer func() {
		if err != nil {
			h.Stop()
		}
	}()
	dir := cfg.Dir
	if dir == "" {
		h.temp = true
		if dir, err = os.MkdirTemp("", "sandbus-hub-"); err != nil {
			return nil, fmt.Errorf("hub directory: %w", err)
		}
	}
	if h.state, err = lockState(dir); err != nil {
		return nil, err
	}
	if h.minter, err = h.state.minter(); err != nil {
		return nil, err
	}
	if err := h.serve(); err != nil {
		return nil, err
	}
	if err := h.startRegistrar(ctx); err != nil {
		return nil, err
	}
	if err := h.state.publish(State{URL: h.URL(), Key: h.minter.Key(), PID: os.Getpid()}); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Hub) serve() error {
	opts := &server.Options{
		ServerName: "sandbus", Host: "127.0.0.1", Port: h.cfg.Port, DontListen: h.cfg.Port == NoListen,
		NoSigs: true, MaxPayload: maxPayload,
		PingInterval: 20 * time.Second, MaxPingsOut: 2,
		JetStream: true, StoreDir: filepath.Join(h.state.dir, "jetstream"),
		JetStreamMaxMemory: jetStreamMem, JetStreamMaxStore: jetStreamStore,
		CustomClientAuthentication: &gate{minter: h.minter, log: h.cfg.Logger},
	}
	if h.cfg.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if h.cfg.Port > 0 {
		// The server itself says of a taken port only in its log (nats-notes.md, 8).
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", h.cfg.Port)) //nolint:noctx // it does not wait
		if err != nil {
			return fmt.Errorf("hub port %d: %w", h.cfg.Port, err)
		}
		_ = l.Close() // was only a question
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	srv.SetLoggerV2(&serverLog{h.cfg.Logger}, false, false, false)
	h.srv = srv
	srv.Start()
	if !srv.ReadyForConnections(readyWait) {
		return fmt.Errorf("hub: not ready after %s", readyWait)
	}
	return nil
}

func (h *Hub) startRegistrar(ctx context.Context) error {
	cred, err := h.Credential(bus.Identity{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: registrarName})
	if err != nil {
		return err
	}
	h.conn, err = bus.Connect(ctx, bus.Config{URL: h.URL(), Dial: h.Dial, Credential: cred, Logger: h.cfg.Logger})
	if err != nil {
		return err
	}
	h.registrar, err = bus.StartRegistrar(ctx, h.conn, h.cfg.Logger)
	return err
}

// URL is the hub's address.
func (h *Hub) URL() string {
	if h.cfg.Port == NoListen {
		return "nats://in-process"
	}
	return h.srv.ClientURL()
}

// Dial is a connection inside this process, for bus.Config.
func (h *Hub) Dial() (net.Conn, error) { return h.srv.InProcessConn() }

// Subscriptions is how many there are at this hub, its own included.
func (h *Hub) Subscriptions() int { return int(h.srv.NumSubscriptions()) }

// Credential makes a credential for this hub.
func (h *Hub) Credential(id bus.Identity) (bus.Credential, error) { return h.minter.Issue(id) }

// Stop ends the registrar, disconnects all clients, and removes what only a running hub needs. It may be called twice.
func (h *Hub) Stop() {
	if h.registrar != nil {
		h.registrar.Stop()
		h.registrar = nil
	}
	if h.conn != nil {
		h.conn.Close()
		h.conn = nil
	}
	if h.srv != nil {
		h.srv.Shutdown()
		h.srv.WaitForShutdown()
		h.srv = nil
	}
	if h.state != nil {
		h.state.release()
		if h.temp {
			if err := os.RemoveAll(h.state.dir); err != nil {
				h.cfg.Logger.Warn("hub directory not removed", "error", err)
			}
		}
		h.state = nil
	}
}

// gate admits clients by token and gives each the permissions of its role.
type gate struct {
	minter *bus.Minter
	log    *slog.Logger
}

func (g *gate) Check(c server.ClientAuthentication) bool {
	id, err := g.minter.Verify(c.GetOpts().Token)
	if err != nil {
		g.log.Warn("hub refuses a client", "error", err)
		return false
	}
	p := id.Permissions()
	c.RegisterUser(&server.User{
		Username: id.String(),
		Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
			Publish:   &server.SubjectPermission{Allow: p.Publish},
		},
	})
	return true
}

// serverLog brings the server's messages into ours.
type serverLog struct{ log *slog.Logger }

func (l *serverLog) Noticef(string, ...any) {} // start-up chatter
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, v ...any) {
	l.log.Warn("hub server", "message", fmt.Sprintf(format, v...))
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.log.Error("hub server", "message", fmt.Sprintf(format, v...))
}

func (l *serverLog) Fatalf(format string, v ...any) {
	l.log.Error("hub server", "message", fmt.Sprintf(format, v...))
}
