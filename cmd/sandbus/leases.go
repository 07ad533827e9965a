package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/harnesslib"
)

func newLeases(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "leases [flags] [ID]",
		Short: "List who holds the slots of a sandbox",
		Long: `leases lists the leases that a sandbox's worker has granted: the epoch tells those of one worker apart, a later one has a
greater number. LEFT is when a lease ends that nobody renews. Without ID it is the sandbox of --sandbox, or the only live
one.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			named := ""
			if len(args) > 0 {
				named = args[0]
			}
			return a.withRunning(c.Context(), named, func(sb *harnesslib.Sandbox) error {
				list, err := sb.Leases(c.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(a.stdout).Encode(list)
				}
				return a.printLeases(list)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return c
}

func (a *app) printLeases(list harnesslib.LeaseList) error {
	required := ""
	if list.Required {
		required = ", who has no lease is not served"
	}
	if _, err := fmt.Fprintf(a.stdout, "%d of %d slots are taken%s\n", list.Used, list.Slots, required); err != nil || len(list.Leases) == 0 {
		return err
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "EPOCH\tHARNESS\tSLOTS\tAGE\tLEFT\tTTL") // kept for Flush to report
	for _, l := range list.Leases {
		slots := "1"
		if l.Exclusive {
			slots = "all"
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", l.Epoch, plain(l.Harness), slots,
			l.Age.Round(time.Second), l.Left.Round(time.Second), l.TTL)
	}
	return w.Flush()
}
