package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
)

// errNotDir is what list asks an error for; the numbers of a sandbox's errors are those of Linux, and this one is the
// same everywhere.
const errNotDir = syscall.ENOTDIR

func newVersion(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return json.NewEncoder(a.stdout).Encode(map[string]any{
					"version": version, "protocol": bus.ProtocolVersion, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(a.stdout, "sandbus %s, protocol %d, %s %s/%s\n", version, bus.ProtocolVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return c
}
