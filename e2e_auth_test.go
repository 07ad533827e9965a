package sandbus_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// operatorWorker runs a worker at a hub that trusts an operator and returns when it is known there; ended gets what Run
// returns.
func operatorWorker(t *testing.T, url string, cred bus.Credential, renew func(context.Context) (bus.Credential, error)) (w *workerd.Worker, ended chan error) {
	t.Helper()
	ready := make(chan struct{})
	w, err := workerd.New(workerd.Config{
		URL: url, Credential: cred, Renew: renew, Dir: t.TempDir(), StopGrace: 100 * time.Millisecond, Logger: bustest.Logger(t),
		OnReady: func() { close(ready) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended = make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- w.Run(ctx) })
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		wg.Wait()
	})
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err, "worker")
	}
	return w, ended
}

func operatorHarness(t *testing.T, url string, cred bus.Credential) *harnesslib.Hub {
	t.Helper()
	h, err := harnesslib.Connect(t.Context(), harnesslib.Config{URL: url, Token: cred.Token(), ConnectTimeout: time.Minute, Logger: bustest.Logger(t)})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

func identity(role bus.Role, name string) bus.Identity {
	return bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name}
}

// TestOperatorHub runs commands at a real server with the printed configuration: from registrar to harness.
func TestOperatorHub(t *testing.T) {
	o := bustest.StartOperator(t)
	operatorWorker(t, o.URL(), o.Issue(t, identity(bus.RoleSandbox, "box1"), 0), nil)
	// A creds file for one, a WebSocket for the other.
	operatorWorker(t, o.WebSocketURL(), o.Issue(t, bus.Identity{Role: bus.RoleSandbox, Zone: "eu", Name: "box2"}, 0), nil)

	h := operatorHarness(t, o.URL(), o.Issue(t, identity(bus.RoleHarness, "h1"), time.Hour))
	list, err := h.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	sb, err := h.Sandbox("box1")
	require.NoError(t, err)
	out, err := sb.Command("echo", "hello").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(out))

	limited := o.Issue(t, bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "h2", Zones: []bus.Zone{"eu", "us"}}, 0)
	path := filepath.Join(t.TempDir(), "h2.creds")
	require.NoError(t, limited.WriteFile(path, 0o600))
	eu, err := harnesslib.Connect(t.Context(), harnesslib.Config{URL: o.WebSocketURL(), Credentials: path, Zone: "eu", ConnectTimeout: time.Minute})
	require.NoError(t, err)
	defer eu.Close()
	sb, err = eu.Sandbox("box2")
	require.NoError(t, err)
	out, err = sb.ScriptCommand("echo from eu").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "from eu\n", string(out))
}

// TestC72RevokedWhileConnected ends a live worker by revoking its credential; others do not notice.
func TestC72RevokedWhileConnected(t *testing.T) {
	o := bustest.StartOperator(t)
	cred := o.Issue(t, identity(bus.RoleSandbox, "box1"), 0)
	_, ended := operatorWorker(t, o.URL(), cred, nil)
	_, otherEnded := operatorWorker(t, o.URL(), o.Issue(t, identity(bus.RoleSandbox, "box2"), 0), nil)
	h := operatorHarness(t, o.URL(), o.Issue(t, identity(bus.RoleHarness, "h1"), 0))
	sb, err := h.Sandbox("box2")
	require.NoError(t, err)
	other := sb.Command("sh", "-c", "read line; echo $line")
	stdin, in := io.Pipe()
	other.Stdin = stdin
	var out bytes.Buffer
	other.Stdout = &out
	require.NoError(t, other.Start(t.Context()))

	admin := o.Admin(t)
	found, err := o.Keys.Find(auth.DefaultTenant, bus.RoleSandbox, bus.DefaultZone, "box1")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, o.Keys.Push(t.Context(), admin, auth.DefaultTenant), "a push beforehand changes nothing")
	select {
	case err := <-ended:
		t.Fatalf("a push ended the worker: %v", err)
	default:
	}
	closed := watchClose(t, o, cred)
	begin := time.Now()
	require.NoError(t, o.Keys.Revoke(t.Context(), admin, auth.DefaultTenant, found[0].Key))
	err = <-ended
	require.ErrorIs(t, err, bus.ErrRevoked)
	t.Logf("a live connection ended %s after the revocation was asked for", (<-closed).Sub(begin).Round(100*time.Microsecond))

	// It does not come back: not with a new connection, not over WebSocket, not after the hub was started anew from the
	// configuration that was printed before.
	for _, url := range []string{o.URL(), o.WebSocketURL()} {
		_, err = bus.Connect(t.Context(), bus.Config{URL: url, Credential: cred, ConnectTimeout: time.Minute})
		require.ErrorIs(t, err, bus.ErrRefused)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err = bus.Connect(t.Context(), bus.Config{URL: o.URL(), Credential: cred, ConnectTimeout: time.Minute})
	require.ErrorIs(t, err, bus.ErrRevoked)

	_, err = in.Write([]byte("undisturbed\n"))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, other.Wait())
	require.Equal(t, "undisturbed\n", out.String())
	select {
	case err := <-otherEnded:
		t.Fatalf("another's worker ended: %v", err)
	default:
	}
	// A new credential of the same identity is good.
	again := o.Connect(t, o.Issue(t, identity(bus.RoleSandbox, "box1"), 0))
	again.Close()
}

