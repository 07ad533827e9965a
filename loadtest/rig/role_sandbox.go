package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/workerd"
)

type sandboxConfig struct {
	Name     string   `json:"name"`
	URL      string   `json:"url"`
	Token    string   `json:"token"`
	Dir      string   `json:"dir"`
	Slots    int      `json:"slots"`
	Shells   int      `json:"shells"`
	Bare     bool     `json:"bare"` // also serve the arm echo
	Profiles Profiles `json:"profiles"`
}

// sandboxRole is a worker, as the binary workerd is one, that also answers bare requests.
func sandboxRole(life context.Context, config json.RawMessage) (_ any, _ map[string]handler, _ func(), err error) {
	cfg, err := decode[sandboxConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	var stops []func()
	closeAll := func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	stop, err := cfg.Profiles.start(cfg.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	stops = append(stops, stop)
	cred, err := bus.ParseCredential(cfg.Token)
	if err != nil {
		return nil, nil, nil, err
	}
	if cfg.Bare {
		if stop, err = bustest.ServeBare(cfg.URL, cred, "echo", echoAnswer()); err != nil {
			return nil, nil, nil, err
		}
		stops = append(stops, stop)
		if stop, err = bustest.ServeFlood(cfg.URL, cred); err != nil {
			return nil, nil, nil, err
		}
		stops = append(stops, stop)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // as the worker's binary does
	}
	ready := make(chan struct{})
	w, err := workerd.New(workerd.Config{
		URL: cfg.URL, Credential: cred, Dir: cfg.Dir, Slots: cfg.Slots, Shells: cfg.Shells, OwnProcess: true, Version: "loadtest",
		OnReady: func() { close(ready) },
	})
	if err != nil {
		return nil, nil, nil, err
	}
	run, end := context.WithCancelCause(life)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(run) }()
	stops = append(stops, func() {
		end(errors.New("the load test is over"))
		if err := <-ended; err != nil {
			fmt.Fprintf(os.Stderr, "loadtest %s: %v\n", cfg.Name, err)
		}
	})
	select {
	case <-ready:
		return struct{}{}, nil, closeAll, nil
	case err := <-ended:
		ended <- nil
		return nil, nil, nil, fmt.Errorf("worker: %w", err)
	}
}
