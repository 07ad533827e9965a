package auth

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"github.com/sandbus/sandbus/bus"
)

// ServerConfig is what a nats-server needs to be a hub of these keys. Its zero value listens on loopback, without TLS.
type ServerConfig struct {
	// Name is the server's name; a mark of the operator is put behind it, by which refused clients tell a foreign hub.
	// Servers of one cluster must have different ones. Empty means "hub".
	Name string
	// Listen is host:port for clients; empty means 127.0.0.1:4222. A port of -1 is a free one, here and below.
	Listen string
	// WebSocket is host:port for clients over WebSocket; empty means none.
	WebSocket string
	// Leaf is host:port for the leaf nodes of sites; empty means none.
	Leaf string
	// Cluster is host:port for the other servers of a cluster, and Routes are the others' as host:port, this one's own may
	// be among them; empty means a server that stands alone. All servers of a cluster take the same Routes.
	Cluster string
	Routes  []string
	// ClusterSecret is what the servers of a cluster show one another: without TLS, whoever reaches the address and has it
	// speaks for everybody. 16 to 128 letters and digits; empty means none, and with it the configuration holds a secret.
	ClusterSecret string
	// Monitor is host:port of the monitoring pages, which anybody who reaches them can read; empty means none.
	Monitor string
	// StoreDir is where JetStream and the account claims are kept; empty means "data" below the server's directory.
	StoreDir string
	// TLSCert and TLSKey are PEM files, for all listeners.
	TLSCert, TLSKey string
	// CA is a PEM file with the authorities to trust for the certificates of a cluster's other servers; empty means the
	// system's.
	CA string
	// InsecureNoTLS permits listeners off loopback without TLS, where something else protects the network.
	InsecureNoTLS bool
	// MaxStore bounds what JetStream keeps on disk, in bytes; zero means 1 GiB.
	MaxStore int64
}

var secretShape = regexp.MustCompile(`^[A-Za-z0-9]{16,128}$`)

// MaxMemory is what JetStream may hold in memory at a hub, in bytes.
const MaxMemory = 512 << 20

const defaultListen = "127.0.0.1:4222"

// Check fills in what zero means. Errors name the setting, its value and what would be right.
func (c *ServerConfig) Check() error {
	if c.Name == "" {
		c.Name = "hub"
	}
	if err := bus.CheckToken("server name", c.Name); err != nil {
		return err
	}
	if c.Listen == "" {
		c.Listen = defaultListen
	}
	if c.StoreDir == "" {
		c.StoreDir = "data"
	}
	if c.MaxStore == 0 {
		c.MaxStore = accountDisk
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("TLS: want both a certificate and its key")
	}
	for _, path := range []string{c.TLSCert, c.TLSKey, c.CA, c.StoreDir} {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	if (c.Cluster == "") != (len(c.Routes) == 0) {
		return errors.New("cluster: want both its address and the routes to the other servers")
	}
	if c.ClusterSecret != "" && (c.Cluster == "" || !secretShape.MatchString(c.ClusterSecret)) {
		return errors.New("cluster secret: want 16 to 128 letters and digits, for a cluster")
	}
	for _, r := range c.Routes {
		if host, port, err := net.SplitHostPort(r); err != nil || host == "" || port == "" || strings.ContainsAny(r, "\"\\\n\r$ ") {
			return fmt.Errorf("route %q: want HOST:PORT", r)
		}
	}
	for _, l := range []struct{ what, address string }{
		{"listen", c.Listen}, {"websocket", c.WebSocket}, {"leaf", c.Leaf}, {"cluster", c.Cluster}, {"monitor", c.Monitor},
	} {
		if l.address == "" {
			continue
		}
		loopback, err := CheckListen(l.what, l.address)
		if err != nil {
			return err
		}
		if !loopback && c.TLSCert == "" && !c.InsecureNoTLS {
			return fmt.Errorf("%s %s: off loopback a listener needs TLS: give --tls-cert and --tls-key; "+
				"--insecure-no-tls leaves it open, where something else protects the network", l.what, l.address)
		}
	}
	return nil
}

// CheckListen checks the address of a listener and says whether only this machine reaches it. Errors name it.
func CheckListen(what, address string) (loopback bool, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false, fmt.Errorf("%s %q: want HOST:PORT", what, address)
	}
	if n, err := strconv.Atoi(port); err != nil || n == 0 || n < -1 || n > 65535 {
		return false, fmt.Errorf("%s %q: port: want 1 to 65535, or -1 for a free one", what, address)
	}
	if host == "localhost" {
		return true, nil
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return false, fmt.Errorf("%s %q: host: want an IP address, such as 0.0.0.0 for all", what, address)
	}
	return ip.IsLoopback(), nil
}

