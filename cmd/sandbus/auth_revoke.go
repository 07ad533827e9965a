package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/hub"
)

func newAuthRevoke(flags *authFlags) *cobra.Command {
	var later bool
	c := &cobra.Command{
		Use:   "revoke (ROLE ID | KEY...)",
		Short: "End credentials for good",
		Long: `revoke ends all live credentials of an identity, or those of the public keys that "auth list" shows, and tells the hub,
which disconnects their holders at once. A new credential of the same identity works again.

It needs operator.nk. Hubs of one cluster tell each other; other hubs of the operator are told by "auth push".`,
		Example: `  sandbus auth revoke sandbox box1 --zone eu --hub tls://hub:4222`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			keys, err := flags.open()
			if err != nil {
				return err
			}
			holders, err := flags.holders(keys, args)
			if err != nil {
				return err
			}
			conn, done, err := flags.admin(c.Context(), keys, later)
			if err != nil {
				return fmt.Errorf("nothing was revoked: %w; --later revokes here, and \"auth push\" tells the hub then", err)
			}
			defer done()
			if err := keys.Revoke(c.Context(), conn, flags.tenant, holders...); err != nil {
				return err
			}
			_, err = fmt.Fprintf(flags.app.stdout, "revoked %s\n", strings.Join(holders, "\nrevoked "))
			return err
		},
	}
	c.Flags().BoolVar(&later, "later", false, `do not tell the hub: "auth push" does it later`)
	return c
}

// holders are the public keys that the arguments mean.
func (f *authFlags) holders(keys *auth.Keys, args []string) ([]string, error) {
	role := bus.Role(args[0])
	byKey := true
	for _, a := range args {
		byKey = byKey && auth.IsHolder(a)
	}
	if byKey {
		return args, nil
	}
	if len(args) != 2 {
		return nil, &usageError{errors.New("want a role and an id, or public keys as \"auth list\" shows them")}
	}
	id := bus.Identity{Role: role, Zone: bus.DefaultZone, Name: args[1]}
	if role == bus.RoleSandbox || role == bus.RoleSite {
		id.Zone = bus.Zone(or(f.app.zone, string(bus.DefaultZone)))
	}
	if err := id.Check(); err != nil {
		return nil, &usageError{err}
	}
	found, err := keys.Find(f.tenant, role, id.Zone, id.Name)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(found))
	for _, e := range found {
		out = append(out, e.Key)
	}
	return out, nil
}

// admin connects to the hub to change accounts there; with later the connection is nil.
func (f *authFlags) admin(ctx context.Context, keys *auth.Keys, later bool) (*bus.Conn, func(), error) {
	if later {
		return nil, func() {}, nil
	}
	cred, err := keys.Admin()
	if err != nil {
		return nil, nil, err
	}
	cfg := bus.Config{
		URL: or(f.app.url, os.Getenv("SANDBUS_URL")), CA: or(f.app.ca, os.Getenv("SANDBUS_CA")), Credential: cred, Logger: f.app.logger(),
	}
	if cfg.URL == "" {
		dir, err := f.app.dir()
		if err != nil {
			return nil, nil, err
		}
		st, _, found, err := hub.Find(dir)
		if err != nil {
			return nil, nil, err
		}
		if !found || st.Keys == "" {
			return nil, nil, errors.New("no hub: none with keys runs on this machine; name one by --hub")
		}
		cfg.URL, cfg.CA, cfg.ServerName = st.URL, or(cfg.CA, st.CA), st.ServerName
	}
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return conn, conn.Close, nil
}

func newAuthPush(flags *authFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "push",
		Short: "Hand a tenant's account to the hub",
		Long: `push hands the account of --tenant to the hub: a new tenant's, or one with revocations that the hub does not know. What was
revoked at the hub by others is kept.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			keys, err := flags.open()
			if err != nil {
				return err
			}
			conn, done, err := flags.admin(c.Context(), keys, false)
			if err != nil {
				return err
			}
			defer done()
			return keys.Push(c.Context(), conn, flags.tenant)
		},
	}
}
