package auth_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/hub"
)

// The attacker is a sandbox with a credential of its own. Its neighbours are another sandbox of its zone and one of
// another zone; h1 is a harness.
const (
	attacker  = "mallory"
	neighbour = "victim"
	elsewhere = "eu"
	patience  = 60 * time.Second
)

// arena is a real hub with a witness, who may do everything and sees everything that is published in the account.
type arena struct {
	*bustest.Operator
	witness *nats.Conn
	seen    *nats.Subscription
	marks   atomic.Int64
}

func newArena(t *testing.T) *arena {
	t.Helper()
	keys := bustest.NewKeys(t)
	signer := addSigner(t, keys)
	a := &arena{Operator: bustest.StartOperatorOf(t, keys)}
	a.witness = dial(t, a.URL(), nats.Options{}, almighty(t, keys, signer)...)
	var err error
	a.seen, err = a.witness.SubscribeSync(">")
	require.NoError(t, err)
	require.NoError(t, a.seen.SetPendingLimits(-1, -1))
	require.NoError(t, a.witness.Flush())
	return a
}

// addSigner adds a signing key without limits to the tenant's account: sandbus makes none.
func addSigner(t *testing.T, keys *auth.Keys) nkeys.KeyPair {
	t.Helper()
	path := filepath.Join(keys.Dir(), "tenants", "main", "account.jwt")
	claims, err := jwt.DecodeAccountClaims(account(t, keys))
	require.NoError(t, err)
	signer, err := nkeys.CreateAccount()
	require.NoError(t, err)
	pub, err := signer.PublicKey()
	require.NoError(t, err)
	claims.SigningKeys.Add(pub)
	seed, err := os.ReadFile(filepath.Join(keys.Dir(), "operator.nk"))
	require.NoError(t, err)
	op, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	require.NoError(t, err)
	text, err := claims.Encode(op)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return signer
}

func almighty(t *testing.T, keys *auth.Keys, signer nkeys.KeyPair) []nats.Option {
	t.Helper()
	claims, err := jwt.DecodeAccountClaims(account(t, keys))
	require.NoError(t, err)
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	pub, err := user.PublicKey()
	require.NoError(t, err)
	uc := jwt.NewUserClaims(pub)
	uc.Name, uc.IssuerAccount = "witness", claims.Subject
	text, err := uc.Encode(signer)
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	return []nats.Option{nats.UserJWTAndSeed(text, string(seed))}
}

// shown is how a raw NATS client shows a credential: no code of ours stands between the attacker and the hub.
func shown(t *testing.T, cred bus.Credential) nats.Option {
	t.Helper()
	parts := strings.Split(cred.Token(), ".")
	if parts[0] == "sbt1" {
		return nats.Token(cred.Token())
	}
	require.Equal(t, "sbt2", parts[0])
	return nats.UserJWTAndSeed(strings.Join(parts[1:4], "."), parts[4])
}

func dial(t *testing.T, url string, base nats.Options, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append([]nats.Option{
		nats.Timeout(patience), nats.NoReconnect(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
		func(o *nats.Options) error {
			if base.CustomDialer != nil {
				o.CustomDialer = base.CustomDialer
			}
			if base.AsyncErrorCB != nil {
				o.AsyncErrorCB = base.AsyncErrorCB
			}
			return nil
		},
	}, opts...)
	deadline := time.Now().Add(patience)
	for {
		nc, err := nats.Connect(url, opts...)
		if err == nil {
			t.Cleanup(nc.Close)
			return nc
		}
		// On a busy machine a hub may give up on a client that takes long to show its credential.
		require.NotErrorIs(t, err, nats.ErrAuthorization)
		require.True(t, time.Now().Before(deadline), "not connected: %v", err)
	}
}

// client is an attacker's connection with what the hub says to it.
type client struct {
	*nats.Conn
	said chan error
}

func (a *arena) client(t *testing.T, url string, opts ...nats.Option) *client {
	t.Helper()
	return newClient(t, url, opts...)
}

func newClient(t *testing.T, url string, opts ...nats.Option) *client {
	t.Helper()
	c := &client{said: make(chan error, 1024)} // as many as a table has attempts, and more
	c.Conn = dial(t, url, nats.Options{AsyncErrorCB: func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case c.said <- err:
		default:
		}
	}}, opts...)
	return c
}

// refused waits for the server's no to a subject.
func (c *client) refused(t *testing.T, subject string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case err := <-c.said:
			if strings.Contains(strings.ToLower(err.Error()), strings.ToLower(`"`+subject+`"`)) {
				require.ErrorIs(t, err, nats.ErrPermissionViolation)
				return
			}
		case <-deadline:
			require.Fail(t, "nobody refused it", subject)
		}
	}
}

// mark is a text that no other message has.
func (a *arena) mark() string {
	return "attempt-" + strconv.FormatInt(a.marks.Add(1), 10)
}

// arrived says whether a message with a mark came to the witness before the sentinel, which the attacker published after
// it and may publish: messages of one client keep their order.
func (a *arena) arrived(t *testing.T, mark, sentinel string) bool {
	t.Helper()
	found := false
	for {
		m, err := a.seen.NextMsg(patience)
		require.NoError(t, err, "the sentinel never came")
		if string(m.Data) == sentinel {
			return found
		}
		found = found || string(m.Data) == mark
	}
}

// site starts a server at a site whose leaf connection has a credential; it returns when the hub has the leaf, or at once
// with wait false.
func (a *arena) site(t *testing.T, cred bus.Credential, operator, wait bool) *hub.Server {
	t.Helper()
	dir := t.TempDir()
	creds := filepath.Join(dir, "site.creds")
	require.NoError(t, cred.WriteFile(creds, 0o600))
	leaf, err := a.LeafURL()
	require.NoError(t, err)
	text := "listen: \"127.0.0.1:-1\"\nserver_name: site-" + cred.Identity().Name + "\n"
	remote := `url: "` + leaf + `", credentials: "` + creds + `"`
	if operator { // the site's server checks credentials too, and its clients are those of the operator
		claims, err := jwt.DecodeAccountClaims(account(t, a.Keys))
		require.NoError(t, err)
		op, err := os.ReadFile(filepath.Join(a.Keys.Dir(), "operator.jwt"))
		require.NoError(t, err)
		system, err := os.ReadFile(filepath.Join(a.Keys.Dir(), "system", "account.jwt"))
		require.NoError(t, err)
		sys, err := jwt.DecodeAccountClaims(strings.TrimSpace(string(system)))
		require.NoError(t, err)
		text += "operator: " + strings.TrimSpace(string(op)) + "\nsystem_account: " + sys.Subject + "\nresolver: MEMORY\nresolver_preload {\n" +
			claims.Subject + ": " + account(t, a.Keys) + "\n" + sys.Subject + ": " + strings.TrimSpace(string(system)) + "\n}\n"
		remote += `, account: "` + claims.Subject + `"`
	}
	text += "leafnodes { remotes: [ { " + remote + " } ] }\n"
	file := filepath.Join(dir, "site.conf")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	srv := bustest.StartServer(t, file)
	if wait {
		require.Eventually(t, func() bool { return a.Leafs() > 0 && srv.Leafs() > 0 }, patience, 10*time.Millisecond, "the leaf never connected")
	}
	return srv
}

type inProcess func() (net.Conn, error)

func (f inProcess) InProcessConn() (net.Conn, error) { return f() }
