package harnesslib

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/sandbus/sandbus/bus"
)

// Config says how to reach a hub.
type Config struct {
	// URL is the hub's address, such as nats://hub:4222. Must not be empty, unless Dial is set.
	URL string
	// Credentials is the file with the harness's credential. One of Credentials, CredentialsCommand and Token must be set.
	// The file is read again before the credential expires.
	Credentials string
	// CredentialsCommand prints the harness's credential: a program and its arguments. It is run again before the
	// credential expires.
	CredentialsCommand []string
	// Token is the harness's credential itself.
	Token string
	// CA is a file with the certificates, in PEM form, of the authorities to trust for the hub's; empty means the
	// system's.
	CA string
	// ServerName is the name that the hub's certificate must have; empty means the URL's host.
	ServerName string
	// Zone is where sandboxes are that are named without one; empty means "main".
	Zone string
	// ConnectTimeout is how long Connect goes on trying; zero means 5 s, below zero means until its context ends.
	ConnectTimeout time.Duration
	// Dial connects to a hub in this process instead of URL; nil means URL.
	Dial func() (net.Conn, error)
	// Logger gets connection events, never contents; nil discards them.
	Logger *slog.Logger
}

// Hub is a connection to a hub.
type Hub struct {
	conn   *bus.Conn
	caller *bus.Caller
	zone   bus.Zone
	pool   *pool

	life      context.Context //nolint:containedctx // the hub's own life, ended by Close
	end       context.CancelCauseFunc
	follow    sync.Once      // begins to follow presence
	following sync.WaitGroup // whoever does

	mu  sync.Mutex // guards the fields below
	dir *bus.Directory
	// located is where sandboxes were found: presence is asked once for each, so that a hub that chooses a new leader, or
	// a server of it that lags behind, holds nobody up. What is not there any more is found out by the hub's word.
	located map[address]bus.Target
}

// address names a sandbox.
type address struct {
	zone bus.Zone
	id   bus.SandboxID
}

