package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
)

// registrarFlags are the settings of a registrar.
type registrarFlags struct {
	name     string
	zones    []string
	replicas int
	system   string
}

func newRegistrar(a *app) *cobra.Command {
	var flags registrarFlags
	c := &cobra.Command{
		Use:   "registrar",
		Short: "Keep presence at a hub until Ctrl-C",
		Long: `registrar turns the beats of workers into presence, for hubs that are nats-servers; a hub of "sandbus hub" has one. Any number
of them may run: they agree by the revisions of what they write. It needs a registrar's credential.`,
		Example: `  sandbus registrar --hub nats://n1:4222,nats://n2:4222 --creds registrar.creds --replicas 3`,
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.registrar(c.Context(), flags) },
	}
	f := c.Flags()
	f.StringVar(&flags.name, "name", "registrar", "the `name` of its credential, at a hub of this machine")
	f.StringArrayVar(&flags.zones, "ask", nil, "a `zone` to ask for beats at the start, besides main and those that are known; others are found by their next beat")
	f.IntVar(&flags.replicas, "replicas", 0, "keep the bucket on this `number` of servers, 1 to 5 (default: as it is; 1 for a new one)")
	f.StringVar(&flags.system, "system-creds", "", "`file` with NATS credentials of the system account: closed connections are noticed at once, and duplicates disconnected")
	return c
}

func (a *app) registrar(ctx context.Context, flags registrarFlags) (err error) {
	cfg := bus.RegistrarConfig{Replicas: flags.replicas, Logger: a.logger()}
	if flags.replicas < 0 || flags.replicas > 5 {
		return &usageError{fmt.Errorf("--replicas %d: want 1 to 5, or 0 for what the bucket has", flags.replicas)}
	}
	for _, name := range flags.zones {
		z, err := bus.ParseZone(name)
		if err != nil {
			return &usageError{fmt.Errorf("--ask: %w", err)}
		}
		cfg.Zones = append(cfg.Zones, z)
	}
	to, err := a.registrarHub(ctx, flags.name)
	if err != nil {
		return err
	}
	if flags.system != "" {
		system, err := bus.LoadCredential(flags.system)
		if err != nil {
			return err
		}
		watch := to
		watch.Credential = system
		watch.Renew = func(context.Context) (bus.Credential, error) { return bus.LoadCredential(flags.system) }
		if cfg.System, err = bus.ConnectSystem(ctx, watch); err != nil {
			return err
		}
		defer cfg.System.Close()
	}
	lost := make(chan error, 1)
	tell := func(err error) {
		select {
		case lost <- err:
		default:
		}
	}
	to.OnClosed, to.OnDenied = tell, tell
	conn, err := bus.Connect(ctx, to)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := bus.StartRegistrar(ctx, conn, cfg)
	if err != nil {
		return err
	}
	defer r.Stop()
	if _, err := fmt.Fprintf(a.stdout, "registrar serves %s\n", conn.URL()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-lost:
		return fmt.Errorf("connection to the hub: %w", err)
	}
}

// registrarHub is where a registrar serves, and as who: what the flags name, else the hub of this machine.
func (a *app) registrarHub(ctx context.Context, name string) (bus.Config, error) {
	cfg, err := a.harnessConfig()
	if err != nil {
		return bus.Config{}, err
	}
	if cfg.URL != "" {
		return busConfig(ctx, cfg)
	}
	dir, err := a.dir()
	if err != nil {
		return bus.Config{}, err
	}
	st, issuer, found, err := hub.Find(dir)
	if err != nil {
		return bus.Config{}, err
	}
	if !found {
		return bus.Config{}, fmt.Errorf("%w (looked in %s); name one by --hub", errNoHub, dir)
	}
	cred, err := issuer.Issue(bus.Identity{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: name})
	return bus.Config{URL: st.URL, Credential: cred, CA: or(cfg.CA, st.CA), ServerName: st.ServerName, Logger: cfg.Logger}, err
}
