package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

type crowdConfig struct {
	URL string `json:"url"`
}

type joinRequest struct {
	Tokens []string `json:"tokens"`
}

// crowd is many simulated workers in one process: each has its own connection, credential, subscription and heartbeat, as
// a real one, and answers fs.stat; none has shells or files.
type crowd struct {
	url     string
	life    context.Context //nolint:containedctx // the process's own life
	end     context.CancelCauseFunc
	members sync.WaitGroup
}

// joining is how many connect at once.
const joining = 16

func crowdRole(life context.Context, config json.RawMessage) (any, map[string]handler, func(), error) {
	cfg, err := decode[crowdConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	c := &crowd{url: cfg.URL}
	c.life, c.end = context.WithCancelCause(life)
	return struct{}{}, map[string]handler{
		"join": func(ctx context.Context, body json.RawMessage) (any, error) {
			req, err := decode[joinRequest](body)
			if err != nil {
				return nil, err
			}
			group, gctx := errgroup.WithContext(ctx)
			group.SetLimit(joining)
			for _, token := range req.Tokens {
				group.Go(func() error { return c.join(gctx, token) })
			}
			return struct{}{}, group.Wait()
		},
	}, c.close, nil
}

// join returns when the registrar knows the worker.
func (c *crowd) join(ctx context.Context, token string) error {
	cred, err := bus.ParseCredential(token)
	if err != nil {
		return err
	}
	conn, err := bus.Connect(ctx, bus.Config{URL: c.url, Credential: cred, ConnectTimeout: -1})
	if err != nil {
		return err
	}
	id := cred.Identity()
	target := bus.Target{Zone: id.Zone, Sandbox: bus.SandboxID(id.Name), Instance: bus.NewInstanceID()}
	srv := bus.NewServer(conn, target, nil)
	srv.HandleQuick("fs.stat", bus.Quick(func(req *sandbusv1.StatRequest) (*sandbusv1.StatResponse, error) {
		return &sandbusv1.StatResponse{Info: &sandbusv1.FileInfo{Name: req.GetPath(), Type: sandbusv1.FileType_FILE_TYPE_REGULAR}}, nil
	}))
	if err := srv.Start(); err != nil {
		conn.Close()
		return err
	}
	ready := make(chan struct{})
	a := &bus.Announcer{
		Conn: conn, Target: target, Ready: func() { close(ready) },
		Hello: &sandbusv1.Hello{Arch: "simulated", Os: "simulated", Trust: "untrusted", Slots: 1, Version: "loadtest"},
	}
	announced := make(chan error, 1)
	c.members.Go(func() {
		defer conn.Close()
		err := a.Run(c.life)
		announced <- err
		srv.Stop(c.life)
	})
	select {
	case <-ready:
		return nil
	case err := <-announced:
		return fmt.Errorf("simulated worker %s: %w", id.Name, errors.Join(err, context.Cause(c.life)))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *crowd) close() {
	c.end(errRigGone)
	c.members.Wait()
}
