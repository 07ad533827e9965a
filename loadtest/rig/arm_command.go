package rig

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
	"github.com/sandbus/sandbus/harnesslib/transport/local"
)

// optPrefix is the argv prefix of a command arm, a word a line; optPrefix+ID is one for a single sandbox.
const optPrefix = "prefix"

var (
	armLocal = arm{
		name: "local", about: "a long-lived shell of the harness's own, for each session",
		below: true,
		open: func(_ context.Context, s *Site) (client, error) {
			return &seamClient{arm: "local", site: s, make: func(p Place) (transport.Transport, error) {
				return local.New(local.Config{Dir: p.Dir})
			}}, nil
		},
	}
	armCommand = arm{
		name: "command", about: "a long-lived shell behind an argv prefix (--command), for each session",
		below: true, setup: setupCommand, open: openCommand("command", false),
	}
	armCommandPerCall = arm{
		name: "command-percall", about: "the same prefix, a process for each call",
		below: true, setup: setupCommand, open: openCommand("command-percall", true),
	}
)

func setupCommand(_ context.Context, t *setting) error {
	prefix := t.stage.cfg.Command
	if len(prefix) == 0 {
		prefix = []string{"env"}
	}
	if _, err := exec.LookPath(prefix[0]); err != nil {
		return fmt.Errorf("%w: %w", err, ErrUnavailable)
	}
	t.site.Options[optPrefix] = strings.Join(prefix, "\n")
	return nil
}

func openCommand(name string, perCall bool) func(context.Context, *Site) (client, error) {
	return func(_ context.Context, s *Site) (client, error) {
		return &seamClient{arm: name, site: s, make: func(p Place) (transport.Transport, error) {
			prefix, ok := s.Options[optPrefix+p.ID]
			if !ok {
				prefix = s.Options[optPrefix]
			}
			cfg := command.Config{Prefix: strings.Split(prefix, "\n"), Dir: p.Dir}
			if perCall {
				return command.NewPerCall(cfg)
			}
			return command.New(cfg)
		}}, nil
	}
}