// Connect reaches the hub. Errors: a setting that is wrong; the hub was not reached in time or refuses the
// credential, naming its URL and how long was tried.
func Connect(ctx context.Context, cfg Config) (*Hub, error) {
	cred, renew, err := credential(ctx, cfg)
	if err != nil {
		return nil, err
	}
	zone := bus.DefaultZone
	if cfg.Zone != "" {
		if zone, err = bus.ParseZone(cfg.Zone); err != nil {
			return nil, err
		}
	}
	conn, err := bus.Connect(ctx, bus.Config{
		URL: cfg.URL, Credential: cred, ConnectTimeout: cfg.ConnectTimeout, Dial: cfg.Dial, Logger: cfg.Logger,
		Renew: renew, CA: cfg.CA, ServerName: cfg.ServerName,
	})
	if err != nil {
		return nil, err
	}
	caller, err := bus.NewCaller(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	h := &Hub{conn: conn, caller: caller, zone: zone, pool: newPool(leaseDesk{caller}), located: map[address]bus.Target{}}
	h.life, h.end = context.WithCancelCause(context.Background())
	return h, nil
}

// credential settles who the harness is, and where a newer credential comes from.
func credential(ctx context.Context, cfg Config) (cred bus.Credential, renew func(context.Context) (bus.Credential, error), err error) {
	set := 0
	for _, is := range []bool{cfg.Token != "", cfg.Credentials != "", len(cfg.CredentialsCommand) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set > 1:
		return cred, nil, errors.New("credential: several of a token, a file and a command are set, want one")
	case cfg.Token != "":
		cred, err = bus.ParseCredential(cfg.Token)
		return cred, nil, err
	case cfg.Credentials != "":
		renew = func(context.Context) (bus.Credential, error) { return bus.LoadCredential(cfg.Credentials) }
	case len(cfg.CredentialsCommand) > 0:
		renew = bus.CommandCredential(cfg.CredentialsCommand, bus.RunCommand)
	default:
		return cred, nil, errors.New("credential: there is none, want Credentials (a file), CredentialsCommand or Token")
	}
	cred, err = renew(ctx)
	return cred, renew, err
}

// Close ends the leases and the connection; calls that are under way fail. It may be called twice.
func (h *Hub) Close() {
	h.pool.close()
	h.end(bus.ErrClosed)
	h.following.Wait()
	h.caller.Close()
	h.conn.Close()
}

// Attempt is a subject of the hub that was tried, and whether the hub let it be used.
type Attempt = bus.Attempt

// Try uses each subject that a harness's credential is for, and some that it is not for, without any effect, and reports
// what the hub let it do. Errors: the hub does not answer in time.
func (h *Hub) Try(ctx context.Context) ([]Attempt, error) { return h.conn.Try(ctx) }

// SandboxInfo is what the hub knows of a live sandbox.
type SandboxInfo = bus.Presence

// List returns the live sandboxes of all zones, sorted by zone and id.
func (h *Hub) List(ctx context.Context) ([]SandboxInfo, error) {
	d, err := h.directory(ctx)
	if err != nil {
		return nil, err
	}
	return d.List(ctx)
}

func (h *Hub) directory(ctx context.Context) (*bus.Directory, error) {
	h.mu.Lock()
	d := h.dir
	h.mu.Unlock()
	if d != nil {
		return d, nil
	}
	d, err := bus.OpenDirectory(ctx, h.conn)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dir = d
	return d, nil
}

// Sandbox names a sandbox of the hub's zone; it sends nothing. Errors: the id is illegal.
func (h *Hub) Sandbox(id string) (*Sandbox, error) {
	sid, err := bus.ParseSandboxID(id)
	if err != nil {
		return nil, err
	}
	return &Sandbox{hub: access{h, caller{bus: h.caller}}, zone: h.zone, id: sid}, nil
}

// Sandbox is a place where commands run.
type Sandbox struct {
	hub  access
	zone bus.Zone
	id   bus.SandboxID
}

// ID is the sandbox's name.
func (s *Sandbox) ID() string { return string(s.id) }

// Info is what the hub knows of the sandbox now. Errors: ErrUnknownSandbox.
func (s *Sandbox) Info(ctx context.Context) (SandboxInfo, error) {
	d, err := s.hub.directory(ctx)
	if err != nil {
		return SandboxInfo{}, err
	}
	p, err := d.Lookup(ctx, s.zone, s.id)
	if errors.Is(err, ErrUnknownSandbox) {
		return SandboxInfo{}, &SandboxError{Zone: string(s.zone), ID: string(s.id), Err: ErrUnknownSandbox}
	}
	return p, err
}

// locate returns the worker instance to address.
func (s *Sandbox) locate(ctx context.Context) (bus.Target, error) {
	h, at := s.hub, address{s.zone, s.id}
	h.mu.Lock()
	t, ok := h.located[at]
	h.mu.Unlock()
	if ok {
		return t, nil
	}
	p, err := s.Info(ctx)
	if err != nil {
		return bus.Target{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.located[at] = p.Target()
	return p.Target(), nil
}

// moved forgets an instance that does not answer and looks for its successor; ok is false when there is none.
func (s *Sandbox) moved(ctx context.Context, old bus.Target) (t bus.Target, ok bool, err error) {
	h, at := s.hub, address{s.zone, s.id}
	h.mu.Lock()
	if h.located[at] == old {
		delete(h.located, at)
	}
	h.mu.Unlock()
	t, err = s.locate(ctx)
	return t, err == nil && t != old, err
}

// do runs a request at the sandbox's instance, and once more at its successor when the hub says that nobody answers
// there any more: then nothing has run. A lease has no successor: it ends with the instance.
func (s *Sandbox) do(ctx context.Context, request func(bus.Target) error) error {
	if s.hub.caller.lease != nil {
		return s.doLeased(request)
	}
	t, err := s.locate(ctx)
	if err != nil {
		return err
	}
	err = request(t)
	if errors.Is(err, bus.ErrNoResponders) {
		if err = s.confirm(ctx, t, request); errors.Is(err, bus.ErrNoResponders) {
			return &SandboxError{Zone: string(s.zone), ID: string(s.id), Err: ErrUnreachable}
		}
	}
	if lost(err) {
		return fmt.Errorf("%w: sandbox %s: %w", ErrLost, s.id, err)
	}
	return err
}

// doLeased is do under a lease.
func (s *Sandbox) doLeased(request func(bus.Target) error) error {
	l := s.hub.caller.lease
	err := l.noted(request(l.place.target()))
	if errors.Is(err, bus.ErrNoResponders) {
		if l.confirmGone(false); l.Cause() != nil {
			return l.Cause()
		}
		err = request(l.place.target())
	}
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		return &SandboxError{Zone: string(s.zone), ID: string(s.id), Err: ErrUnreachable}
	case lost(err):
		return fmt.Errorf("%w: sandbox %s: %w", ErrLost, s.id, err)
	}
	return err
}

const (
	// confirmFirst is the pause before the second try at an instance that nobody answers for, and that presence still
	// names; it doubles with each further one.
	confirmFirst = 20 * time.Millisecond
	// confirmLimit is how long presence may be believed against the hub's word: a worker whose hub server has died is
	// connected to another one by then.
	confirmLimit = 2 * time.Second
)

// confirm tries again when the hub says that nobody answers at an instance: at once at the successor that presence
// names, and a few times where it names the same one. A worker that is gone for good is none of these, mostly: its
// connection is closed, so that presence does not name it any more.
func (s *Sandbox) confirm(ctx context.Context, t bus.Target, request func(bus.Target) error) error {
	begin := time.Now()
	for pause := confirmFirst; ; pause *= 2 {
		next, moved, gone := s.moved(ctx, t)
		if gone != nil && !errors.Is(gone, ErrUnknownSandbox) {
			return gone
		}
		if gone != nil { // a server that lags behind may not know of it yet
			next = t
		}
		if !moved {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			}
		}
		switch err := request(next); {
		case !errors.Is(err, bus.ErrNoResponders):
			return err
		case gone != nil:
			return gone
		case time.Since(begin) > confirmLimit:
			return err
		}
		t = next
	}
}

// lost says that a request has left and nobody knows what became of it: its worker is silent, or the hub is gone.
func lost(err error) bool {
	var gone *HubGoneError
	return !errors.Is(err, ErrLost) && !errors.Is(err, bus.ErrPublish) && (errors.Is(err, bus.ErrPeerSilent) || errors.As(err, &gone))
}
