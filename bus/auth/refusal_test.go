package auth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
)

// TestRefusalsSayWhich shows wrong credentials to both kinds of hub: each ends at once, with one line that says why.
func TestRefusalsSayWhich(t *testing.T) {
	o := bustest.StartOperator(t)
	embedded, err := hub.Start(t.Context(), hub.Config{})
	require.NoError(t, err)
	defer embedded.Stop()
	foreign, err := bustest.NewKeys(t).Issue(auth.DefaultTenant, sandbox("box1"), 0)
	require.NoError(t, err)
	token, err := bus.NewMinter().Issue(sandbox("box1"))
	require.NoError(t, err)
	revoked := o.Issue(t, sandbox("box1"), 0)
	d, _ := revoked.Details()
	require.NoError(t, o.Keys.Revoke(t.Context(), o.Admin(t), auth.DefaultTenant, d.Key))
	ends := o.Issue(t, sandbox("box1"), time.Hour)
	d, _ = ends.Details()
	require.NoError(t, o.Keys.Revoke(t.Context(), o.Admin(t), auth.DefaultTenant, d.Key))
	expired := o.Issue(t, sandbox("box1"), time.Second)
	<-time.After(time.Until(expired.Expires().Add(time.Second)))
	for name, c := range map[string]struct {
		url  string
		cred bus.Credential
		is   error
		says string
	}{
		"another operator's":           {o.URL(), foreign, bus.ErrForeign, "the hub trusts " + bus.OperatorMark(o.Keys.Operator())},
		"another operator's, over ws":  {o.WebSocketURL(), foreign, bus.ErrRefused, "revoked, or the hub does not trust its issuer"},
		"a token at an operator's hub": {o.URL(), token, bus.ErrForeign, "wants an operator's credential"},
		"revoked":                      {o.URL(), revoked, bus.ErrRevoked, "revoked"},
		"revoked, with an end":         {o.URL(), ends, bus.ErrRevoked, "the hub's clock is ahead of ours"},
		"expired":                      {o.URL(), expired, bus.ErrExpired, expired.Expires().UTC().Format(time.RFC3339)},
		"expired, over ws":             {o.WebSocketURL(), expired, bus.ErrExpired, "expired"},
		"an operator's at an embedded": {embedded.URL(), foreign, bus.ErrForeign, "only tokens of its own"},
		"another hub's token":          {embedded.URL(), token, bus.ErrForeign, "the hub did not issue it"},
	} {
		_, err := bus.Connect(t.Context(), bus.Config{URL: c.url, Credential: c.cred, ConnectTimeout: -1, Logger: bustest.Logger(t)})
		require.ErrorIs(t, err, c.is, name)
		require.ErrorIs(t, err, bus.ErrRefused, name)
		require.ErrorContains(t, err, c.says, name)
		require.NotContains(t, err.Error(), "\n", name)
		require.NotContains(t, err.Error(), c.cred.Token(), name)
	}
	// Long expired: no hub is needed to know it, and none is waited for.
	old := oldCredential(t, o.Keys)
	_, err = bus.Connect(t.Context(), bus.Config{URL: "nats://127.0.0.1:1", Credential: old, ConnectTimeout: -1})
	require.ErrorIs(t, err, bus.ErrExpired)
}

// at runs f with the clock of another host.
func at(t *testing.T, clock time.Time, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(clock)) //nolint:forbidigo // sets the bubble's clock
		f(t)
	})
}

func oldCredential(t *testing.T, keys *auth.Keys) (cred bus.Credential) {
	t.Helper()
	at(t, time.Now().Add(-time.Hour), func(t *testing.T) {
		var err error
		cred, err = keys.Issue(auth.DefaultTenant, sandbox("box1"), time.Minute)
		require.NoError(t, err)
	})
	return cred
}

// TestClocksTwoMinutesApart issues and revokes on a host whose clock is ahead of the hub's, or behind it.
func TestClocksTwoMinutesApart(t *testing.T) {
	for name, skew := range map[string]time.Duration{"ahead": 2 * time.Minute, "behind": -2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			o := bustest.StartOperator(t)
			clock := time.Now().Add(skew)
			var cred bus.Credential
			at(t, clock, func(t *testing.T) {
				var err error
				cred, err = o.Keys.Issue(auth.DefaultTenant, sandbox("box1"), 5*time.Minute)
				require.NoError(t, err)
			})
			d, _ := cred.Details()
			require.WithinDuration(t, clock, d.Issued, time.Minute)
			closed := make(chan error, 1)
			cfg := o.Config(t, cred)
			cfg.OnClosed = func(err error) { closed <- err }
			c, err := bus.Connect(t.Context(), cfg)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, o.Keys.Revoke(t.Context(), o.Admin(t), auth.DefaultTenant, d.Key))
			require.ErrorIs(t, <-closed, bus.ErrRevoked)
			_, err = bus.Connect(t.Context(), o.Config(t, cred))
			require.ErrorIs(t, err, bus.ErrRevoked)
		})
	}
}

