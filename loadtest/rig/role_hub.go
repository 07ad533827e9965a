package rig

import (
	"context"
	"encoding/json"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
)

// harnessName is the identity of all harness processes.
const harnessName = "loadtest"

type hubConfig struct {
	Profiles  Profiles `json:"profiles"`
	Sandboxes []string `json:"sandboxes"` // whose credentials are wanted
}

type hubReady struct {
	URL     string   `json:"url"`
	Harness string   `json:"harness"` // token
	Tokens  []string `json:"tokens"`  // of the sandboxes, in their order
}

func hubRole(life context.Context, config json.RawMessage) (any, map[string]handler, func(), error) {
	cfg, err := decode[hubConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	stopProfiles, err := cfg.Profiles.start("hub")
	if err != nil {
		return nil, nil, nil, err
	}
	h, err := hub.Start(life, hub.Config{})
	if err != nil {
		stopProfiles()
		return nil, nil, nil, err
	}
	closeAll := func() {
		h.Stop()
		stopProfiles()
	}
	ready := hubReady{URL: h.URL()}
	for _, id := range cfg.Sandboxes {
		cred, err := h.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: id})
		if err != nil {
			return nil, nil, closeAll, err
		}
		ready.Tokens = append(ready.Tokens, cred.Token())
	}
	cred, err := h.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: harnessName})
	if err != nil {
		return nil, nil, closeAll, err
	}
	ready.Harness = cred.Token()
	return ready, map[string]handler{
		"stats": func(context.Context, json.RawMessage) (any, error) { return h.Stats() },
	}, closeAll, nil
}
