// Package hub is a NATS server with JetStream and the registrar inside this process: the hub of one machine.
//
// Every client needs a token that this hub's key made, or with [Config.Keys] a credential of their operator; the
// permissions are those of [bus.Identity.Permissions] in both cases. It listens on loopback, elsewhere only with TLS. A
// hub that must not end with this process is a nats-server of its own ("sandbus auth server-config").
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
)

// Config says how to run an embedded hub. Its zero value is a hub with a random port and no state.
type Config struct {
	// Dir is where the hub keeps its lock, its key and JetStream's data; other programs of the same user find the hub
	// by it. A hub that starts there again accepts the tokens of the one before. Empty means a temporary directory that Stop removes.
	Dir string
	// Port is the TCP port on 127.0.0.1; zero means a free one, and NoListen means none at all.
	Port int
	// Listen is host:port for clients, instead of Port. A port of -1 is a free one, here and below. Off loopback TLS must
	// be set.
	Listen string
	// WebSocket is host:port for clients over WebSocket; empty means none.
	WebSocket string
	// Leaf is host:port for the leaf nodes of sites, which needs Keys; empty means none.
	Leaf string
	// TLSCert and TLSKey are PEM files, for all listeners; empty means no TLS.
	TLSCert, TLSKey string
	// TLSCA is the file of the authority that signed TLSCert, for other programs of this machine; empty means that they
	// trust TLSCert itself.
	TLSCA string
	// Keys makes the hub trust their operator, instead of tokens of its own; nil means tokens.
	Keys *auth.Keys
	// InsecureNoAuth believes everybody, whatever they call themselves, and permits listeners off loopback without TLS.
	InsecureNoAuth bool
	// NoRegistrar leaves presence to registrars that run elsewhere.
	NoRegistrar bool
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
	srv       *Server
	minter    *bus.Minter // of a hub that takes its own tokens
	issuer    Issuer
	state     *stateDir
	temp      bool
	conn      *bus.Conn
	system    *bus.System
	registrar *bus.Registrar
}

// ErrRunning says that another hub uses the directory.
var ErrRunning = errors.New("a hub is running there already")

// Start runs a hub; it serves when Start returns. Errors: ErrRunning, ErrUnprotected, a taken port, a directory that
// cannot be used, settings that cannot be right.
func Start(ctx context.Context, cfg Config) (_ *Hub, err error) {
	if err := cfg.checkListeners(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Hub{cfg: cfg}
	if cfg.Keys != nil {
		h.issuer = &keysIssuer{cfg.Keys}
	}
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
	if cfg.Keys == nil {
		if h.minter, err = h.state.minter(); err != nil {
			return nil, err
		}
		h.issuer = h.minter
	}
	if err := h.serve(); err != nil {
		return nil, err
	}
	if !cfg.NoRegistrar {
		if err := h.startRegistrar(ctx); err != nil {
			return nil, err
		}
	}
	if err := h.state.publish(h.describe()); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Hub) serve() (err error) {
	var opts *server.Options
	if h.cfg.Keys != nil {
		opts, err = h.operatorOptions()
	} else {
		opts, err = h.options()
	}
	if err != nil {
		return err
	}
	h.srv, err = startServer(opts, h.cfg.Logger)
	return err
}

// client is how this process itself connects.
func (h *Hub) client(role bus.Role) (bus.Config, error) {
	cred, err := h.Credential(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: registrarName})
	return bus.Config{URL: h.URL(), Dial: h.Dial, Credential: cred, Logger: h.cfg.Logger}, err
}

// describe is what other programs of the same user need to know.
func (h *Hub) describe() State {
	st := State{URL: localURL(h.URL()), PID: os.Getpid()}
	if h.minter != nil {
		st.Key = h.minter.Key()
	} else {
		st.Keys = absolute(h.cfg.Keys.Dir())
	}
	if h.cfg.TLSCert != "" {
		st.CA, st.ServerName = absolute(cmp.Or(h.cfg.TLSCA, h.cfg.TLSCert)), certificateName(h.cfg.TLSCert)
	}
	return st
}

func (h *Hub) startRegistrar(ctx context.Context) error {
	cfg, err := h.client(bus.RoleSystem)
	if err != nil {
		return err
	}
	if h.system, err = bus.ConnectSystem(ctx, cfg); err != nil {
		return err
	}
	if cfg, err = h.client(bus.RoleRegistrar); err != nil {
		return err
	}
	if h.conn, err = bus.Connect(ctx, cfg); err != nil {
		return err
	}
	h.registrar, err = bus.StartRegistrar(ctx, h.conn, bus.RegistrarConfig{System: h.system, Logger: h.cfg.Logger})
	return err
}

// URL is the hub's address.
func (h *Hub) URL() string {
	if h.cfg.Port == NoListen {
		return "nats://in-process"
	}
	return h.srv.URL()
}

// WebSocketURL is the hub's address over WebSocket, when there is such a listener.
func (h *Hub) WebSocketURL() string { return h.srv.WebSocketURL() }

// LeafURL is the hub's address for leaf nodes. Errors: there is no such listener.
func (h *Hub) LeafURL() (string, error) { return h.srv.LeafURL() }

// Dial is a connection inside this process, for bus.Config.
func (h *Hub) Dial() (net.Conn, error) { return h.srv.srv.InProcessConn() }

// Subscriptions is how many there are at this hub, its own included.
func (h *Hub) Subscriptions() int { return int(h.srv.srv.NumSubscriptions()) }

// Credential makes a credential for this hub.
func (h *Hub) Credential(id bus.Identity) (bus.Credential, error) { return h.issuer.Issue(id) }

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
	if h.system != nil {
		h.system.Close()
		h.system = nil
	}
	if h.srv != nil {
		h.srv.Stop()
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
