package harnesslib

import (
	"errors"
	"fmt"
)

// ErrRequirement is what a *RequirementError wraps.
var ErrRequirement = errors.New("the sandbox is not what was required")

// Requirements are what a harness demands of a sandbox before it uses it. The zero value demands nothing.
type Requirements struct {
	// RequireUnprivileged refuses a sandbox whose commands or file operations run as root, have a capability, or can gain
	// one (no_new_privs is not set), and one that does not say. It is the sandbox's own word: it tells a misconfigured
	// sandbox from a right one, and does not catch a sandbox that lies.
	RequireUnprivileged bool
	// RequireTrust refuses a sandbox whose operator did not vouch for it: "trusted". "untrusted" and empty take both
	// kinds.
	RequireTrust string
}

// RequirementError says which requirement a sandbox does not meet. It wraps ErrRequirement.
type RequirementError struct {
	Sandbox string // its id
	Want    string // what was required
	Got     string // what the sandbox is
}

func (e *RequirementError) Error() string {
	return fmt.Sprintf("sandbox %s: want %s, it is %s", e.Sandbox, e.Want, e.Got)
}

func (e *RequirementError) Unwrap() error { return ErrRequirement }

// Check says whether a sandbox meets the requirements. Errors: *[RequirementError]; RequireTrust has no such value.
func (r Requirements) Check(info SandboxInfo) error {
	if err := r.valid(); err != nil {
		return err
	}
	if r.RequireTrust == "trusted" && info.Trust != "trusted" {
		return &RequirementError{Sandbox: string(info.Sandbox), Want: "a trusted one", Got: fmt.Sprintf("%q", info.Trust)}
	}
	if !r.RequireUnprivileged {
		return nil
	}
	const want = "an unprivileged one"
	switch {
	case info.Commands == nil || info.Files == nil:
		return &RequirementError{Sandbox: string(info.Sandbox), Want: want, Got: "silent about its privileges"}
	case info.Files.Privileged():
		return &RequirementError{Sandbox: string(info.Sandbox), Want: want, Got: "one whose file operations have " + info.Files.String()}
	case info.Commands.Privileged():
		return &RequirementError{Sandbox: string(info.Sandbox), Want: want, Got: "one whose commands have " + info.Commands.String()}
	}
	return nil
}

func (r Requirements) valid() error {
	switch r.RequireTrust {
	case "", "trusted", "untrusted":
		return nil
	}
	return fmt.Errorf(`required trust %q: want "trusted", "untrusted" or nothing`, r.RequireTrust)
}
