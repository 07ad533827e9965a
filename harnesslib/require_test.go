package harnesslib

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
)

func TestRequirements(t *testing.T) {
	plain := &bus.Privileges{UID: 1000, GID: 1000, NoNewPrivs: true}
	for name, c := range map[string]struct {
		require Requirements
		info    SandboxInfo
		want    string // a part of the error; empty for none
	}{
		"nothing":            {Requirements{}, SandboxInfo{Trust: "untrusted"}, ""},
		"trusted":            {Requirements{RequireTrust: "trusted"}, SandboxInfo{Trust: "trusted"}, ""},
		"untrusted will do":  {Requirements{RequireTrust: "untrusted"}, SandboxInfo{Trust: "trusted"}, ""},
		"not trusted":        {Requirements{RequireTrust: "trusted"}, SandboxInfo{Trust: "untrusted"}, `want a trusted one, it is "untrusted"`},
		"no such trust":      {Requirements{RequireTrust: "very"}, SandboxInfo{}, `"very"`},
		"silent":             {Requirements{RequireUnprivileged: true}, SandboxInfo{}, "silent"},
		"silent of commands": {Requirements{RequireUnprivileged: true}, SandboxInfo{Files: plain}, "silent"},
		"plain":              {Requirements{RequireUnprivileged: true}, SandboxInfo{Files: plain, Commands: plain}, ""},
		"root": {
			Requirements{RequireUnprivileged: true},
			SandboxInfo{Files: plain, Commands: &bus.Privileges{NoNewPrivs: true}},
			"commands have uid 0",
		},
		"capable": {
			Requirements{RequireUnprivileged: true},
			SandboxInfo{Files: &bus.Privileges{UID: 1, Capabilities: 1 << 21, NoNewPrivs: true}, Commands: plain},
			"capabilities 0x200000",
		},
		"sudo": {
			Requirements{RequireUnprivileged: true},
			SandboxInfo{Files: plain, Commands: &bus.Privileges{UID: 1}},
			"may gain more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.require.Check(c.info)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			if name != "no such trust" {
				require.ErrorIs(t, err, ErrRequirement)
			}
		})
	}
}
