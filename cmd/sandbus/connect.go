package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strings"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

func (a *app) logger() *slog.Logger {
	if !a.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// or returns the first value that is set.
func or(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func (a *app) dir() (string, error) {
	if a.stateDir != "" {
		return a.stateDir, nil
	}
	return hub.DefaultDir()
}

// harnessName is the identity of this user's command line at a hub of this machine.
func harnessName() string {
	name := "cli"
	if u, err := user.Current(); err == nil {
		name = "cli-" + strings.ToLower(u.Username)
	}
	if _, err := bus.ParseHarnessID(name); err != nil {
		return "cli"
	}
	return name
}

// session is a hub to speak to, with what was started for it.
type session struct {
	*harnesslib.Hub
	only string // the sandbox that was started for this command; empty when the hub was there before
	stop func()
}

func (s *session) Close() {
	s.Hub.Close()
	if s.stop != nil {
		s.stop()
	}
}

// harnessConfig is how the command line and the environment want to reach a hub.
func (a *app) harnessConfig() (harnesslib.Config, error) {
	cfg := harnesslib.Config{
		URL: or(a.url, os.Getenv("SANDBUS_URL")), Credentials: or(a.creds, os.Getenv("SANDBUS_CREDS")),
		CredentialsCommand: strings.Fields(or(a.credsCommand, os.Getenv("SANDBUS_CREDS_COMMAND"))),
		CA:                 or(a.ca, os.Getenv("SANDBUS_CA")),
		Zone:               or(a.zone, os.Getenv("SANDBUS_ZONE")), Logger: a.logger(),
	}
	switch {
	case a.creds != "":
		cfg.CredentialsCommand = nil // a flag overrules the environment
	case a.credsCommand != "":
		cfg.Credentials = ""
	}
	if cfg.Credentials == "" && len(cfg.CredentialsCommand) == 0 {
		cfg.Token = os.Getenv("SANDBUS_TOKEN")
	}
	if a.insecure {
		cred, err := bus.Anonymous(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: harnessName()})
		if err != nil {
			return cfg, err
		}
		cfg.Token, cfg.Credentials, cfg.CredentialsCommand = cred.Token(), "", nil
	}
	return cfg, nil
}

// busConfig is how to reach a hub as somebody else than a harness, by the same settings. Errors: no credential, or an
// unreadable one.
func busConfig(ctx context.Context, cfg harnesslib.Config) (bus.Config, error) {
	b := bus.Config{URL: cfg.URL, CA: cfg.CA, ServerName: cfg.ServerName, ConnectTimeout: cfg.ConnectTimeout, Logger: cfg.Logger}
	var err error
	switch {
	case cfg.Token != "":
		b.Credential, err = bus.ParseCredential(cfg.Token)
	case cfg.Credentials != "":
		b.Renew = func(context.Context) (bus.Credential, error) { return bus.LoadCredential(cfg.Credentials) }
	case len(cfg.CredentialsCommand) > 0:
		b.Renew = bus.CommandCredential(cfg.CredentialsCommand, bus.RunCommand)
	default:
		err = errors.New("credential: there is none, want --creds or SANDBUS_CREDS with its file, --creds-command, or SANDBUS_TOKEN with its text")
	}
	if b.Renew != nil {
		b.Credential, err = b.Renew(ctx)
	}
	return b, err
}

// findHub completes a configuration that names no hub by the one that runs on this machine. Errors: errNoHub.
func (a *app) findHub(cfg *harnesslib.Config) error {
	if cfg.URL != "" {
		return nil
	}
	dir, err := a.dir()
	if err != nil {
		return err
	}
	st, issuer, found, err := hub.Find(dir)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w (looked in %s); start one by \"sandbus up\", or name one by --hub", errNoHub, dir)
	}
	cred, err := issuer.Issue(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: harnessName()})
	if err != nil {
		return err
	}
	cfg.URL, cfg.Token, cfg.Credentials, cfg.CredentialsCommand = st.URL, cred.Token(), "", nil
	cfg.CA, cfg.ServerName = or(cfg.CA, st.CA), st.ServerName
	return nil
}

var errNoHub = errors.New("no hub: none runs on this machine")

// connect finds a hub; where there is none and own is set, it starts one with a worker for the current directory.
func (a *app) connect(ctx context.Context, own bool) (*session, error) {
	cfg, err := a.harnessConfig()
	if err != nil {
		return nil, err
	}
	switch err := a.findHub(&cfg); {
	case own && errors.Is(err, errNoHub):
		return a.startOwn(ctx, cfg)
	case err != nil:
		return nil, err
	}
	return open(ctx, cfg, "", nil)
}

