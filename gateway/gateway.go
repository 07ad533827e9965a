package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

const (
	// maxMessage bounds a gRPC message in either direction, in bytes: the contract's.
	maxMessage = 16 << 20
	// maxChunk is how much output one Chunk carries, in bytes: the contract's.
	maxChunk = 32 << 10
	// heartbeatEvery is how often a worker beats: the contract's.
	heartbeatEvery = 15 * time.Second

	defaultGrace    = 10 * time.Second
	defaultRejoin   = 5 * time.Second
	defaultSilence  = 3 * heartbeatEvery
	defaultFastWait = 250 * time.Millisecond
	helloLimit      = 10 * time.Second
)

// Config says what a gateway serves.
type Config struct {
	// Hub is how to be a harness at the hub; its Zone is the one of all sandboxes here.
	Hub harnesslib.Config
	// WorkerBus is how to be a sandbox at the hub, for a worker that attaches. Nil means that no worker may.
	WorkerBus func(bus.SandboxID) (bus.Config, error)
	// Tokens are who is let in; must not be nil.
	Tokens *Tokens
	// TLS is the server's side of TLS; nil means none, which a listener off the loopback refuses.
	TLS *tls.Config
	// InsecureNoTLS allows a listener off the loopback without TLS: tokens and output can be read on the way.
	InsecureNoTLS bool
	// Grace is how long calls may go on when Serve is told to end; zero means 10 s.
	Grace time.Duration
	// Rejoin is how long a run waits for its request to come again when its caller's stream has broken, before it is
	// aborted; zero means 5 s.
	Rejoin time.Duration
	// WorkerSilence is how long an attached worker may send nothing; zero means 45 s, three heartbeats.
	WorkerSilence time.Duration
	// FastWait is how long a command waits for one of the fast tier's places before it gets a process of its own; zero
	// means 250 ms.
	FastWait time.Duration
	// NoNative has the shell answer also what the worker's native file operations could (cat FILE, test -r FILE and the
	// like): for sandboxes whose commands run under another uid than their worker.
	NoNative bool
	// Logger gets ids and sizes, never contents; nil discards.
	Logger *slog.Logger
}

// Gateway serves sandbox/v1 on the bus. Serve is called once.
type Gateway struct {
	sandboxv1.UnimplementedSandboxExecServer
	sandboxv1.UnimplementedSandboxWorkerServer

	cfg      Config
	runs     *runs
	lanes    lanes
	stopping chan struct{}  // closed when nothing new is accepted
	wg       sync.WaitGroup // runs, and the receiving ends of attached workers

	hub *harnesslib.Hub // from Serve on

	mu      sync.Mutex // guards the field below
	workers map[bus.SandboxID]*worker
}

// New checks a configuration.
func New(cfg Config) (*Gateway, error) {
	if cfg.Tokens == nil {
		return nil, errors.New("gateway: no tokens: nobody could be let in")
	}
	for name, d := range map[string]time.Duration{
		"grace": cfg.Grace, "rejoin": cfg.Rejoin, "worker silence": cfg.WorkerSilence, "fast wait": cfg.FastWait,
	} {
		if d < 0 {
			return nil, fmt.Errorf("gateway: %s %s: want zero or more", name, d)
		}
	}
	setDefault(&cfg.Grace, defaultGrace)
	setDefault(&cfg.Rejoin, defaultRejoin)
	setDefault(&cfg.WorkerSilence, defaultSilence)
	setDefault(&cfg.FastWait, defaultFastWait)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gateway{
		cfg: cfg, runs: newRuns(), lanes: lanes{open: map[bus.SandboxID]*lane{}},
		stopping: make(chan struct{}), workers: map[bus.SandboxID]*worker{},
	}, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// ErrNoTLS says that a listener off the loopback would carry tokens in the clear.
var ErrNoTLS = errors.New("not on the loopback, and without TLS tokens could be read on the way")

// CheckListener says whether Serve would take a listener. Errors: ErrNoTLS.
func (g *Gateway) CheckListener(ln net.Listener) error {
	if g.cfg.TLS == nil && !g.cfg.InsecureNoTLS && !onLoopback(ln.Addr()) {
		return fmt.Errorf("gateway on %s: %w", ln.Addr(), ErrNoTLS)
	}
	return nil
}

// Serve serves until ctx ends, lets calls go on for the grace, and closes the listener. Errors: ErrNoTLS; the hub cannot
// be reached or refuses the credential (*bus.ConnectError); the listener's.
func (g *Gateway) Serve(ctx context.Context, ln net.Listener) error {
	if err := g.CheckListener(ln); err != nil {
		return errors.Join(err, ln.Close())
	}
	hub, err := harnesslib.Connect(ctx, g.cfg.Hub)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	defer hub.Close()
	g.hub = hub
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: heartbeatEvery, Timeout: heartbeatEvery}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: heartbeatEvery / 3, PermitWithoutStream: true}),
	}
	if g.cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(g.cfg.TLS)))
	}
	srv := grpc.NewServer(opts...)
	sandboxv1.RegisterSandboxExecServer(srv, g)
	sandboxv1.RegisterSandboxWorkerServer(srv, g)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = nil
	}
	g.stop(srv)
	return err
}

// stop lets runs and attached workers end within the grace. What still runs then is left to its worker: whoever repeats
// the request at another replica finds it.
func (g *Gateway) stop(srv *grpc.Server) {
	close(g.stopping)
	ended := make(chan struct{})
	go func() {
		srv.GracefulStop() // calls under way go on
		close(ended)
	}()
	grace := time.NewTimer(g.cfg.Grace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
	}
	g.hub.Close() // the calls that are left fail
	srv.Stop()
	<-ended
	g.wg.Wait()
}

func onLoopback(a net.Addr) bool {
	if a.Network() == "unix" || a.Network() == "bufconn" {
		return true
	}
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
