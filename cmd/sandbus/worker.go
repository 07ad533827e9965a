package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/workerd"
	"github.com/sandbus/sandbus/workerd/command"
)

func newWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "worker [flags]",
		Short: "Serve a sandbox until Ctrl-C",
		Long: `worker serves one sandbox, as the binary workerd does: its flags are those of workerd, see "sandbus worker --help".
Without --url it joins the hub that runs on this machine.`,
		Example:            `  sandbus worker --sandbox-id box1 --dir /src`,
		DisableFlagParsing: true, // the flags are workerd's
		RunE: func(c *cobra.Command, args []string) error {
			code := command.Run(c.Context(), "sandbus worker", args, os.Getenv, a.stdout, a.stderr, a.localHub, version)
			if code != 0 {
				return &statusError{code, nil}
			}
			return nil
		},
	}
}

// localHub finds the hub of this machine for a worker.
func (a *app) localHub(cfg *workerd.Config, zone bus.Zone, id bus.SandboxID) (bool, error) {
	dir, err := a.dir()
	if err != nil {
		return false, err
	}
	st, issuer, found, err := hub.Find(dir)
	if err != nil || !found {
		return false, err
	}
	cfg.URL, cfg.CA, cfg.ServerName = st.URL, or(cfg.CA, st.CA), or(cfg.ServerName, st.ServerName)
	cfg.Credential, err = issuer.Issue(bus.Identity{Role: bus.RoleSandbox, Zone: zone, Name: string(id)})
	return err == nil, err
}
