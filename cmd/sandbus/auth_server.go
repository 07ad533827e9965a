package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus/auth"
)

func newAuthServerConfig(flags *authFlags) *cobra.Command {
	var cfg auth.ServerConfig
	var accountsOnly bool
	var secret string
	c := &cobra.Command{
		Use:   "server-config",
		Short: "Print the configuration of a nats-server that trusts these keys",
		Long: `server-config prints a file for nats-server: the operator, all accounts, a resolver that keeps newer claims, listeners with
TLS, JetStream with limits. It holds no secret, unless --cluster-secret names one. Run it by "nats-server -c FILE"; a registrar must run beside it.

For a cluster give each server a --name of its own, the same --routes to all of them, and --cluster; --tls-ca names the
authorities of their certificates, where these are not the system's.

With --accounts-only it prints the operator, the accounts and their resolver alone, for an include in a configuration that
something else makes.`,
		Example: `  sandbus auth server-config --listen 0.0.0.0:4222 --ws 0.0.0.0:443 --leaf 0.0.0.0:7422 \
    --tls-cert hub.pem --tls-key hub.key --store-dir /data >hub.conf`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg.CA = flags.app.ca
			if secret != "" {
				text, err := os.ReadFile(secret)
				if err != nil {
					return fmt.Errorf("--cluster-secret: %w", err)
				}
				cfg.ClusterSecret = strings.TrimSpace(string(text))
			}
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			keys, err := flags.open()
			if err != nil {
				return err
			}
			if accountsOnly {
				return keys.WriteAccounts(flags.app.stdout, cfg)
			}
			return keys.WriteServerConfig(flags.app.stdout, cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Name, "name", "hub", "the server's `name`, another one for each of a cluster")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:4222", "`HOST:PORT` for clients")
	f.StringVar(&cfg.WebSocket, "ws", "", "`HOST:PORT` for clients over WebSocket")
	f.StringVar(&cfg.Leaf, "leaf", "", "`HOST:PORT` for the leaf nodes of sites")
	f.StringVar(&cfg.Cluster, "cluster", "", "`HOST:PORT` for the other servers of a cluster")
	f.StringSliceVar(&cfg.Routes, "routes", nil, "`HOST:PORT` of each server of the cluster, separated by commas")
	f.StringVar(&secret, "cluster-secret", "", "`file` with a secret of letters and digits that the servers of a cluster show one another; needed where others reach them without TLS, and then part of the output")
	f.StringVar(&cfg.Monitor, "monitor", "", "`HOST:PORT` of the monitoring pages, for everybody who reaches them")
	f.StringVar(&cfg.StoreDir, "store-dir", "data", "`directory` for JetStream and the account claims")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the certificate, in PEM form, for all listeners")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key")
	f.Int64Var(&cfg.MaxStore, "max-store", 1<<30, "what JetStream keeps on disk at most, in `bytes`")
	f.BoolVar(&cfg.InsecureNoTLS, "insecure-no-tls", false, "listeners off loopback without TLS, where something else protects the network")
	f.BoolVar(&accountsOnly, "accounts-only", false, "only the operator, the accounts and their resolver, for an include")
	return c
}

func newAuthSiteConfig(flags *authFlags) *cobra.Command {
	var cfg auth.SiteConfig
	c := &cobra.Command{
		Use:   "site-config --leaf URL --site-creds FILE",
		Short: "Print the configuration of a site's nats-server, a leaf node of a hub",
		Long: `site-config prints a file for the nats-server of a site. Sandboxes of the site dial that server, and it alone dials the hub, over
TLS or over WebSocket. It checks the credentials of its clients itself. The file holds no secret; the site's credential stays
in the file that --site-creds names, as the server will find it.`,
		Example: `  sandbus auth issue site s1 --zone eu --out site.creds
  sandbus auth site-config --leaf tls://hub:7422 --site-creds /etc/nats/site.creds >site.conf
  nats-server -c site.conf`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg.CA = flags.app.ca
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			keys, err := flags.open()
			if err != nil {
				return err
			}
			return keys.WriteSiteConfig(flags.app.stdout, flags.tenant, cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Name, "name", "site", "the server's `name`")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:4222", "`HOST:PORT` for the site's clients")
	f.StringSliceVar(&cfg.Hubs, "leaf", nil, "`URL` of each hub's listener for leaf nodes: tls://hub:7422, or wss://hub:443")
	f.StringVar(&cfg.Credentials, "site-creds", "", "`file` with the site's credential, as the server finds it")
	f.StringVar(&cfg.Monitor, "monitor", "", "`HOST:PORT` of the monitoring pages, for everybody who reaches them")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the certificate for the site's clients, in PEM form")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key")
	f.BoolVar(&cfg.InsecureNoTLS, "insecure-no-tls", false, "no TLS off loopback, where something else protects the network")
	return c
}
