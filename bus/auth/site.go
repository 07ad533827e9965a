package auth

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/template"

	"github.com/sandbus/sandbus/bus"
)

// SiteConfig is what a nats-server needs to be the leaf node of a site: sandboxes there dial it, it alone dials the hub.
type SiteConfig struct {
	// Name is the server's name, the site's; empty means "site". As a hub's it gets a mark of the operator.
	Name string
	// Listen is host:port for the site's clients; empty means 127.0.0.1:4222. A port of -1 is a free one.
	Listen string
	// Hubs are the URLs of the hubs' listeners for leaf nodes: tls://HOST:PORT, wss://HOST:PORT for those for WebSocket,
	// and nats-leaf:// or ws:// without TLS, with InsecureNoTLS only. At least one.
	Hubs []string
	// Credentials is the file with a site's credential, as the server finds it.
	Credentials string
	// CA is a PEM file with the authorities to trust for the hub's certificate; empty means the system's.
	CA string
	// Monitor is host:port of the monitoring pages; empty means none.
	Monitor string
	// TLSCert and TLSKey are PEM files, for Listen.
	TLSCert, TLSKey string
	// InsecureNoTLS permits what is off loopback to go without TLS, where something else protects the network.
	InsecureNoTLS bool
}

// leafSchemes says which schemes reach a hub's leaf listener, and which of them with TLS.
var leafSchemes = map[string]bool{"tls": true, "wss": true, "nats-leaf": false, "ws": false}

// Check fills in what zero means. Errors name the setting, its value and what would be right.
func (c *SiteConfig) Check() error {
	if c.Name == "" {
		c.Name = "site"
	}
	local := ServerConfig{
		Name: c.Name, Listen: c.Listen, Monitor: c.Monitor, TLSCert: c.TLSCert, TLSKey: c.TLSKey, InsecureNoTLS: c.InsecureNoTLS,
	}
	if err := local.Check(); err != nil {
		return err
	}
	c.Listen = local.Listen
	if len(c.Hubs) == 0 {
		return errors.New("hub: want at least one URL of a hub's listener for leaf nodes, such as tls://hub:7422")
	}
	for _, h := range c.Hubs {
		if err := c.checkHub(h); err != nil {
			return err
		}
	}
	if c.Credentials == "" {
		return errors.New("credential: want the file with a site's, see \"sandbus auth issue site\"")
	}
	for _, path := range []string{c.Credentials, c.CA} {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	return nil
}

func (c *SiteConfig) checkHub(hub string) error {
	u, err := url.Parse(hub)
	if err != nil || u.Port() == "" || u.Hostname() == "" || u.User != nil || (u.Path != "" && u.Path != "/") || strings.ContainsAny(hub, "\"\\\n\r$ ") {
		return fmt.Errorf("hub %q: want SCHEME://HOST:PORT, such as tls://hub:7422", hub)
	}
	secure, known := leafSchemes[u.Scheme]
	switch {
	case !known:
		return fmt.Errorf("hub %q: scheme: want tls or wss, or nats-leaf or ws without TLS", hub)
	case !secure && !c.InsecureNoTLS && !slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname()):
		return fmt.Errorf("hub %q: off loopback a leaf node needs TLS: want tls:// or wss://; "+
			"--insecure-no-tls goes without, where something else protects the network", hub)
	}
	return nil
}

// WriteSiteConfig writes the configuration file of a site's nats-server, whose clients are those of the operator's tenant.
// It holds no secret.
func (k *Keys) WriteSiteConfig(w io.Writer, tenant string, cfg SiteConfig) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	claims, _, err := k.account(tenant)
	if err != nil {
		return err
	}
	accounts, err := k.preloads([]string{tenant})
	if err != nil {
		return err
	}
	tlsHub := strings.HasPrefix(cfg.Hubs[0], "tls:") || strings.HasPrefix(cfg.Hubs[0], "wss:")
	return siteConfig.Execute(w, map[string]any{
		"Cfg": cfg, "Mark": bus.OperatorMark(k.Operator()), "Operator": k.operatorText, "System": k.operator.SystemAccount,
		"Accounts": accounts, "Account": claims.Subject, "TLSHub": tlsHub, "MaxPayload": maxPayload,
	})
}

// WriteAccounts writes the part of a hub's configuration that says whom it trusts, to be included in one that somebody
// else makes, such as a Helm chart: the operator, the accounts, a resolver that keeps newer claims below cfg.StoreDir.
func (k *Keys) WriteAccounts(w io.Writer, cfg ServerConfig) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	data, err := k.accountsData(cfg)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, "# Whom a hub of sandbus trusts, made by \"sandbus auth server-config --accounts-only\". Include it at the top level.\n")
	if err != nil {
		return err
	}
	return serverConfig.ExecuteTemplate(w, "accounts", data)
}

var siteConfig = template.Must(template.New("site").Parse(`# The leaf node of a site, made by "sandbus auth site-config". Sandboxes of the site dial it; it alone dials the hub, and
# carries what its own credential allows: one zone. It checks the credentials of its clients by the claims below; after a
# revocation that concerns the site make this file anew and reload the server. The hub itself needs nothing.
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

leafnodes {
  reconnect: "2s"
  remotes: [
    {
      urls: [{{range $i, $u := .Cfg.Hubs}}{{if $i}}, {{end}}"{{$u}}"{{end}}]
      credentials: "{{.Cfg.Credentials}}"
      account: "{{.Account}}"
{{- if and .TLSHub .Cfg.CA}}
      tls { ca_file: "{{.Cfg.CA}}", timeout: 5 }
{{- end}}
    }
  ]
}

operator: "{{.Operator}}"
system_account: "{{.System}}"
resolver: MEMORY
resolver_preload {
{{- range .Accounts}}
  # {{.Tenant}}
  {{.Key}}: "{{.Claims}}"
{{- end}}
}
`))
