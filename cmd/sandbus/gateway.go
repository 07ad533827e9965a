package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/harnesslib"
)

// gatewayFlags are the flags of the gateway.
type gatewayFlags struct {
	listen, tokens, cert, key, sandboxCreds string
	insecure, noNative                      bool
	grace                                   time.Duration
}

func newGateway(a *app) *cobra.Command {
	var flags gatewayFlags
	c := &cobra.Command{
		Use:   "gateway --tokens FILE [--listen ADDR]",
		Short: "Serve the sandbox/v1 gRPC relay contract on the bus until Ctrl-C",
		Long: `gateway lets harnesses and workers that speak the gRPC contract sandbox/v1 use the bus without a change of theirs.

A harness that calls SandboxExec.Exec runs its command in the sandbox of that id at the hub: on a shell that is already
there when the output is wanted at the end, as a process of its own when it streams. A worker that calls
SandboxWorker.Attach appears in "sandbus ps" like any other, and every harness of the bus can run commands in it.

Who may do what stands in the file of --tokens, which not everybody may read (mode 0600), one right a line:

  sandbox ID TOKEN              a worker with TOKEN may attach as sandbox ID
  harness NAME TOKEN [ID...]    a harness with TOKEN may use these sandboxes; none named means all

A token has at least 16 bytes; "openssl rand -hex 32" makes a good one. A changed file counts at once; while it cannot
be read, nobody is let in.

Off the loopback it wants TLS (--tls-cert, --tls-key). At the hub of this machine it makes the credentials of attached
workers itself; at another one it is a harness by --creds, and finds those of workers in --sandbox-creds as ID.creds.
Several gateways may run at one hub.`,
		Example: `  sandbus gateway --tokens tokens
  sandbus gateway --hub nats://hub:4222 --creds harness.creds --sandbox-creds /etc/sandbus/sandboxes \
      --listen :8443 --tls-cert cert.pem --tls-key key.pem --tokens /etc/sandbus/tokens`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.serveGateway(c, flags) },
	}
	f := c.Flags()
	f.StringVar(&flags.listen, "listen", "127.0.0.1:8443", "`address` to listen on, host:port; port 0 means a free one, which is printed")
	f.StringVar(&flags.tokens, "tokens", "", "`file` with the tokens; needed")
	f.StringVar(&flags.cert, "tls-cert", "", "PEM `file` with the certificate and its chain")
	f.StringVar(&flags.key, "tls-key", "", "PEM `file` with the certificate's key")
	f.StringVar(&flags.sandboxCreds, "sandbox-creds", "", "`directory` with the credentials of attached workers, one ID.creds each")
	f.BoolVar(&flags.insecure, "insecure-no-tls", false, "listen off the loopback without TLS: tokens and output can be read on the way")
	f.BoolVar(&flags.noNative, "no-native", false,
		"have the shell answer also \"cat FILE\" and \"test -r FILE\", which file operations answer otherwise")
	f.DurationVar(&flags.grace, "grace", 10*time.Second, "how long commands may go on when it is told to end")
	return c
}

func (a *app) serveGateway(c *cobra.Command, flags gatewayFlags) error {
	ctx := c.Context()
	cfg := gateway.Config{InsecureNoTLS: flags.insecure, NoNative: flags.noNative, Grace: flags.grace, Logger: a.logger()}
	var err error
	switch {
	case flags.tokens == "":
		return &usageError{errors.New("no --tokens: want a file that says who is let in")}
	case (flags.cert == "") != (flags.key == ""):
		return &usageError{errors.New("want both of --tls-cert and --tls-key, or neither")}
	case flags.grace <= 0:
		return &usageError{fmt.Errorf("--grace %s: want more than zero", flags.grace)}
	}
	if cfg.Tokens, err = gateway.OpenTokens(flags.tokens); err != nil {
		return err
	}
	if flags.cert != "" {
		cert, err := tls.LoadX509KeyPair(flags.cert, flags.key)
		if err != nil {
			return fmt.Errorf("certificate %s, key %s: %w", flags.cert, flags.key, err)
		}
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	if cfg.Hub, cfg.WorkerBus, err = a.gatewayHub(flags.sandboxCreds); err != nil {
		return err
	}
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", flags.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", flags.listen, err)
	}
	if err := g.CheckListener(ln); err != nil {
		return errors.Join(fmt.Errorf("%w: give --tls-cert and --tls-key, or --insecure-no-tls", err), ln.Close())
	}
	if _, err := fmt.Fprintf(a.stdout, "gateway listens on %s\n", ln.Addr()); err != nil {
		return errors.Join(err, ln.Close())
	}
	return g.Serve(ctx, ln)
}

// gatewayHub says how the gateway is a harness at the hub, and how attached workers are sandboxes there.
func (a *app) gatewayHub(sandboxCreds string) (harnesslib.Config, func(bus.SandboxID) (bus.Config, error), error) {
	cfg, err := a.harnessConfig()
	if err != nil {
		return cfg, nil, err
	}
	zone := bus.DefaultZone
	if cfg.Zone != "" {
		if zone, err = bus.ParseZone(cfg.Zone); err != nil {
			return cfg, nil, err
		}
	}
	issue := func(id bus.SandboxID) (bus.Credential, error) {
		if sandboxCreds == "" {
			return bus.Credential{}, errors.New("the gateway has no --sandbox-creds")
		}
		cred, err := bus.LoadCredential(filepath.Join(sandboxCreds, string(id)+".creds"))
		if want := (bus.Identity{Role: bus.RoleSandbox, Zone: zone, Name: string(id)}); err == nil && cred.Identity().String() != want.String() {
			err = fmt.Errorf("credential of %s: want that of %s", cred.Identity(), want)
		}
		return cred, err
	}
	if sandboxCreds != "" {
		if fi, err := os.Stat(sandboxCreds); err != nil || !fi.IsDir() {
			return cfg, nil, fmt.Errorf("--sandbox-creds %s: want a directory with files ID.creds", sandboxCreds)
		}
	}
	if cfg.URL == "" {
		dir, err := a.dir()
		if err != nil {
			return cfg, nil, err
		}
		st, issuer, found, err := hub.Find(dir)
		if err != nil {
			return cfg, nil, err
		}
		if !found {
			return cfg, nil, fmt.Errorf("no hub: none runs on this machine (looked in %s); start one by \"sandbus up\", or name one by --hub", dir)
		}
		cred, err := issuer.Issue(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "gateway"})
		if err != nil {
			return cfg, nil, err
		}
		cfg.URL, cfg.Token, cfg.Credentials, cfg.CredentialsCommand = st.URL, cred.Token(), "", nil
		cfg.CA, cfg.ServerName = or(cfg.CA, st.CA), st.ServerName
		if sandboxCreds == "" {
			issue = func(id bus.SandboxID) (bus.Credential, error) {
				return issuer.Issue(bus.Identity{Role: bus.RoleSandbox, Zone: zone, Name: string(id)})
			}
		}
	}
	workers := func(id bus.SandboxID) (bus.Config, error) {
		cred, err := issue(id)
		return bus.Config{URL: cfg.URL, Credential: cred, CA: cfg.CA, ServerName: cfg.ServerName, Logger: cfg.Logger}, err
	}
	return cfg, workers, nil
}
