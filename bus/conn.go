package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Config says how to reach a hub.
type Config struct {
	// URL is the hub's address, such as nats://127.0.0.1:4222, tls://hub:4222 or wss://hub:443; several are separated by
	// commas. Must not be empty, unless Dial is set. A proxy that HTTPS_PROXY names is used, as NO_PROXY allows; never for
	// this machine's own addresses.
	URL string
	// Credential is what the hub is shown, and gives the identity from which all subjects follow. Must not be zero.
	Credential Credential
	// Renew gives a newer credential of the same identity: it is asked before the present one expires, and when the hub
	// refuses it. nil means that there is none, and that the connection ends with the credential.
	Renew func(context.Context) (Credential, error)
	// RefusalPatience is how long a connection that was accepted once goes on trying while the hub refuses it; zero means
	// 30 s. An expired or revoked credential ends it at once.
	RefusalPatience time.Duration
	// CA is a file with the certificates, in PEM form, of the authorities to trust for the hub's; empty means the
	// system's. With it, a connection without TLS is refused.
	CA string
	// ServerName is the name that the hub's certificate must have; empty means the URL's host.
	ServerName string
	// Name is shown in the hub's connection list; empty means the identity.
	Name string
	// ConnectTimeout is how long Connect goes on trying; zero means 5 s, below zero means until its context ends.
	ConnectTimeout time.Duration
	// Dial connects to the hub instead of TCP to URL's host, for a hub in this process; nil means TCP.
	Dial func() (net.Conn, error)
	// Logger gets connection events; nil discards them.
	Logger *slog.Logger
	// OnClosed is called once when the connection has ended for good without Close; nil means nobody.
	OnClosed func(error)
	// OnDenied is called when the hub refuses a subject to the identity, with an error that wraps ErrDenied; nil means
	// nobody. NATS says so behind the call that was refused.
	OnDenied func(error)
}

const (
	defaultConnectTimeout = 5 * time.Second
	dialTimeout           = 2 * time.Second
	drainTimeout          = 5 * time.Second
	// pendingMsgs and pendingBytes raise the limits of the subscriptions that carry streams: past them nats.go drops
	// messages of all ops of the connection. Credit bounds what one op can have in there.
	pendingMsgs  = 1 << 20
	pendingBytes = 1 << 29
)

// Conn is a connection to the hub that reconnects by itself for as long as it is not closed.
type Conn struct {
	nc       *nats.Conn
	id       Identity
	log      *slog.Logger
	dialer   *dialer
	closed   chan struct{}
	once     sync.Once
	endLife  context.CancelCauseFunc // ends what the minder is doing
	minder   sync.WaitGroup
	refused  chan error    // what the hub says of the credential, for the minder
	accepted chan struct{} // a reconnect, for the minder

	url string // the hub that was asked for, without any secret

	mu        sync.Mutex // guards the fields below
	cred      Credential
	why       error         // why we ended it ourselves
	connected chan struct{} // closed while connected; another one after each disconnect
	since     time.Time     // when the connection was made, or lost, last
	closing   bool
	again     map[any]func() // who wants to know of a reconnect, by whoever asked
	back      time.Time      // when the client has reconnected last; zero for never
}

// ConnectError says that no hub could be reached, or that it refused us.
type ConnectError struct {
	URL   string
	After time.Duration
	Err   error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("connect to hub %s: gave up after %s: %v", redacted(e.URL), e.After.Round(time.Millisecond), e.Err)
}

func (e *ConnectError) Unwrap() error { return e.Err }

