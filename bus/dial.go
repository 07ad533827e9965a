package bus

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/http/httpproxy"
)

// dialer makes the network connections of one client. nats.go knows no proxies (nats-notes.md, 6).
type dialer struct {
	// proxy finds the HTTP proxy for a hub; nil as its result means none.
	proxy func(*url.URL) (*url.URL, error)
	tls   *tls.Config // for proxies that speak TLS
}

// Dial connects to a hub, through the proxy that the environment names for it: HTTPS_PROXY, unless NO_PROXY names the
// host or it is this machine's.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	proxy, err := d.proxy(&url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, fmt.Errorf("proxy for %s: %w", address, err)
	}
	if proxy == nil {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return d.through(ctx, proxy, address)
}

// through asks an HTTP proxy for a tunnel. Errors name the proxy, without its password.
func (d *dialer) through(ctx context.Context, proxy *url.URL, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, fmt.Errorf("proxy %s: %w", proxy.Redacted(), err)
	}
	port := proxy.Port()
	switch {
	case proxy.Scheme != "http" && proxy.Scheme != "https":
		return fail(errors.New("want the scheme http or https"))
	case port == "" && proxy.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return fail(err)
	}
	if proxy.Scheme == "https" {
		cfg := d.tls.Clone()
		cfg.ServerName = proxy.Hostname()
		nc = tls.Client(nc, cfg)
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // ends the exchange below
	defer stop()
	tunnel, err := connectTunnel(nc, proxy, address)
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fail(errors.Join(err, ignoreClosed(nc.Close())))
	}
	return tunnel, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func connectTunnel(nc net.Conn, proxy *url.URL, address string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(nc); err != nil {
		return nil, err
	}
	r := bufio.NewReader(nc)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close() // a tunnel has none; that of a refusal is not read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("CONNECT %s: %s", address, resp.Status)
	}
	return &buffered{Conn: nc, r: r}, nil
}

// buffered is a connection of which some bytes have been read already.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// transport settles how the client's network connections are made and protected. Errors: a file of certificates that
// cannot be read, a setting that asks for protection that the URL's scheme does not have.
func (cfg *Config) transport() ([]nats.Option, *dialer, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, nil, fmt.Errorf("CA certificates: %w", err)
		}
		tc.RootCAs = x509.NewCertPool()
		if !tc.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("CA certificates %s: no certificate in PEM form in there", cfg.CA)
		}
	}
	d := &dialer{proxy: httpproxy.FromEnvironment().ProxyFunc(), tls: tc}
	opts := []nats.Option{
		nats.SetCustomDialer(d),
		// The system's dialer does it: a proxy is asked for names that only it knows.
		nats.SkipHostLookup(),
	}
	if !strings.HasPrefix(cfg.URL, "ws:") {
		// For hubs that demand TLS, whatever the URL says. With ws nats.go would take it for wss.
		opts = append(opts, func(o *nats.Options) error { o.TLSConfig = tc; return nil })
	}
	for u := range strings.SplitSeq(cfg.URL, ",") {
		secure, proxied, err := cfg.protection(strings.TrimSpace(u), d)
		if err != nil {
			return nil, nil, err
		}
		if secure {
			opts = append(opts, nats.Secure(tc))
		}
		if proxied {
			opts = append(opts, nats.IgnoreDiscoveredServers()) // their addresses are those behind the proxy
		}
	}
	return opts, d, nil
}

// protection says whether TLS must be had for one URL, and whether a proxy carries it.
func (cfg *Config) protection(raw string, d *dialer) (secure, proxied bool, err error) {
	if cfg.Dial != nil {
		return false, false, nil
	}
	u, err := hubURL(raw)
	if err != nil {
		return false, false, err
	}
	proxy, err := d.proxy(&url.URL{Scheme: "https", Host: u.Host})
	if err != nil {
		return false, false, fmt.Errorf("proxy for %s: %w", u.Host, err)
	}
	wanted := cfg.CA != "" || cfg.ServerName != ""
	// Whoever reads the token of an embedded hub has it. A user JWT is proved by a signature instead.
	bare := cfg.Credential.token != "" && !cfg.Credential.isAnonymous() && !isLoopback(u.Hostname())
	switch {
	case u.Scheme == "ws" && (wanted || bare):
		return false, false, fmt.Errorf("hub URL %s: ws is not encrypted: want wss", u.Redacted())
	case u.Scheme == "ws" || u.Scheme == "wss":
		return false, proxy != nil, nil
	}
	return wanted || bare || u.Scheme == "tls", proxy != nil, nil
}

// hubURL reads one address of a hub. Errors: it is none, or has a scheme that is not known.
func hubURL(raw string) (*url.URL, error) {
	if !strings.Contains(raw, "://") {
		raw = "nats://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("hub URL: want one such as nats://hub:4222, tls://hub:4222 or wss://hub:443")
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
	default:
		return nil, fmt.Errorf("hub URL %s: scheme %q: want nats, tls, ws or wss", u.Redacted(), u.Scheme)
	}
	if u.Hostname() == "" {
		return nil, fmt.Errorf("hub URL %s: it names no host", u.Redacted())
	}
	return u, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// isUntrusted says whether an error is about the hub's certificate: it will not be another one at the next try.
func isUntrusted(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	return unknown || name || invalid
}

// serverInfo is what a hub says of itself before it knows who asks.
type serverInfo struct {
	Name  string `json:"server_name"`
	Nonce string `json:"nonce"`
}

const (
	// maxInfo bounds what is read of a hub's first line, in bytes.
	maxInfo = 64 << 10
	// informWait is how long a hub may take to say it.
	informWait = 5 * time.Second
)

// inform reads what a hub says of itself. It cannot be had over WebSocket. Errors: the hub was not reached, or says
// something else.
func (c *Conn) inform(ctx context.Context, raw string) (info serverInfo, err error) {
	u, err := hubURL(raw)
	if err != nil {
		return info, err
	}
	if u.Scheme == "ws" || u.Scheme == "wss" {
		return info, errors.ErrUnsupported
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "4222")
	}
	nc, err := c.dialer.Dial("tcp", host)
	if err != nil {
		return info, err
	}
	defer func() { _ = nc.Close() }() // nothing is written
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	if err := nc.SetReadDeadline(time.Now().Add(informWait)); err != nil {
		return info, err
	}
	line, err := bufio.NewReader(io.LimitReader(nc, maxInfo)).ReadString('\n')
	if err != nil {
		return info, err
	}
	text, ok := strings.CutPrefix(line, "INFO ")
	if !ok {
		return info, errors.New("the hub does not speak NATS")
	}
	return info, json.Unmarshal([]byte(text), &info)
}

// redacted is a list of URLs without the passwords in them.
func redacted(urls string) string {
	var out []string
	for raw := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(raw)
		if err != nil {
			return "(unreadable URL)"
		}
		out = append(out, u.Redacted())
	}
	return strings.Join(out, ",")
}