// watchClose tells when the holder of a credential was disconnected, as a client of its own sees it.
func watchClose(t *testing.T, o *bustest.Operator, cred bus.Credential) <-chan time.Time {
	t.Helper()
	closed := make(chan time.Time, 1)
	cfg := o.Config(t, cred)
	cfg.OnClosed = func(error) { closed <- time.Now() }
	c, err := bus.Connect(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return closed
}

// TestC72RevocationOutlivesTheHub starts the hub anew from the file that was printed before the revocation.
func TestC72RevocationOutlivesTheHub(t *testing.T) {
	o := &bustest.Operator{Keys: bustest.NewKeys(t)}
	store := t.TempDir()
	file := o.WriteConfig(t, auth.ServerConfig{Listen: "127.0.0.1:-1", StoreDir: store})
	o.Server = bustest.StartServer(t, file)
	cred := o.Issue(t, identity(bus.RoleSandbox, "box1"), 0)
	o.Connect(t, cred).Close()
	d, _ := cred.Details()
	require.NoError(t, o.Keys.Revoke(t.Context(), o.Admin(t), auth.DefaultTenant, d.Key))
	o.Stop()
	o.Server = bustest.StartServer(t, file)
	_, err := bus.Connect(t.Context(), o.Config(t, cred))
	require.ErrorIs(t, err, bus.ErrRevoked)
	o.Connect(t, o.Issue(t, identity(bus.RoleSandbox, "box1"), 0)).Close()
}

// TestRenewalKeepsExecs lets a worker's and a harness's credentials end while a command runs.
func TestRenewalKeepsExecs(t *testing.T) {
	t.Parallel()
	o := bustest.StartOperator(t)
	dir := t.TempDir()
	store := func(name string, role bus.Role, ttl time.Duration) (string, bus.Credential) {
		cred := o.Issue(t, identity(role, name), ttl)
		path := filepath.Join(dir, name)
		require.NoError(t, cred.WriteFile(path+".new", 0o600))
		require.NoError(t, os.Rename(path+".new", path))
		return path, cred
	}
	const life = 12 * time.Second // whoever is slower to connect than that fails here
	wPath, wCred := store("box1", bus.RoleSandbox, life)
	hPath, hCred := store("h1", bus.RoleHarness, life)
	w, ended := operatorWorker(t, o.URL(), wCred, func(context.Context) (bus.Credential, error) { return bus.LoadCredential(wPath) })
	h, err := harnesslib.Connect(t.Context(), harnesslib.Config{URL: o.URL(), Credentials: hPath, ConnectTimeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	store("box1", bus.RoleSandbox, time.Hour)
	store("h1", bus.RoleHarness, time.Hour)

	sb, err := h.Sandbox("box1")
	require.NoError(t, err)
	stop := filepath.Join(dir, "stop")
	var out bytes.Buffer
	cmd := sb.Command("sh", "-c", `i=0; until [ -e "$1" ]; do i=$((i+1)); echo $i; sleep 0.05; done`, "sh", stop)
	cmd.Stdout = &out
	require.NoError(t, cmd.Start(t.Context()))
	end := wCred.Expires()
	if hCred.Expires().After(end) {
		end = hCred.Expires()
	}
	<-time.After(time.Until(end.Add(time.Second)))

	quick, err := sb.ScriptCommand("echo still here").Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "still here\n", string(quick))
	info, err := sb.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, w.Target().Instance, info.Instance)
	require.NoError(t, os.WriteFile(stop, nil, 0o600))
	require.NoError(t, cmd.Wait())
	lines := strings.Fields(out.String())
	require.NotEmpty(t, lines)
	for i, line := range lines {
		require.Equal(t, strconv.Itoa(i+1), line)
	}
	select {
	case err := <-ended:
		t.Fatalf("the worker ended: %v", err)
	default:
	}
}

// TestExpiredWithoutRenewal ends a worker whose credential ends.
func TestExpiredWithoutRenewal(t *testing.T) {
	t.Parallel()
	o := bustest.StartOperator(t)
	cred := o.Issue(t, identity(bus.RoleSandbox, "box1"), 3*time.Second)
	w, err := workerd.New(workerd.Config{URL: o.URL(), Credential: cred, Dir: t.TempDir(), Logger: bustest.Logger(t)})
	require.NoError(t, err)
	err = w.Run(t.Context())
	require.ErrorIs(t, err, bus.ErrExpired)
	require.NotContains(t, err.Error(), "\n")
	<-time.After(time.Until(cred.Expires().Add(time.Second))) // in its last second a hub may still take it
	_, err = bus.Connect(t.Context(), bus.Config{URL: o.URL(), Credential: cred, ConnectTimeout: time.Minute})
	require.ErrorIs(t, err, bus.ErrExpired)
}