// checkPath refuses what a configuration's string cannot hold.
func checkPath(path string) error {
	if strings.ContainsAny(path, "\"\\\n\r$") {
		return fmt.Errorf("path %q: a server's configuration cannot hold quotes, backslashes, line ends and dollars", path)
	}
	return nil
}

// preload is an account in the configuration.
type preload struct{ Tenant, Key, Claims string }

// WriteServerConfig writes a configuration file for a nats-server. It holds no secret but cfg.ClusterSecret: claims are
// signed and public.
func (k *Keys) WriteServerConfig(w io.Writer, cfg ServerConfig) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	data, err := k.accountsData(cfg)
	if err != nil {
		return err
	}
	return serverConfig.Execute(w, data)
}

// accountsData is what the templates of a hub's configuration are filled with.
func (k *Keys) accountsData(cfg ServerConfig) (map[string]any, error) {
	tenants, err := k.Tenants()
	if err != nil {
		return nil, err
	}
	accounts, err := k.preloads(tenants)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"Cfg": cfg, "Mark": bus.OperatorMark(k.Operator()), "Operator": k.operatorText, "System": k.operator.SystemAccount,
		"Accounts": accounts, "JetStream": filepath.Join(cfg.StoreDir, "jetstream"), "JWT": filepath.Join(cfg.StoreDir, "jwt"),
		"MaxPayload": maxPayload, "MaxMemory": MaxMemory,
	}, nil
}

// preloads are the system's account and those of tenants.
func (k *Keys) preloads(tenants []string) ([]preload, error) {
	var accounts []preload
	for _, t := range append([]string{systemTenant}, tenants...) {
		claims, text, err := k.account(t)
		if err != nil {
			return nil, err
		}
		accounts = append(accounts, preload{t, claims.Subject, text})
	}
	return accounts, nil
}

var serverConfig = template.Must(template.New("server").Parse(`# A hub of sandbus, made by "sandbus auth server-config". Made anew it may replace this file at any time: claims that the
# server has got since, with their revocations, are newer and stay.
server_name: "{{.Cfg.Name}}-{{.Mark}}"
listen: "{{.Cfg.Listen}}"
{{- if .Cfg.TLSCert}}
tls { cert_file: "{{.Cfg.TLSCert}}", key_file: "{{.Cfg.TLSKey}}", timeout: 5 }
{{- end}}
{{- if .Cfg.Monitor}}
http: "{{.Cfg.Monitor}}"
{{- end}}
max_payload: {{.MaxPayload}}
# A frozen link shows after three intervals. The default is minutes.
ping_interval: "20s"
ping_max: 2
lame_duck_grace_period: "10s"
lame_duck_duration: "30s"

jetstream {
  store_dir: "{{.JetStream}}"
  max_mem: {{.MaxMemory}}
  max_file: {{.Cfg.MaxStore}}
}
{{- if .Cfg.Cluster}}

cluster {
  name: "sandbus"
  listen: "{{.Cfg.Cluster}}"
{{- if .Cfg.TLSCert}}
  # Between the servers both sides show their certificates, which must be for servers and for clients.
  tls { cert_file: "{{.Cfg.TLSCert}}", key_file: "{{.Cfg.TLSKey}}"{{with .Cfg.CA}}, ca_file: "{{.}}"{{end}}, timeout: 5 }
{{- end}}
{{- if .Cfg.ClusterSecret}}
  authorization { user: "hub", password: "{{.Cfg.ClusterSecret}}", timeout: 5 }
{{- end}}
  routes: [{{range $i, $r := .Cfg.Routes}}{{if $i}}, {{end}}"nats://{{with $.Cfg.ClusterSecret}}hub:{{.}}@{{end}}{{$r}}"{{end}}]
}
{{- end}}
{{- if .Cfg.WebSocket}}

websocket {
  listen: "{{.Cfg.WebSocket}}"
{{- if .Cfg.TLSCert}}
  tls { cert_file: "{{.Cfg.TLSCert}}", key_file: "{{.Cfg.TLSKey}}", timeout: 5 }
{{- else}}
  no_tls: true
{{- end}}
  ping_interval: "20s"
  compression: false
}
{{- end}}
{{- if .Cfg.Leaf}}

leafnodes {
  listen: "{{.Cfg.Leaf}}"
{{- if .Cfg.TLSCert}}
  tls { cert_file: "{{.Cfg.TLSCert}}", key_file: "{{.Cfg.TLSKey}}", timeout: 5 }
{{- end}}
  # Sites do not hear of one another.
  isolate_leafnode_interest: true
}
{{- end}}

{{block "accounts" .}}operator: "{{.Operator}}"
system_account: "{{.System}}"
resolver { type: full, dir: "{{.JWT}}", allow_delete: true, interval: "2m" }
resolver_preload {
{{- range .Accounts}}
  # {{.Tenant}}
  {{.Key}}: "{{.Claims}}"
{{- end}}
}
{{end}}`))
