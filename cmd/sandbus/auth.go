package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
)

func newAuth(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "auth",
		Short: "Credentials for the hub of this machine",
	}
	c.AddCommand(newAuthIssue(a))
	return c
}

func newAuthIssue(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "issue (sandbox|harness) ID",
		Short: "Print a credential",
		Long: `issue prints the credential of a sandbox or a harness for the hub that runs on this machine. It is valid as long as
that hub runs. Store it in a file of mode 0600 for --creds and SANDBUS_CREDS, or pass it as SANDBUS_TOKEN.`,
		Example:   `  (umask 077; sandbus auth issue sandbox box1 >box1.creds)`,
		Args:      cobra.ExactArgs(2),
		ValidArgs: []string{"sandbox", "harness"},
		RunE: func(_ *cobra.Command, args []string) error {
			role := bus.Role(args[0])
			if role != bus.RoleSandbox && role != bus.RoleHarness {
				return &usageError{fmt.Errorf("role %q: want sandbox or harness", args[0])}
			}
			dir, err := a.dir()
			if err != nil {
				return err
			}
			_, minter, found, err := hub.Find(dir)
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("no hub runs on this machine (looked in %s); start one by \"sandbus hub\"", dir)
			}
			cred, err := minter.Issue(bus.Identity{Role: role, Zone: bus.Zone(or(a.zone, string(bus.DefaultZone))), Name: args[1]})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, cred.Token())
			return err
		},
	}
}
