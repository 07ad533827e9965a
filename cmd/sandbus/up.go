package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus/hub"
)

// hubFlags are the flags of a hub that stays.
type hubFlags struct {
	port int
}

func (h *hubFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&h.port, "port", 0, "TCP `port` on 127.0.0.1 (default: a free one, which other commands find by themselves)")
}

// serveHub runs a hub until ctx ends; started is called when it serves.
func (a *app) serveHub(ctx context.Context, flags hubFlags, started func(*hub.Hub) error) error {
	if flags.port < 0 || flags.port > 65535 {
		return &usageError{fmt.Errorf("--port %d: want 1 to 65535, or 0 for a free one", flags.port)}
	}
	dir, err := a.dir()
	if err != nil {
		return err
	}
	h, err := hub.Start(ctx, hub.Config{Dir: dir, Port: flags.port, Logger: a.logger()})
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
		Long: `hub runs a NATS server with JetStream and the registrar, on 127.0.0.1 only. Other sandbus commands of the same user
find it by themselves. Workers join by "sandbus worker --sandbox-id ID".`,
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
