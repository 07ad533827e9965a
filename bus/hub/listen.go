package hub

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus/auth"
)

// ErrUnprotected says that a listener off loopback would be open to its network.
var ErrUnprotected = errors.New("a listener off loopback needs TLS (--tls-cert, --tls-key) and credentials")

// checkListeners fills in what zero means, and refuses listeners that would be open. Errors: ErrUnprotected, an address
// that is none.
func (c *Config) checkListeners() error {
	if c.Port < NoListen || c.Port > 65535 {
		return fmt.Errorf("hub port %d: want 1 to 65535, or 0 for a free one", c.Port)
	}
	if c.Listen != "" && c.Port != 0 {
		return errors.New("hub: both an address and a port are set: want one")
	}
	if c.Listen == "" {
		port := c.Port
		if port == 0 {
			port = server.RANDOM_PORT
		}
		c.Listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("hub TLS: want both a certificate and its key")
	}
	if c.Leaf != "" && c.Keys == nil {
		return errors.New("hub: a leaf node needs an operator's credentials: give --keys, see \"sandbus auth init\"")
	}
	if c.InsecureNoAuth && c.Keys != nil {
		return errors.New("hub: keys and --insecure-no-auth: want one")
	}
	for _, l := range []struct{ what, address string }{{"listen", c.Listen}, {"websocket", c.WebSocket}, {"leaf", c.Leaf}} {
		if l.address == "" {
			continue
		}
		loopback, err := auth.CheckListen(l.what, l.address)
		if err != nil {
			return err
		}
		if !loopback && c.TLSCert == "" && !c.InsecureNoAuth {
			return fmt.Errorf("%s %s: %w; --insecure-no-auth leaves it open to everybody", l.what, l.address, ErrUnprotected)
		}
	}
	return nil
}

// options are those of a hub that takes its own tokens.
func (h *Hub) options() (*server.Options, error) {
	opts := &server.Options{
		ServerName: "sandbus", DontListen: h.cfg.Port == NoListen, MaxPayload: maxPayload,
		PingInterval: pingInterval, MaxPingsOut: 2,
		JetStream: true, StoreDir: filepath.Join(h.state.dir, "jetstream"),
		JetStreamMaxMemory: jetStreamMem, JetStreamMaxStore: jetStreamStore,
		CustomClientAuthentication: &gate{minter: h.minter, believes: h.cfg.InsecureNoAuth, log: h.cfg.Logger},
	}
	var err error
	if opts.Host, opts.Port, err = splitListen(h.cfg.Listen); err != nil {
		return nil, err
	}
	if h.cfg.TLSCert != "" {
		if opts.TLSConfig, err = loadTLS(h.cfg.TLSCert, h.cfg.TLSKey); err != nil {
			return nil, err
		}
		opts.TLS, opts.TLSTimeout = true, tlsTimeout.Seconds()
	}
	if h.cfg.WebSocket != "" {
		ws := &opts.Websocket
		if ws.Host, ws.Port, err = splitListen(h.cfg.WebSocket); err != nil {
			return nil, err
		}
		ws.PingInterval, ws.HandshakeTimeout = pingInterval, tlsTimeout
		ws.TLSConfig, ws.NoTLS = opts.TLSConfig.Clone(), opts.TLSConfig == nil
	}
	return opts, nil
}

const (
	// pingInterval is how often the hub asks whether a client is there: a frozen link shows after three of them.
	pingInterval = 20 * time.Second
	tlsTimeout   = 5 * time.Second
)

// operatorOptions are those of a hub that trusts an operator. They are read from the file that other servers are given
// too, which is left in the hub's directory.
func (h *Hub) operatorOptions() (*server.Options, error) {
	path := filepath.Join(h.state.dir, "hub.conf")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	err = h.cfg.Keys.WriteServerConfig(f, auth.ServerConfig{
		Name: "sandbus", Listen: h.cfg.Listen, WebSocket: h.cfg.WebSocket, Leaf: h.cfg.Leaf,
		StoreDir: h.state.dir, TLSCert: h.cfg.TLSCert, TLSKey: h.cfg.TLSKey,
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	opts.DontListen = h.cfg.Port == NoListen
	return opts, nil
}

func splitListen(address string) (string, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("listen %q: want HOST:PORT", address)
	}
	n, err := strconv.Atoi(port)
	return host, n, err
}

func loadTLS(cert, key string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("hub TLS: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}

// localURL is how programs of this machine reach a listener: its address may be that of all interfaces.
func localURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	return u.String()
}

// certificateName is a name that the hub's certificate has, for programs of this machine, which reach the hub by its
// address. Empty when there is none.
func certificateName(cert string) string {
	pair, err := os.ReadFile(cert)
	if err != nil {
		return ""
	}
	leaf, err := firstCertificate(pair)
	if err != nil {
		return ""
	}
	if len(leaf.DNSNames) > 0 {
		return strings.Replace(leaf.DNSNames[0], "*", "hub", 1)
	}
	if len(leaf.IPAddresses) > 0 {
		return leaf.IPAddresses[0].String()
	}
	return ""
}

func firstCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fs.ErrInvalid
	}
	return x509.ParseCertificate(block.Bytes)
}
