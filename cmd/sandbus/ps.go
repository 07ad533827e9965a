package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/harnesslib"
)

// selectorFlags choose sandboxes by what presence says of them.
type selectorFlags struct {
	labels       []string
	capabilities []string
	arch, os     string
	trust        string
}

func (s *selectorFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&s.labels, "label", nil, "only sandboxes with the label `NAME=VALUE`; several must all be there")
	f.StringArrayVar(&s.capabilities, "capability", nil, "only sandboxes with this `capability`, such as shell; several must all be there")
	f.StringVar(&s.arch, "arch", "", "only sandboxes of this `architecture`, such as amd64")
	f.StringVar(&s.os, "os", "", "only sandboxes of this operating `system`, such as linux")
	f.StringVar(&s.trust, "trust", "", "only sandboxes that are `trusted` or untrusted")
}

// selector is what the flags mean. A zone counts when it is named.
func (s *selectorFlags) selector(zone string) (harnesslib.Selector, error) {
	sel := harnesslib.Selector{Zone: zone, Capabilities: s.capabilities, Arch: s.arch, OS: s.os, Trust: s.trust}
	for _, l := range s.labels {
		name, value, ok := strings.Cut(l, "=")
		if !ok || name == "" {
			return sel, &usageError{fmt.Errorf("--label %q: want NAME=VALUE", l)}
		}
		if old, twice := sel.Labels[name]; twice && old != value {
			return sel, &usageError{fmt.Errorf("--label %q: %s=%s is wanted, too; a sandbox has one value for a name", l, name, old)}
		}
		if sel.Labels == nil {
			sel.Labels = map[string]string{}
		}
		sel.Labels[name] = value
	}
	if err := sel.Check(); err != nil {
		return sel, &usageError{err}
	}
	return sel, nil
}

func newPs(a *app) *cobra.Command {
	var asJSON, watch bool
	var flags selectorFlags
	c := &cobra.Command{
		Use:   "ps",
		Short: "List the live sandboxes",
		Long: `ps lists the live sandboxes: in STATE, "suspect" is one that was not heard of for 12 s (at 17 s it is gone), "draining" one
that takes nothing new. With --watch it goes on with one line for each event until it is interrupted: live, changed, gone;
with --json too, each line is a JSON object.`,
		Example: `  sandbus ps --label team=alpha
  sandbus ps --watch --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			sel, err := flags.selector(a.zone)
			if err != nil {
				return err
			}
			s, err := a.connect(c.Context(), false)
			if err != nil {
				return err
			}
			defer s.Close()
			if watch {
				return a.psWatch(c.Context(), s, sel, asJSON)
			}
			return a.psList(c.Context(), s, sel, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array; with --watch, one JSON object for each event")
	c.Flags().BoolVar(&watch, "watch", false, "go on and print what happens")
	flags.add(c)
	return c
}

func (a *app) psList(ctx context.Context, s *session, sel harnesslib.Selector, asJSON bool) error {
	list, err := s.List(ctx)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(p harnesslib.SandboxInfo) bool { return !sel.Matches(p) })
	if asJSON {
		if list == nil {
			list = []harnesslib.SandboxInfo{}
		}
		return json.NewEncoder(a.stdout).Encode(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ZONE\tID\tINSTANCE\tARCH\tSLOTS\tLOAD\tSTATE\tUP\tBEAT\tVERSION") // kept for Flush to report
	for _, p := range list {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s\t%d/%d\t%d\t%s\t%s\t%s ago\t%s\n", p.Zone, p.Sandbox, p.Instance,
			plain(p.OS), plain(p.Arch), p.Used, p.Slots, p.Load, liveness(p), age(p.Started), age(p.LastBeat), plain(p.Version))
	}
	return w.Flush()
}

// psEvent is one line of ps --watch --json.
type psEvent struct {
	Event   harnesslib.SandboxEventKind `json:"event"`
	Sandbox *harnesslib.SandboxInfo     `json:"sandbox,omitempty"`
}

func (a *app) psWatch(ctx context.Context, s *session, sel harnesslib.Selector, asJSON bool) error {
	enc := json.NewEncoder(a.stdout)
	for e, err := range s.Sandboxes(ctx, sel) {
		if sig, ok := errors.AsType[*interrupted](err); ok {
			return &statusError{signalStatus(sig), nil}
		}
		if err != nil {
			return err
		}
		line := psEvent{Event: e.Kind}
		if e.Kind != harnesslib.SandboxListed {
			line.Sandbox = &e.Sandbox
		}
		switch p := e.Sandbox; {
		case asJSON:
			err = enc.Encode(line)
		case line.Sandbox == nil: // a mark for programs
		default:
			_, err = fmt.Fprintf(a.stdout, "%s %s %s %s %s slots %d/%d load %d\n", e.Kind, p.Zone, p.Sandbox, p.Instance, liveness(p), p.Used, p.Slots, p.Load)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func liveness(p harnesslib.SandboxInfo) string {
	switch {
	case p.Suspect:
		return "suspect"
	case p.Draining:
		return "draining"
	}
	return "live"
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
