package main

import (
	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus/auth"
)

func newAuthServerConfig(flags *authFlags) *cobra.Command {
	var cfg auth.ServerConfig
	c := &cobra.Command{
		Use:   "server-config",
		Short: "Print the configuration of a nats-server that trusts these keys",
		Long: `server-config prints a file for nats-server: the operator, all accounts, a resolver that keeps newer claims, listeners with
TLS, JetStream with limits. It holds no secret. Run it by "nats-server -c FILE"; a registrar must run beside it.

For a cluster give each server a --name of its own, the same --routes to all of them, and --cluster.`,
		Example: `  sandbus auth server-config --listen 0.0.0.0:4222 --ws 0.0.0.0:443 --leaf 0.0.0.0:7422 \
    --tls-cert hub.pem --tls-key hub.key --store-dir /data >hub.conf`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			keys, err := flags.open()
			if err != nil {
				return err
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
	f.StringVar(&cfg.Monitor, "monitor", "", "`HOST:PORT` of the monitoring pages, for everybody who reaches them")
	f.StringVar(&cfg.StoreDir, "store-dir", "data", "`directory` for JetStream and the account claims")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the certificate, in PEM form, for all listeners")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key")
	f.Int64Var(&cfg.MaxStore, "max-store", 1<<30, "what JetStream keeps on disk at most, in `bytes`")
	f.BoolVar(&cfg.InsecureNoTLS, "insecure-no-tls", false, "listeners off loopback without TLS, where something else protects the network")
	return c
}
