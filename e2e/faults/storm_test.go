package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

func init() {
	scenarios["reconnect-storm-500"] = scenario{faults: storm}
}

// stormSize is how many workers come back at once.
const stormSize = 500

// playStorm is many workers that only say that they are there, until ctx ends.
func playStorm(ctx context.Context, log *slog.Logger) (err error) {
	keys, err := auth.Open(filepath.Join(os.Getenv(worldVar), "keys"), "")
	if err != nil {
		return err
	}
	minter, err := keys.Minter(auth.DefaultTenant, bus.RoleSandbox)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, minter.Close()) }()
	errs := make([]error, stormSize)
	var known, all sync.WaitGroup
	known.Add(stormSize)
	turn := make(chan struct{}, 16) // connections that are being made at once
	for i := range stormSize {
		all.Go(func() {
			var once sync.Once
			defer once.Do(known.Done)
			turn <- struct{}{}
			name := fmt.Sprintf("storm-%d", i)
			cred, err := minter.Issue(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: name}, 0)
			if err != nil {
				errs[i] = err
				return
			}
			conn, err := bus.Connect(ctx, bus.Config{URL: os.Getenv("SANDBUS_URL"), Credential: cred, ConnectTimeout: -1, Logger: log})
			<-turn
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.Close()
			a := &bus.Announcer{
				Conn: conn, Target: bus.Target{Zone: bus.DefaultZone, Sandbox: bus.SandboxID(name), Instance: bus.NewInstanceID()},
				Hello: &sandbusv1.Hello{Slots: 1, Arch: "amd64", Os: "linux", Version: "test"},
				Ready: func() { once.Do(known.Done) }, Beat: func(*sandbusv1.Beat) {}, Logger: log,
			}
			if errs[i] = a.Run(ctx); errs[i] == nil {
				a.Goodbye("the storm is over")
			}
		})
	}
	known.Wait()
	fmt.Println(readyLine)
	all.Wait()
	return errors.Join(errs...)
}

// storm kills a hub to which very many are connected: all are known again, and work goes on meanwhile.
func storm(ctx context.Context, w *world) error {
	url, err := w.url("storm")
	if err != nil {
		return err
	}
	p, err := w.start("storm", "storm", "", true, "SANDBUS_URL="+url)
	if err != nil {
		return err
	}
	h, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := w.known(ctx, h, stormSize+w.boxes); err != nil {
		return err
	}
	w.Rounds = 1
	if err := hubKilled(false)(ctx, w); err != nil {
		return err
	}
	return errors.Join(w.known(ctx, h, stormSize+w.boxes), p.stop())
}
