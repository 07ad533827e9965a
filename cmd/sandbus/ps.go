package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/harnesslib"
)

func newPs(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "List the live sandboxes",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.connect(c.Context(), false)
			if err != nil {
				return err
			}
			defer s.Close()
			list, err := s.List(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if list == nil {
					list = []harnesslib.SandboxInfo{}
				}
				return json.NewEncoder(a.stdout).Encode(list)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "ZONE\tID\tINSTANCE\tARCH\tSLOTS\tLOAD\tUP\tBEAT\tVERSION") // kept for Flush to report
			for _, p := range list {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s\t%d/%d\t%d\t%s\t%s ago\t%s\n", p.Zone, p.Sandbox, p.Instance,
					plain(p.OS), plain(p.Arch), p.Used, p.Slots, p.Load, age(p.Started), age(p.LastBeat), plain(p.Version))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

func age(t time.Time) string { return max(0, time.Since(t)).Round(time.Second).String() }

// plain is a sandbox's string as our own tables show it: quoted when it holds what a terminal would act on.
func plain(s string) string {
	for _, r := range s {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == '\uFFFD' {
			return fmt.Sprintf("%q", s)
		}
	}
	return s
}
