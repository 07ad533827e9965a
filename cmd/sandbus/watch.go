package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/harnesslib"
)

// watchLine is one line of watch --json.
type watchLine struct {
	Event  harnesslib.WatchKind `json:"event"`
	Path   string               `json:"path"`
	Lost   int64                `json:"lost,omitempty"`
	Reason string               `json:"reason,omitempty"`
}

func newWatch(a *app) *cobra.Command {
	var asJSON bool
	var o harnesslib.WatchOptions
	c := &cobra.Command{
		Use:   "watch [ID:]PATH",
		Short: "Print what happens below a directory of a sandbox",
		Long: `watch prints one line for each event below a directory, until it is interrupted: create, write, rename (it went away by
one), remove, chmod, and the path below the directory. "lost" says that events are missing there.`,
		Example: "  sandbus watch box1:/work",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			op, err := parseOperand(args[0])
			if err != nil {
				return err
			}
			return a.withSandbox(c.Context(), op.sandbox, func(sb *harnesslib.Sandbox) error {
				return a.watch(c.Context(), sb, op.path, o, asJSON)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print one JSON object for each event")
	f.BoolVar(&o.Flat, "flat", false, "watch the directory alone, not those below")
	f.IntVar(&o.MaxDirectories, "max-directories", 0, "watch at most this `number` of directories, up to 65536 (default 8192)")
	a.sandboxFlag(c)
	return c
}

func (a *app) watch(ctx context.Context, sb *harnesslib.Sandbox, dir string, o harnesslib.WatchOptions, asJSON bool) error {
	enc := json.NewEncoder(a.stdout)
	for ev, err := range sb.WatchWith(ctx, dir, o) {
		if sig, ok := errors.AsType[*interrupted](err); ok {
			return &statusError{signalStatus(sig), nil}
		}
		if err != nil {
			return err
		}
		if asJSON {
			err = enc.Encode(watchLine{ev.Kind, ev.Path, ev.Lost, ev.Reason})
		} else {
			line := string(ev.Kind) + " " + plain(ev.Path)
			if ev.Reason != "" {
				line += ": " + plain(ev.Reason)
			}
			_, err = fmt.Fprintln(a.stdout, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
