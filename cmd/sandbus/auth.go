package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus/auth"
)

// authFlags say which keys the verbs of auth use.
type authFlags struct {
	app      *app
	dir      string
	register string
	tenant   string
}

func newAuth(a *app) *cobra.Command {
	flags := &authFlags{app: a}
	c := &cobra.Command{
		Use:   "auth",
		Short: "Keys and credentials",
		Long: `auth makes the keys of an operator, and with them credentials for sandboxes, harnesses, registrars and sites. Making one
asks nobody: it is a signature. A hub trusts the operator by the configuration that "auth server-config" prints.

The keys are in a directory of mode 0700: --keys, or SANDBUS_KEYS, or "keys" in the state directory. A host that only
issues needs operator.jwt, tenants/TENANT/account.jwt and the roles' keys that it issues with; operator.nk is needed to
revoke.`,
		Example: `  sandbus auth init
  sandbus auth server-config --listen 0.0.0.0:4222 --tls-cert hub.pem --tls-key hub.key >hub.conf
  nats-server -c hub.conf
  sandbus auth issue sandbox box1 --ttl 24h --out box1.creds
  sandbus auth revoke sandbox box1 --hub tls://hub:4222`,
	}
	f := c.PersistentFlags()
	f.StringVar(&flags.dir, "keys", "", "`directory` of the keys (environment: SANDBUS_KEYS)")
	f.StringVar(&flags.register, "register", "", "`file` that lists what was issued (default: issued.jsonl beside the keys)")
	f.StringVar(&flags.tenant, "tenant", auth.DefaultTenant, "the tenant, which has an account of its own")
	c.AddCommand(
		newAuthInit(flags), newAuthIssue(flags), newAuthRevoke(flags), newAuthPush(flags), newAuthList(flags), newAuthShow(flags),
		newAuthServerConfig(flags), newAuthSiteConfig(flags),
	)
	return c
}

// keysDir is the directory of the keys; named says that somebody asked for it.
func (f *authFlags) keysDir() (dir string, named bool, err error) {
	if dir := or(f.dir, os.Getenv("SANDBUS_KEYS")); dir != "" {
		return dir, true, nil
	}
	state, err := f.app.dir()
	return filepath.Join(state, "keys"), false, err
}

func (f *authFlags) open() (*auth.Keys, error) {
	dir, _, err := f.keysDir()
	if err != nil {
		return nil, err
	}
	return auth.Open(dir, f.register)
}

// find is open that says whether there are keys at all; keys that were asked for must be there.
func (f *authFlags) find() (*auth.Keys, bool, error) {
	dir, named, err := f.keysDir()
	if err != nil {
		return nil, false, err
	}
	keys, err := auth.Open(dir, f.register)
	if errors.Is(err, auth.ErrNoKeys) && !named {
		return nil, false, nil
	}
	return keys, err == nil, err
}

func newAuthInit(flags *authFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Make an operator, its system account, and a tenant's account with its keys",
		Long: `init makes a directory of keys: an operator, the system account, and a tenant's account with a signing key for each role.
With --tenant it adds another tenant to a directory that exists; hand it to a running hub by "auth push".

Whoever has a role's key can make members of that role. Whoever has operator.nk can do everything: keep it offline, or at
least away from the hosts that issue.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, _, err := flags.keysDir()
			if err != nil {
				return err
			}
			keys, err := auth.Init(dir, flags.register, flags.tenant)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(flags.app.stdout, "operator %s\nkeys of tenant %s in %s\n", keys.Operator(), flags.tenant, dir)
			return err
		},
	}
}
