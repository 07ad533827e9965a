package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/loadtest/rig"
)

func newAddressable(a *app) *cobra.Command {
	var cfg rig.AddressableConfig
	var out output
	c := &cobra.Command{
		Use:   "addressable",
		Short: "Measure what sandboxes cost that only exist",
		Long: `addressable has many simulated workers in one process join one hub, each with its own connection, credential and heartbeat,
and prints the memory for each and the latency of a request to a random one, against that with few. It is about what is
addressable, not about operations in flight.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			cfg.Progress = a.stderr
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			s, err := a.open(out)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.close()) }()
			r, err := rig.Addressable(c.Context(), cfg)
			if c.Context().Err() != nil {
				return &statusError{exitInterrupted, "interrupted"}
			}
			if err != nil {
				return err
			}
			if err := s.emit(r); err != nil {
				return err
			}
			return a.show(s, out)
		},
	}
	f := c.Flags()
	f.IntVar(&cfg.Sandboxes, "sandboxes", 10_000, "how many")
	f.IntVar(&cfg.Against, "against", 10, "how few to compare with")
	f.IntVar(&cfg.Requests, "requests", 2000, "to random sandboxes, for each figure")
	f.DurationVar(&cfg.Idle, "idle", 5*time.Second, "how long to watch the hub while they only beat")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of what is drawn")
	out.add(c)
	return c
}
