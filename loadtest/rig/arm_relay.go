package rig

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
	"github.com/sandbus/sandbus/loadtest/workload"
)

const (
	optAddr  = "addr"  // of the relay
	optToken = "token" // at the relay
)

var (
	armRelay = arm{
		name: "relay", about: "a sandbox/v1 gRPC relay whose workers run a bash -c for each call: the \"before\"",
		setup: setupRelay(false), open: openRelay("relay", transport.FastNone),
	}
	armRelayFast = arm{
		name: "relay+fast", about: "the same contract served on the bus (sandbus gateway): the workers' warm shells",
		setup: setupGateway, open: openRelay("relay+fast", transport.FastShell),
	}
	armRelayEcho = arm{
		name: "relay-echo", about: "the plain relay with workers that only answer, as echo does: no process",
		setup: setupRelay(true),
		open: func(_ context.Context, s *Site) (client, error) {
			return &relayEcho{seamClient{arm: "relay-echo", site: s, shared: true, make: dialRelay(s, transport.FastNone)}}, nil
		},
	}
)

func openRelay(name string, fast transport.FastTier) func(context.Context, *Site) (client, error) {
	return func(_ context.Context, s *Site) (client, error) {
		return &seamClient{arm: name, site: s, shared: true, make: dialRelay(s, fast)}, nil
	}
}

func dialRelay(s *Site, fast transport.FastTier) func(Place) (transport.Transport, error) {
	return func(p Place) (transport.Transport, error) {
		return relay.New(relay.Config{Addr: s.Options[optAddr], Token: s.Options[optToken], Sandbox: p.ID, FastTier: fast})
	}
}

// relayEcho asks for answers of a size.
type relayEcho struct{ seamClient }

func (c *relayEcho) session(ctx context.Context, n int) (session, int, error) {
	if _, _, err := c.seamClient.session(ctx, n); err != nil { // it makes the transport
		return nil, 0, err
	}
	n %= len(c.site.Sandboxes)
	c.mu.Lock()
	tr := c.used[n]
	c.mu.Unlock()
	return doer(func(ctx context.Context, o *workload.Op) error {
		if o.Kind == workload.Stream {
			return unavailable("relay-echo", o)
		}
		// As in a script, the text is what the request carries.
		res, err := tr.Exec(ctx, transport.Command{Script: fmt.Sprintf("%d %s", o.Answer, o.Data)})
		if err != nil {
			return err
		}
		if len(res.Stdout) != o.Answer {
			return &workload.WrongError{What: fmt.Sprintf("the echo has %d bytes, want %d", len(res.Stdout), o.Answer)}
		}
		return nil
	}), n, nil
}

// relayConfig is a relay's process: with a hub it is the gateway, else the plain relay.
type relayConfig struct {
	Name     string   `json:"name"`
	Token    string   `json:"token"`  // of harness and workers
	Tokens   string   `json:"tokens"` // the gateway's file
	URL      string   `json:"url"`
	Bus      string   `json:"bus"` // token at the hub
	Profiles Profiles `json:"profiles"`
}

type relayReady struct {
	Addr string `json:"addr"`
}

type attachedRequest struct {
	Sandboxes []string `json:"sandboxes"`
}

func setupRelay(echo bool) func(context.Context, *setting) error {
	return func(ctx context.Context, t *setting) error {
		cfg := relayConfig{Name: t.name, Token: rand.Text(), Profiles: t.stage.cfg.Profiles}
		p, err := t.startRelay(ctx, cfg)
		if err != nil {
			return err
		}
		t.sandboxes, t.hub = nil, nil
		var ids []string
		for _, place := range t.site.Sandboxes {
			w := relayWorkerConfig{
				Name: t.name + "-" + place.ID, Relay: t.site.Options[optAddr], Token: cfg.Token, Sandbox: place.ID, Dir: place.Dir,
				Slots: t.stage.cfg.Slots, Echo: echo, Profiles: t.stage.cfg.Profiles,
			}
			proc, err := spawn(ctx, "relayworker", w.Name, t.stage.stderr, w, &struct{}{})
			if err != nil {
				return err
			}
			t.stops = append(t.stops, proc.stop)
			t.stage.forks.add(proc.pid())
			t.sandboxes = append(t.sandboxes, proc)
			ids = append(ids, place.ID)
		}
		return p.call(ctx, "attached", attachedRequest{Sandboxes: ids}, nil)
	}
}

func setupGateway(ctx context.Context, t *setting) error {
	token := rand.Text()
	file := filepath.Join(t.stage.dir, "tokens")
	if err := os.WriteFile(file, fmt.Appendf(nil, "harness %s %s\n", harnessName, token), 0o600); err != nil {
		return err
	}
	_, err := t.startRelay(ctx, relayConfig{
		Name: "gateway", Token: token, Tokens: file, URL: t.site.URL, Bus: t.site.Token, Profiles: t.stage.cfg.Profiles,
	})
	return err
}

func (t *setting) startRelay(ctx context.Context, cfg relayConfig) (*process, error) {
	var ready relayReady
	p, err := spawn(ctx, "relay", cfg.Name, t.stage.stderr, cfg, &ready)
	if err != nil {
		return nil, err
	}
	t.stops = append(t.stops, p.stop)
	t.relays = append(t.relays, p)
	t.site.Options[optAddr], t.site.Options[optToken] = ready.Addr, cfg.Token
	return p, nil
}

func relayRole(life context.Context, config json.RawMessage) (any, map[string]handler, func(), error) {
	cfg, err := decode[relayConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	stopProfiles, err := cfg.Profiles.start(cfg.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	var serve func(context.Context, net.Listener) error
	handlers := map[string]handler{}
	if cfg.URL != "" {
		tokens, err := gateway.OpenTokens(cfg.Tokens)
		if err != nil {
			return nil, nil, stopProfiles, err
		}
		g, err := gateway.New(gateway.Config{Hub: harnesslib.Config{URL: cfg.URL, Token: cfg.Bus}, Tokens: tokens, Grace: time.Second})
		if err != nil {
			return nil, nil, stopProfiles, err
		}
		serve = g.Serve
	} else {
		r := plainrelay.NewRelay(cfg.Token)
		serve = r.Serve
		handlers["attached"] = func(ctx context.Context, body json.RawMessage) (any, error) {
			req, err := decode[attachedRequest](body)
			if err != nil {
				return nil, err
			}
			for _, id := range req.Sandboxes {
				for !r.Attached(id) {
					select {
					case <-time.After(5 * time.Millisecond):
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				}
			}
			return struct{}{}, nil
		}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(life, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, stopProfiles, err
	}
	run, end := context.WithCancelCause(life)
	ended := make(chan error, 1)
	go func() { ended <- serve(run, ln) }()
	return relayReady{Addr: ln.Addr().String()}, handlers, func() {
		end(errRigGone)
		if err := <-ended; err != nil {
			fmt.Fprintf(os.Stderr, "loadtest %s: %v\n", cfg.Name, err)
		}
		stopProfiles()
	}, nil
}
