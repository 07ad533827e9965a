package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
)

func newAuthList(flags *authFlags) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List what was issued, and what of it was revoked",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			keys, err := flags.open()
			if err != nil {
				return err
			}
			list, err := keys.Issued()
			if err != nil {
				return err
			}
			if asJSON {
				if list == nil {
					list = []auth.Entry{}
				}
				return json.NewEncoder(flags.app.stdout).Encode(list)
			}
			w := tabwriter.NewWriter(flags.app.stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "TENANT\tROLE\tZONE\tID\tISSUED\tEXPIRES\tSTATE\tKEY") // kept for Flush to report
			for _, e := range list {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Tenant, e.Role, e.Zone, e.Name,
					e.Issued.Format(time.RFC3339), when(e.Expires), credState(e), e.Key)
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

func when(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func credState(e auth.Entry) string {
	switch {
	case e.Revoked:
		return "revoked"
	case !e.Expires.IsZero() && time.Until(e.Expires) <= 0:
		return "expired"
	}
	return "live"
}

// shown is what "auth show" prints of a credential.
type shown struct {
	Role      bus.Role   `json:"role"`
	Zone      bus.Zone   `json:"zone"`
	Zones     []bus.Zone `json:"zones,omitempty"`
	Name      string     `json:"name"`
	Kind      string     `json:"kind"` // "operator" or "hub"
	Key       string     `json:"key,omitempty"`
	Account   string     `json:"account,omitempty"`
	Operator  string     `json:"operator,omitempty"`
	Issued    time.Time  `json:"issued,omitzero"`
	Expires   time.Time  `json:"expires,omitzero"`
	Subscribe []string   `json:"subscribe"`
	Publish   []string   `json:"publish"`
}

func newAuthShow(flags *authFlags) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Say whose a credential is and what it may do",
		Long: `show reads a credential from a file ("-" is standard input), or without one from --creds, SANDBUS_CREDS or SANDBUS_TOKEN.
It asks no hub: whether a hub takes the credential is not known to it.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			cred, err := flags.credential(args)
			if err != nil {
				return err
			}
			return flags.show(describe(cred), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return c
}

// maxShown bounds what is read of standard input, in bytes.
const maxShown = 64 << 10

func (f *authFlags) credential(args []string) (bus.Credential, error) {
	file := or(f.app.creds, os.Getenv("SANDBUS_CREDS"))
	if len(args) == 1 {
		file = args[0]
	}
	switch {
	case file == "-":
		text, err := io.ReadAll(io.LimitReader(f.app.stdin, maxShown))
		if err != nil {
			return bus.Credential{}, fmt.Errorf("read standard input: %w", err)
		}
		return bus.ParseCredential(string(text))
	case file != "":
		return bus.LoadCredential(file)
	case os.Getenv("SANDBUS_TOKEN") != "":
		return bus.ParseCredential(os.Getenv("SANDBUS_TOKEN"))
	}
	return bus.Credential{}, errors.New("no credential: name its file, or set SANDBUS_CREDS or SANDBUS_TOKEN")
}

func describe(cred bus.Credential) shown {
	id := cred.Identity()
	p := id.Permissions()
	s := shown{Role: id.Role, Zone: id.Zone, Zones: id.Zones, Name: id.Name, Kind: "hub", Subscribe: p.Subscribe, Publish: p.Publish}
	if d, ok := cred.Details(); ok {
		s.Kind, s.Key, s.Account, s.Operator, s.Issued, s.Expires = "operator", d.Key, d.Account, d.Operator, d.Issued.UTC(), d.Expires
	}
	return s
}

func (f *authFlags) show(s shown, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(f.app.stdout)
		enc.SetEscapeHTML(false) // subjects end with ">"
		return enc.Encode(s)
	}
	w := tabwriter.NewWriter(f.app.stdout, 0, 0, 2, ' ', 0)
	row := func(name, value string) { _, _ = fmt.Fprintf(w, "%s\t%s\n", name, value) } // kept for Flush to report
	row("role", string(s.Role))
	row("id", s.Name)
	switch {
	case s.Role == bus.RoleSandbox || s.Role == bus.RoleSite:
		row("zone", string(s.Zone))
	case s.Role == bus.RoleHarness && len(s.Zones) == 0:
		row("zones", "all")
	case s.Role == bus.RoleHarness:
		row("zones", fmt.Sprint(s.Zones))
	}
	if s.Kind == "operator" {
		row("issued", s.Issued.Format(time.RFC3339))
		row("expires", when(s.Expires))
		row("key", s.Key)
		row("account", s.Account)
		row("operator", s.Operator)
	} else {
		row("issued by", "an embedded hub, with which it ends")
	}
	for _, l := range []struct {
		name string
		list []string
	}{{"may subscribe", s.Subscribe}, {"may publish", s.Publish}} {
		for i, subject := range l.list {
			name := l.name
			if i > 0 {
				name = ""
			}
			row(name, subject)
		}
	}
	return w.Flush()
}