// Connect reaches the hub, trying again until the configured time or ctx is over; a refused credential, or a certificate
// of the hub's that is not to be trusted, ends it at once. Errors: a setting that cannot be right; *[ConnectError], which wraps [ErrExpired], [ErrRevoked], [ErrForeign] or
// [ErrRefused] when it is about the credential.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Credential.IsZero() {
		return nil, errors.New("connect to hub: no credential")
	}
	if cfg.URL == "" && cfg.Dial == nil {
		return nil, errors.New("connect to hub: no URL")
	}
	limit := cfg.ConnectTimeout
	if limit == 0 {
		limit = defaultConnectTimeout
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if cfg.Credential.Identity().Role == RoleSite {
		return nil, errors.New("connect to hub: a site's credential is for a leaf node, not for a client")
	}
	c := &Conn{
		id: cfg.Credential.Identity(), log: cfg.Logger, cred: cfg.Credential, url: redacted(cfg.URL), since: time.Now(),
		refused: make(chan error, 1), accepted: make(chan struct{}, 1),
		closed: make(chan struct{}), connected: make(chan struct{}), again: map[any]func(){},
	}
	close(c.connected)
	if err := checkTimes(cfg.Credential, skew); err != nil {
		return nil, &ConnectError{URL: cfg.URL, Err: err}
	}
	transport, d, err := cfg.transport()
	if err != nil {
		return nil, err
	}
	c.dialer = d
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	c.endLife = end
	if err := c.dial(ctx, cfg, append(c.options(cfg), transport...)); err != nil {
		end(err)
		return nil, err
	}
	c.minder.Go(func() { c.mind(life, cfg) })
	return c, nil
}

// dial makes the first connection.
func (c *Conn) dial(ctx context.Context, cfg Config, opts []nats.Option) error {
	begin := time.Now()
	url := cfg.URL
	if cfg.Dial != nil {
		url = "nats://in-process" // without TLS, whatever the hub has on its listeners
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		nc, err := nats.Connect(url, opts...)
		if err == nil {
			c.nc = nc
			return nil
		}
		if isRefusal(err) {
			return &ConnectError{URL: cfg.URL, After: time.Since(begin), Err: c.whyRefused(ctx, cfg, err)}
		}
		if isUntrusted(err) {
			return &ConnectError{URL: cfg.URL, After: time.Since(begin), Err: err}
		}
		cfg.Logger.Debug("hub not reached", "url", redacted(cfg.URL), "error", err)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return &ConnectError{URL: cfg.URL, After: time.Since(begin), Err: err}
		case <-t.C:
		}
	}
}

func (c *Conn) options(cfg Config) []nats.Option {
	name := cfg.Name
	if name == "" {
		name = c.id.String()
	}
	opts := []nats.Option{
		nats.Name(name),
		nats.CustomInboxPrefix(c.id.inboxPrefix()),
		nats.Timeout(dialTimeout),
		nats.DrainTimeout(drainTimeout),
		// For ever: two equal authorization errors would close the client otherwise, and a hub that restarts refuses
		// while it starts.
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(200*time.Millisecond, time.Second),
		// A client-side buffer would flush stale frames late: publishing fails at once and recovery owns it.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(20 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.onDisconnect(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.onReconnect() }),
		nats.ClosedHandler(func(nc *nats.Conn) { c.onClosed(nc.LastError(), cfg.OnClosed) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { c.onError(sub, err, cfg.OnDenied) }),
	}
	if cfg.Credential.user != "" {
		opts = append(opts, nats.UserJWT(
			func() (string, error) { return c.credential().user, nil },
			func(nonce []byte) ([]byte, error) { return c.credential().sign(nonce) },
		))
	} else {
		opts = append(opts, nats.TokenHandler(func() string { return c.credential().token }))
	}
	if cfg.Dial != nil {
		opts = append(opts, nats.InProcessServer(inProcess(cfg.Dial)))
	}
	return opts
}

type inProcess func() (net.Conn, error)

func (f inProcess) InProcessConn() (net.Conn, error) { return f() }

func (c *Conn) onDisconnect(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.connected:
		c.connected = make(chan struct{})
		c.since = time.Now()
	default:
	}
	if !c.closing {
		c.log.Warn("hub connection lost", "error", err)
	}
}