func open(ctx context.Context, cfg harnesslib.Config, only string, stop func()) (*session, error) {
	h, err := harnesslib.Connect(ctx, cfg)
	if err != nil {
		if stop != nil {
			stop()
		}
		return nil, err
	}
	return &session{Hub: h, only: only, stop: stop}, nil
}

// ownSandbox is the id of a sandbox that lives for one command.
const ownSandbox = "here"

// startOwn runs a hub and a worker in this process for one command.
func (a *app) startOwn(ctx context.Context, cfg harnesslib.Config) (*session, error) {
	h, err := hub.Start(ctx, hub.Config{Logger: a.logger()})
	if err != nil {
		return nil, err
	}
	stopWorker, err := a.startWorker(ctx, h, ownSandbox)
	if err != nil {
		h.Stop()
		return nil, err
	}
	stop := func() {
		stopWorker()
		h.Stop()
	}
	cred, err := h.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: harnessName()})
	if err != nil {
		stop()
		return nil, err
	}
	cfg.URL, cfg.Token, cfg.Credentials, cfg.CredentialsCommand = h.URL(), cred.Token(), "", nil
	cfg.Zone, cfg.CA = "", ""
	return open(ctx, cfg, ownSandbox, stop)
}

// startWorker runs a worker for the current directory and returns when it is known at the hub. stop ends it.
func (a *app) startWorker(ctx context.Context, h *hub.Hub, id string) (stop func(), err error) {
	cred, err := h.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: id})
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	w, err := workerd.New(workerd.Config{
		URL: h.URL(), Dial: h.Dial, Credential: cred, Version: version, Logger: a.logger(), OnReady: func() { close(ready) },
	})
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(life) }()
	stop = func() {
		cancel(errors.New("sandbus ends"))
		if err := <-ended; err != nil {
			a.logger().Warn("worker", "error", err)
		}
	}
	select {
	case <-ready:
		return stop, nil
	case err := <-ended:
		cancel(nil)
		return nil, err
	case <-ctx.Done():
		stop()
		return nil, context.Cause(ctx)
	}
}

// choose returns the sandbox to use: the one that was named, or the only one.
func (a *app) choose(ctx context.Context, s *session, named string) (*harnesslib.Sandbox, error) {
	id := or(named, a.sandbox, os.Getenv("SANDBUS_SANDBOX"))
	if s.only != "" {
		if id != "" && id != s.only {
			return nil, fmt.Errorf("sandbox %s: no hub runs on this machine and none is named, so there are no sandboxes; "+
				"start some by \"sandbus up\", or name a hub by --hub", id)
		}
		id = s.only
	}
	if id != "" {
		return s.Sandbox(id)
	}
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	switch len(list) {
	case 0:
		return nil, errors.New("no sandbox is live at this hub; start one by \"sandbus worker\"")
	case 1:
		return s.Sandbox(string(list[0].Sandbox))
	}
	return nil, fmt.Errorf("%d sandboxes are live: name one by --sandbox; \"sandbus ps\" lists them", len(list))
}

// explain adds to an error what the user can do about it.
func explain(err error) error {
	if errors.Is(err, harnesslib.ErrUnknownSandbox) {
		return fmt.Errorf("%w; \"sandbus ps\" lists the live ones", err)
	}
	return err
}

// withRunning runs f on the sandbox that the command line means, at a hub that runs already.
func (a *app) withRunning(ctx context.Context, named string, f func(*harnesslib.Sandbox) error) error {
	return a.with(ctx, named, false, f)
}

// withSandbox is withRunning that starts a hub and a worker of its own where no hub runs.
func (a *app) withSandbox(ctx context.Context, named string, f func(*harnesslib.Sandbox) error) error {
	return a.with(ctx, named, true, f)
}

func (a *app) with(ctx context.Context, named string, own bool, f func(*harnesslib.Sandbox) error) error {
	s, err := a.connect(ctx, own)
	if err != nil {
		return err
	}
	defer s.Close()
	sb, err := a.choose(ctx, s, named)
	if err != nil {
		return err
	}
	if !a.lease {
		return explain(f(sb))
	}
	zone := or(a.zone, os.Getenv("SANDBUS_ZONE"), string(bus.DefaultZone))
	l, err := s.Acquire(ctx, harnesslib.AcquireOptions{Selector: harnesslib.Selector{Zone: zone, ID: []string{sb.ID()}}, Wait: true})
	if err != nil {
		return err
	}
	err = f(l.Sandbox())
	if rerr := l.Release(ctx); err == nil {
		err = rerr
	}
	return explain(err)
}
