package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/shellfiles"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

const (
	defaultCeiling = 30 * time.Minute // the contract's
	defaultAbort   = 10 * time.Second
	defaultConnect = 10 * time.Second
	// maxMessage bounds a message in either direction, in bytes: the contract's. maxText is what command and input may
	// have of it.
	maxMessage = 16 << 20
	maxText    = maxMessage - 64<<10
	pingEvery  = 20 * time.Second

	dialTimeout = 5 * time.Second
)

// redial is how long it is waited between two tries to connect.
var redial = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 2 * time.Second}

// Config says which sandbox of which relay.
type Config struct {
	Addr    string // of the relay, host:port; must not be empty
	Sandbox string // its id; must not be empty
	Token   string // what the relay lets us in for; must not be empty
	// TLS is the client's side of TLS; nil means none, which an address off the loopback refuses.
	TLS *tls.Config
	// InsecureNoTLS allows an address off the loopback without TLS: token and output can be read on the way.
	InsecureNoTLS bool
	// FastTier is what the relay's workers have: transport.FastShell behind "sandbus gateway". Empty means none.
	FastTier transport.FastTier
	// Ceiling ends a command that names no timeout; zero means 30 min, below zero none.
	Ceiling time.Duration
	// AbortWindow is how long an abort may take to be confirmed; zero means 10 s.
	AbortWindow time.Duration
	// ConnectTimeout is how long a command waits for a connection to the relay; zero means 10 s.
	ConnectTimeout time.Duration
}

// Transport is a sandbox at a relay.
type Transport struct {
	cfg    Config
	conn   *grpc.ClientConn
	client sandboxv1.SandboxExecClient
	life   context.Context //nolint:containedctx // the transport's own life, ended by Close
	end    context.CancelCauseFunc

	mu      sync.Mutex // guards the fields below
	closed  bool
	failed  chan struct{} // closed by the next try to connect that fails
	failure error         // why the latest one did
	calls   sync.WaitGroup

	files *shellfiles.Files
}

var _ transport.Transport = (*Transport)(nil)

// New checks a configuration; it does not connect. Errors name the setting and what would be right.
func New(cfg Config) (*Transport, error) {
	host, _, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("relay address %.256q: want host:port", cfg.Addr)
	}
	if _, err := bus.ParseSandboxID(cfg.Sandbox); err != nil {
		return nil, err
	}
	if cfg.Token == "" {
		return nil, errors.New("relay: no token: every relay would refuse")
	}
	if ip := net.ParseIP(host); cfg.TLS == nil && !cfg.InsecureNoTLS && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("relay %s: not on the loopback, and without TLS the token could be read on the way", cfg.Addr)
	}
	if cfg.FastTier == "" {
		cfg.FastTier = transport.FastNone
	}
	for value, zero := range map[*time.Duration]time.Duration{
		&cfg.Ceiling: defaultCeiling, &cfg.AbortWindow: defaultAbort, &cfg.ConnectTimeout: defaultConnect,
	} {
		if *value == 0 {
			*value = zero
		}
	}
	if cfg.AbortWindow < 0 || cfg.ConnectTimeout < 0 || cfg.Ceiling > transport.MaxTimeout {
		return nil, fmt.Errorf("relay: abort window %s, connect timeout %s, ceiling %s: want zero or more, and a ceiling of at most %s",
			cfg.AbortWindow, cfg.ConnectTimeout, cfg.Ceiling, transport.MaxTimeout)
	}
	t := &Transport{cfg: cfg, failed: make(chan struct{})}
	t.life, t.end = context.WithCancelCause(context.Background())
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	t.conn, err = grpc.NewClient("passthrough:///"+cfg.Addr, grpc.WithTransportCredentials(&watched{creds, t.noteFailure}),
		grpc.WithContextDialer(t.dial), grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: dialTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingEvery}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", cfg.Addr, err)
	}
	t.client = sandboxv1.NewSandboxExecClient(t.conn)
	t.files = shellfiles.New(t)
	return t, nil
}

// Files are done in POSIX shell.
func (t *Transport) Files() transport.Files { return t.files }

// FastTier says what Config says: a relay does not tell.
func (t *Transport) FastTier() transport.FastTier { return t.cfg.FastTier }

// StopMechanism is the relay's abort.
func (t *Transport) StopMechanism() transport.StopMechanism { return transport.StopRemoteAbort }

// Streams says that output comes as it is printed.
func (t *Transport) Streams() bool { return true }

// Close aborts what runs, which fails with transport.ErrClosed, and ends the connection. It may be called twice.
func (t *Transport) Close() error {
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	t.mu.Unlock()
	t.end(transport.ErrClosed)
	t.calls.Wait()
	if closed {
		return nil
	}
	return t.conn.Close()
}

// enter counts a call; leave must be called.
func (t *Transport) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return transport.ErrClosed
	}
	t.calls.Add(1)
	return nil
}

func (t *Transport) authorize(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+t.cfg.Token)
}