func (c *Conn) onReconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.connected:
	default:
		close(c.connected)
		c.since = time.Now()
	}
	select {
	case c.accepted <- struct{}{}:
	default:
	}
	c.back = time.Now()
	c.log.Info("hub connection back")
	for _, f := range c.again {
		go f() // it may use the connection
	}
}

// onReconnected registers who is told of a reconnect, under a key; nil means nobody any more.
func (c *Conn) onReconnected(key any, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == nil {
		delete(c.again, key)
	} else {
		c.again[key] = f
	}
}

func (c *Conn) onClosed(err error, tell func(error)) {
	c.once.Do(func() {
		close(c.closed)
		c.endLife(ErrClosed)
	})
	c.mu.Lock()
	closing := c.closing
	if c.why != nil {
		err = c.why
	}
	c.mu.Unlock()
	if !closing && tell != nil {
		tell(err)
	}
}

func (c *Conn) onError(sub *nats.Subscription, err error, tell func(error)) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	if isRefusal(err) {
		c.onRefused(err)
		return
	}
	c.log.Error("hub reports", "error", err, "subject", subject)
	if errors.Is(err, nats.ErrPermissionViolation) && tell != nil {
		tell(fmt.Errorf("%w: %w", ErrDenied, err))
	}
}

// Identity is who we are for the hub.
func (c *Conn) Identity() Identity { return c.id }

// URL is the hub that we are connected to, without any secret.
func (c *Conn) URL() string { return c.nc.ConnectedUrlRedacted() }

// MaxMessage is how many bytes one message may have: the hub's payload limit less what a header may take.
func (c *Conn) MaxMessage() int { return int(c.nc.MaxPayload()) - 4<<10 }

// Done is closed when the connection has ended for good.
func (c *Conn) Done() <-chan struct{} { return c.closed }

// isConnected says whether the client is connected now.
func (c *Conn) isConnected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.connected:
		return true
	default:
		return false
	}
}

// backSince says for how long the client is connected again, and whether it was disconnected ever.
func (c *Conn) backSince() (d time.Duration, ever bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.back), !c.back.IsZero()
}

// awaitConnected returns when the client is connected. Errors: ErrClosed, the context's cause.
func (c *Conn) awaitConnected(ctx context.Context) error {
	c.mu.Lock()
	connected := c.connected
	c.mu.Unlock()
	select {
	case <-connected:
		return nil
	default:
	}
	select {
	case <-connected:
		return nil
	case <-c.closed:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrPublish, c.cause(ctx))
	}
}

func (c *Conn) publish(subject string, payload []byte) error {
	if err := c.nc.Publish(subject, payload); err != nil {
		return fmt.Errorf("%w: %w", ErrPublish, err)
	}
	return nil
}

func (c *Conn) publishRequest(subject, reply string, payload []byte) error {
	if err := c.nc.PublishRequest(subject, reply, payload); err != nil {
		return fmt.Errorf("%w: %w", ErrPublish, err)
	}
	return nil
}

func (c *Conn) subscribe(subject string, f nats.MsgHandler) (*nats.Subscription, error) {
	sub, err := c.nc.Subscribe(subject, f)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	if err := sub.SetPendingLimits(pendingMsgs, pendingBytes); err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	return sub, nil
}

func (c *Conn) subscribeChan(subject string, to chan *nats.Msg) (*nats.Subscription, error) {
	sub, err := c.nc.ChanSubscribe(subject, to)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	return sub, nil
}

// Flush returns when the hub has seen all that was published before.
func (c *Conn) Flush(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, drainTimeout)
		defer cancel()
	}
	return c.nc.FlushWithContext(ctx)
}

// Close sends what was published, delivers what has arrived, and ends the connection; it takes at most 5 s. It may
// be called twice.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	if err := c.nc.Drain(); err != nil { // not connected, or closed already
		c.nc.Close()
	}
	t := time.NewTimer(drainTimeout + time.Second)
	defer t.Stop()
	select { // Drain returns before it is done
	case <-c.closed:
	case <-t.C:
		c.nc.Close()
		<-c.closed
	}
	c.minder.Wait()
}
