package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/hub"
)

// hubFlags are the flags of a hub that stays.
type hubFlags struct {
	cfg  hub.Config
	keys string
}

func (h *hubFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&h.cfg.Port, "port", 0, "TCP `port` on 127.0.0.1 (default: a free one, which other commands find by themselves)")
	f.StringVar(&h.cfg.Listen, "listen", "", "`HOST:PORT` for clients instead; off loopback TLS must be set")
	f.StringVar(&h.cfg.WebSocket, "ws", "", "`HOST:PORT` for clients over WebSocket")
	f.StringVar(&h.cfg.Leaf, "leaf", "", "`HOST:PORT` for the leaf nodes of sites; needs --keys")
	f.StringVar(&h.cfg.TLSCert, "tls-cert", "", "`file` with the hub's certificate, in PEM form, for all listeners")
	f.StringVar(&h.cfg.TLSKey, "tls-key", "", "`file` with the certificate's key")
	f.StringVar(&h.keys, "keys", "", "`directory` with the keys of \"sandbus auth init\": trust their operator instead of tokens of this hub's own")
}

// serveHub runs a hub until ctx ends; started is called when it serves.
func (a *app) serveHub(ctx context.Context, flags hubFlags, started func(*hub.Hub) error) error {
	cfg := flags.cfg
	if cfg.Port < 0 || cfg.Port > 65535 {
		return &usageError{fmt.Errorf("--port %d: want 1 to 65535, or 0 for a free one", cfg.Port)}
	}
	var err error
	if cfg.Dir, err = a.dir(); err != nil {
		return err
	}
	if flags.keys != "" {
		if cfg.Keys, err = auth.Open(flags.keys, ""); err != nil {
			return err
		}
	}
	cfg.TLSCA, cfg.InsecureNoAuth, cfg.Logger = a.ca, a.insecure, a.logger()
	h, err := hub.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer h.Stop()
	if err := started(h); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func newHub(a *app) *cobra.Command {
	var flags hubFlags
	c := &cobra.Command{
		Use:   "hub",
		Short: "Run a hub on this machine until Ctrl-C",
		Long: `hub runs a NATS server with JetStream and the registrar, on 127.0.0.1 unless --listen says otherwise. Other sandbus
commands of the same user find it by themselves. Workers join by "sandbus worker --sandbox-id ID".

Off loopback it listens with TLS only. Its own tokens hold for its state directory; with --keys it takes the credentials of an operator,
which live on: see "sandbus auth".`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.serveHub(c.Context(), flags, func(h *hub.Hub) error {
				_, err := fmt.Fprintf(a.stdout, "hub listens on %s\njoin a sandbox:  sandbus worker --sandbox-id ID\n", h.URL())
				return err
			})
		},
	}
	flags.add(c)
	return c
}

func newUp(a *app) *cobra.Command {
	var flags hubFlags
	var id string
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a hub and one worker for this directory until Ctrl-C",
		Long: `up runs a hub on this machine and one worker in the current directory. Other sandbus commands of the same user find
them by themselves.`,
		Example: `  sandbus up &
  sandbus exec -- ls`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			stop := func() {}
			defer func() { stop() }()
			return a.serveHub(c.Context(), flags, func(h *hub.Hub) (err error) {
				if stop, err = a.startWorker(c.Context(), h, id); err != nil {
					stop = func() {}
					return err
				}
				_, err = fmt.Fprintf(a.stdout, "hub listens on %s\nsandbox %s is live\n", h.URL(), id)
				return err
			})
		},
	}
	flags.add(c)
	c.Flags().StringVar(&id, "sandbox-id", "local", "`id` of the sandbox")
	return c
}
