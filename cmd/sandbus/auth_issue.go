package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
)

// issueFlags are those of "auth issue".
type issueFlags struct {
	*authFlags
	zones   []string
	ttl     time.Duration
	token   bool
	out     string
	local   bool
	ttlIsOn bool
}

func newAuthIssue(flags *authFlags) *cobra.Command {
	f := &issueFlags{authFlags: flags}
	c := &cobra.Command{
		Use:   "issue (sandbox|harness|registrar|site|system) ID",
		Short: "Print a credential",
		Long: `issue prints a credential: with keys of "auth init" one of their operator, as a NATS credentials file; without, or with
--local, a token of the hub that runs on this machine, which holds for that hub's state directory.

Store it in a file of mode 0600 (--out does) for --creds and SANDBUS_CREDS, or pass it as SANDBUS_TOKEN (--token prints
one string). A worker, harness or registrar reads its file again before the credential ends: renew it by issuing another
one into the same file in time. Clocks may differ by two minutes; a life of less than that asks for better clocks.

  sandbox    one worker: may speak for sandbox ID of --zone only
  harness    may speak to all sandboxes, or with --zones to those of some
  registrar  keeps the presence bucket
  site       a leaf node that carries --zone, and nothing of other zones
  system     hears of disconnects and may end connections, for a registrar`,
		Example: `  sandbus auth issue sandbox box1 --zone eu --ttl 24h --out box1.creds
  SANDBUS_TOKEN=$(sandbus auth issue sandbox box1 --token) docker run -e SANDBUS_TOKEN …`,
		Args:      cobra.ExactArgs(2),
		ValidArgs: []string{"sandbox", "harness", "registrar", "site", "system"},
		RunE: func(c *cobra.Command, args []string) error {
			f.ttlIsOn = c.Flags().Changed("ttl")
			return f.run(bus.Role(args[0]), args[1])
		},
	}
	fs := c.Flags()
	fs.StringSliceVar(&f.zones, "zones", nil, "`zones` that a harness is limited to, separated by commas (default: none, it may speak to all)")
	fs.DurationVar(&f.ttl, "ttl", 0, "how long the credential lives, such as 24h (default: for ever)")
	fs.BoolVar(&f.token, "token", false, "print one string, for SANDBUS_TOKEN")
	fs.StringVar(&f.out, "out", "", "`file` to write instead, with mode 0600; whoever reads it meanwhile sees the old credential or the new one")
	fs.BoolVar(&f.local, "local", false, "a token of the hub that runs on this machine, even though there are keys")
	return c
}

func (f *issueFlags) run(role bus.Role, name string) error {
	id := bus.Identity{Role: role, Zone: bus.Zone(or(f.app.zone, string(bus.DefaultZone))), Name: name}
	for _, z := range f.zones {
		id.Zones = append(id.Zones, bus.Zone(z))
	}
	switch {
	case role == bus.RoleAdmin:
		return &usageError{errors.New(`role "admin": "auth revoke" makes it for itself; want sandbox, harness, registrar, site or system`)}
	case role != bus.RoleSandbox && role != bus.RoleSite && f.app.zone != "":
		return &usageError{fmt.Errorf("--zone: a %s is in no zone; --zones limits a harness", role)}
	}
	if err := id.Check(); err != nil {
		return &usageError{err}
	}
	cred, err := f.issue(id)
	if err != nil {
		return err
	}
	text, err := cred.Text()
	if err != nil {
		return err
	}
	if f.token {
		text = []byte(cred.Token() + "\n")
	}
	if f.out != "" {
		return writeSecret(f.out, text)
	}
	_, err = f.app.stdout.Write(text)
	return err
}

func (f *issueFlags) issue(id bus.Identity) (bus.Credential, error) {
	if !f.local {
		keys, found, err := f.find()
		if err != nil {
			return bus.Credential{}, err
		}
		if found {
			return keys.Issue(f.tenant, id, f.ttl)
		}
	}
	if f.ttlIsOn {
		return bus.Credential{}, errors.New(`--ttl: a hub's own token has no end; make keys by "sandbus auth init"`)
	}
	if id.Role != bus.RoleSandbox && id.Role != bus.RoleHarness {
		return bus.Credential{}, fmt.Errorf(`a %s needs an operator's credential; make keys by "sandbus auth init"`, id.Role)
	}
	dir, err := f.app.dir()
	if err != nil {
		return bus.Credential{}, err
	}
	_, issuer, found, err := hub.Find(dir)
	if err != nil {
		return bus.Credential{}, err
	}
	if !found {
		return bus.Credential{}, fmt.Errorf("no keys, and no hub runs on this machine (looked in %s); make keys by \"sandbus auth init\", or start a hub by \"sandbus hub\"", dir)
	}
	return issuer.Issue(id)
}

// writeSecret replaces a file at once by one that only its owner reads.
func writeSecret(path string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".sandbus-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
