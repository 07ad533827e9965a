package harnesslib

import (
	"fmt"
	"slices"

	"github.com/sandbus/sandbus/bus"
)

// Selector says which sandboxes are meant. Every field that is set must hold; the zero value means all of them.
type Selector struct {
	// Zone is where the sandbox must be; empty means any zone.
	Zone string
	// ID is the sandboxes that may be meant; empty means any.
	ID []string
	// Labels must all be there with these values; other labels do not matter.
	Labels map[string]string
	// Capabilities must all be there, such as "shell" or "dial"; others do not matter.
	Capabilities []string
	// Arch and OS are Go's names, such as "amd64" and "linux"; empty means any.
	Arch, OS string
	// Trust is "trusted" or "untrusted"; empty means either.
	Trust string
}

// Matches says whether a sandbox is meant.
func (s Selector) Matches(p SandboxInfo) bool {
	for name, want := range s.Labels {
		if got, ok := p.Labels[name]; !ok || got != want {
			return false
		}
	}
	for _, want := range s.Capabilities {
		if !slices.Contains(p.Capabilities, want) {
			return false
		}
	}
	return matches(s.Zone, string(p.Zone)) && matches(s.Arch, p.Arch) && matches(s.OS, p.OS) && matches(s.Trust, p.Trust) &&
		(len(s.ID) == 0 || slices.Contains(s.ID, string(p.Sandbox)))
}

func matches(want, got string) bool { return want == "" || want == got }

// Check says what of a selector can match no sandbox at all: an illegal zone, id or trust. The error names the value.
func (s Selector) Check() error {
	if s.Zone != "" {
		if _, err := bus.ParseZone(s.Zone); err != nil {
			return err
		}
	}
	for _, id := range s.ID {
		if _, err := bus.ParseSandboxID(id); err != nil {
			return err
		}
	}
	if s.Trust != "" && s.Trust != "trusted" && s.Trust != "untrusted" {
		return fmt.Errorf("trust %.64q: want \"trusted\", \"untrusted\" or nothing", s.Trust)
	}
	return nil
}