// restarts is a hub that comes back under its address: on a loopback address that no other test uses.
func restarts(t *testing.T, o *bustest.Operator) string {
	t.Helper()
	host := fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()>>16%200, os.Getpid()>>8%256, 1+os.Getpid()%250)
	o.File = o.WriteConfig(t, auth.ServerConfig{Listen: host + ":-1", StoreDir: t.TempDir()})
	o.Server = bustest.StartServer(t, o.File)
	u, err := url.Parse(o.URL())
	require.NoError(t, err)
	text, err := os.ReadFile(o.File)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(o.File, []byte(strings.Replace(string(text), host+":-1", u.Host, 1)), 0o600))
	return u.Host
}

// TestRefusedWhileTheHubRestarts refuses a live connection for a while: it goes on when the hub takes it again, and ends
// with the reason when it does not.
func TestRefusedWhileTheHubRestarts(t *testing.T) {
	o := &bustest.Operator{Keys: bustest.NewKeys(t)}
	address := restarts(t, o)
	refused := make(chan struct{}, 1)
	closed := make(chan error, 1)
	cfg := o.Config(t, o.Issue(t, sandbox("box1"), 0))
	cfg.Logger = slog.New(&listener{text: "hub refuses us", heard: refused})
	cfg.RefusalPatience = time.Hour
	cfg.OnClosed = func(err error) { closed <- err }
	c, err := bus.Connect(t.Context(), cfg)
	require.NoError(t, err)
	defer c.Close()
	o.Stop()
	other, err := hub.Start(t.Context(), hub.Config{Listen: address, Logger: bustest.Logger(t)})
	require.NoError(t, err)
	<-refused
	other.Stop()
	o.Server = bustest.StartServer(t, o.File)
	require.Eventually(t, func() bool { return c.Flush(t.Context()) == nil }, patience, 10*time.Millisecond)
	require.Empty(t, closed)

	// Again, and now nobody has the patience.
	cfg.RefusalPatience = time.Millisecond
	cfg.OnClosed = func(err error) { closed <- err }
	second, err := bus.Connect(t.Context(), cfg)
	require.NoError(t, err)
	defer second.Close()
	o.Stop()
	other, err = hub.Start(t.Context(), hub.Config{Listen: address, Logger: bustest.Logger(t)})
	require.NoError(t, err)
	defer other.Stop()
	require.ErrorIs(t, <-closed, bus.ErrForeign)
}

// listener is a log that waits for a message.
type listener struct {
	text  string
	heard chan struct{}
}

func (l *listener) Enabled(context.Context, slog.Level) bool { return true }

func (l *listener) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.text) {
		select {
		case l.heard <- struct{}{}:
		default:
		}
	}
	return nil
}

func (l *listener) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *listener) WithGroup(string) slog.Handler      { return l }

// TestRenewal asks the source of credentials in time, and takes only what is the same identity's.
func TestRenewal(t *testing.T) {
	o := bustest.StartOperator(t)
	for name, c := range map[string]struct {
		next func() (bus.Credential, error)
		is   error
	}{
		"none":            {func() (bus.Credential, error) { return bus.Credential{}, errors.New("the disk is gone") }, bus.ErrExpired},
		"somebody else's": {func() (bus.Credential, error) { return o.Keys.Issue(auth.DefaultTenant, sandbox("box2"), 0) }, bus.ErrExpired},
		"a newer one":     {func() (bus.Credential, error) { return o.Keys.Issue(auth.DefaultTenant, sandbox("box1"), time.Hour) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed, asked := make(chan error, 1), make(chan struct{}, 1)
			cred := o.Issue(t, sandbox("box1"), 10*time.Second) // whoever is slower to connect than that fails here
			cfg := o.Config(t, cred)
			cfg.OnClosed = func(err error) { closed <- err }
			cfg.Renew = func(context.Context) (bus.Credential, error) {
				select {
				case asked <- struct{}{}:
				default:
				}
				return c.next()
			}
			conn, err := bus.Connect(t.Context(), cfg)
			require.NoError(t, err)
			defer conn.Close()
			<-asked
			if c.is != nil {
				require.ErrorIs(t, <-closed, c.is)
				return
			}
			<-time.After(time.Until(cred.Expires().Add(2 * time.Second)))
			require.Empty(t, closed)
			require.Eventually(t, func() bool { return conn.Flush(t.Context()) == nil }, patience, 10*time.Millisecond)
		})
	}
}

// TestCredentialFromACommand reads what a program prints.
func TestCredentialFromACommand(t *testing.T) {
	keys := bustest.NewKeys(t)
	cred, err := keys.Issue(auth.DefaultTenant, sandbox("box1"), 0)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "creds")
	require.NoError(t, cred.WriteFile(path, 0o600))
	got, err := bus.CommandCredential([]string{"cat", path}, bus.RunCommand)(t.Context())
	require.NoError(t, err)
	require.Equal(t, cred.Token(), got.Token())
	for want, argv := range map[string][]string{
		"it is empty":                {},
		"credential command nowhere": {"nowhere"},
		"exit status 1":              {"false"},
		"not a sandbus credential":   {"echo", "hello"},
		"credential command head":    {"head", "-c", "1000000", "/dev/zero"},
	} {
		_, err := bus.CommandCredential(argv, bus.RunCommand)(t.Context())
		require.ErrorContains(t, err, want)
	}
}
