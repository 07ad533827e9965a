package rig

import (
	"context"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/harnesslib"
)

var armBusEmbedded = arm{
	name: "bus-embedded", about: "as bus-native, with the hub in the harness's process and its connection in memory",
	oneHarness: true,
	open:       openEmbedded,
}

// embeddedClient is a harness that is also the hub: the workers come to it.
type embeddedClient struct {
	*busClient
	hub    *hub.Hub
	tokens []string
}

func openEmbedded(ctx context.Context, s *Site) (_ client, err error) {
	h, err := hub.Start(ctx, hub.Config{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.Stop()
		}
	}()
	c := &embeddedClient{hub: h}
	for _, p := range s.Sandboxes {
		cred, err := h.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: p.ID})
		if err != nil {
			return nil, err
		}
		c.tokens = append(c.tokens, cred.Token())
	}
	cred, err := h.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: harnessName})
	if err != nil {
		return nil, err
	}
	lib, err := harnesslib.Connect(ctx, harnesslib.Config{URL: h.URL(), Token: cred.Token(), Dial: h.Dial})
	if err != nil {
		return nil, err
	}
	c.busClient = &busClient{hub: lib, site: s, how: native}
	return c, nil
}

func (c *embeddedClient) join() (string, []string) { return c.hub.URL(), c.tokens }

func (c *embeddedClient) close() {
	c.busClient.close()
	c.hub.Stop()
}
