package hubtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus"
)

// nodeVar makes a test binary a server: it holds a nodeConfig as JSON.
const nodeVar = "SANDBUS_TEST_HUB_NODE"

type nodeConfig struct {
	Name      string
	Clustered bool
	Dir       string
	Routes    []string
	Key       string // of the minter
	Swarm     string // the token of who may be everybody
	// Registrar is the hub's URL for a process that is a registrar, not a server.
	Registrar string
}

// Main runs a server, when this process was started to be one, until its standard input ends; ok is false in any other
// process. TestMain calls it first.
func Main() (status int, ok bool) {
	env := os.Getenv(nodeVar)
	if env == "" {
		return 0, false
	}
	if err := serve(env); err != nil {
		fmt.Fprintln(os.Stderr, "hub node:", err)
		return 1, true
	}
	return 0, true
}

func serve(env string) error {
	var cfg nodeConfig
	if err := json.Unmarshal([]byte(env), &cfg); err != nil {
		return err
	}
	minter, err := bus.ParseMinter(cfg.Key)
	if err != nil {
		return err
	}
	if cfg.Registrar != "" {
		return serveRegistrar(cfg, minter)
	}
	door := &door{minter: minter, swarm: cfg.Swarm}
	opts := &server.Options{
		ServerName: cfg.Name, Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		PingInterval: 20 * time.Second, MaxPingsOut: 2,
		JetStream: true, StoreDir: cfg.Dir, JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 256 << 20,
		CustomClientAuthentication: door,
	}
	if cfg.Clustered {
		opts.Cluster = server.ClusterOpts{Name: "sandbus", Host: "127.0.0.1", Port: server.RANDOM_PORT}
		for _, r := range cfg.Routes {
			u, err := url.Parse(r)
			if err != nil {
				return err
			}
			opts.Routes = append(opts.Routes, u)
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	door.srv = s
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("not ready after a minute")
	}
	route := ""
	if addr := s.ClusterAddr(); addr != nil {
		route = "nats-route://" + addr.String()
	}
	fmt.Println(s.ClientURL(), route)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is gone
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// serveRegistrar runs a registrar until standard input ends.
func serveRegistrar(cfg nodeConfig, minter *bus.Minter) error {
	cred, err := minter.Issue(bus.Identity{Role: bus.RoleRegistrar, Zone: bus.DefaultZone, Name: cfg.Name})
	if err != nil {
		return err
	}
	ctx := context.Background()
	conn, err := bus.Connect(ctx, bus.Config{URL: cfg.Registrar, Credential: cred})
	if err != nil {
		return err
	}
	defer conn.Close()
	if cred, err = minter.Issue(bus.Identity{Role: bus.RoleSystem, Zone: bus.DefaultZone, Name: cfg.Name}); err != nil {
		return err
	}
	system, err := bus.ConnectSystem(ctx, bus.Config{URL: cfg.Registrar, Credential: cred})
	if err != nil {
		return err
	}
	defer system.Close()
	r, err := bus.StartRegistrar(ctx, conn, bus.RegistrarConfig{System: system})
	if err != nil {
		return err
	}
	defer r.Stop()
	fmt.Println("registrar serves")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is gone
	return nil
}

// door admits whom the embedded hub admits.
type door struct {
	minter *bus.Minter
	swarm  string
	srv    *server.Server // set before the server takes clients
}

func (d *door) Check(c server.ClientAuthentication) bool {
	token := c.GetOpts().Token
	if token == d.swarm {
		c.RegisterUser(&server.User{Username: "swarm"})
		return true
	}
	id, err := d.minter.Verify(token)
	if err != nil {
		return false
	}
	var account *server.Account // nil: that of everybody
	if id.Role.InSystemAccount() {
		account = d.srv.SystemAccount()
	}
	p := id.Permissions()
	c.RegisterUser(&server.User{Username: id.String(), Account: account, Permissions: &server.Permissions{
		Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
		Publish:   &server.SubjectPermission{Allow: p.Publish},
	}})
	return true
}
