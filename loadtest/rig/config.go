package rig

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sandbus/sandbus/loadtest/record"
	"github.com/sandbus/sandbus/loadtest/workload"
)

// Config says what to run. Its zero value wants a workload; all else has defaults.
type Config struct {
	Workload  *workload.Workload
	Arms      []string      // empty means echo and bus-native
	Rungs     []int         // operations in flight; empty means 1 2 4 8 16 32 64 128
	Workers   int           // harness processes at most; zero means 2
	Sandboxes int           // zero means 2
	Slots     int           // leases that each sandbox grants; zero means enough for the highest rung
	Samples   int           // of each rung; zero means 3
	Duration  time.Duration // of each sample; zero means 2 s
	Rate      float64       // open loop: operations per second of all sessions together; zero means closed
	Seed      uint64        // zero means 1
	LeaseOps  int           // operations of a session for each lease; zero means one lease for the whole sample
	Command   []string      // prefix of the arm command; empty means env
	Image     string        // of the containers of the arm docker; empty means debian:bookworm-slim; it is never pulled
	Limits    record.Limits
	Profiles  Profiles
	// Progress gets a line for each rung, and what the processes say; nil discards.
	Progress io.Writer
	// Emit gets each record when it is made; nil discards.
	Emit func(any) error
}

// DefaultRungs are the ladder of offered concurrency.
var DefaultRungs = []int{1, 2, 4, 8, 16, 32, 64, 128}

const (
	maxRung      = 4096
	maxSandboxes = 256
	maxWorkers   = 64
)

// Check fills in what zero means, and refuses what cannot be right with its name, its value and what would be.
func (c *Config) Check() error {
	if c.Workload == nil {
		return fmt.Errorf("workload: there is none")
	}
	if len(c.Arms) == 0 {
		c.Arms = []string{armEcho.name, armBusNative.name}
	}
	for i, name := range c.Arms {
		if _, err := findArm(name); err != nil {
			return err
		}
		if slices.Contains(c.Arms[:i], name) {
			return fmt.Errorf("arm %s: is named twice", name)
		}
	}
	set := func(to *int, zero int) {
		if *to == 0 {
			*to = zero
		}
	}
	set(&c.Workers, 2)
	set(&c.Sandboxes, 2)
	set(&c.Samples, 3)
	if len(c.Rungs) == 0 {
		c.Rungs = DefaultRungs
	}
	if c.Duration == 0 {
		c.Duration = 2 * time.Second
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
	switch {
	case c.Workers < 1 || c.Workers > maxWorkers:
		return fmt.Errorf("workers %d: want 1 to %d harness processes", c.Workers, maxWorkers)
	case c.Sandboxes < 1 || c.Sandboxes > maxSandboxes:
		return fmt.Errorf("sandboxes %d: want 1 to %d; many that only idle are another question: loadtest addressable", c.Sandboxes, maxSandboxes)
	case c.Samples < 1 || c.Samples > 100:
		return fmt.Errorf("samples %d: want 1 to 100", c.Samples)
	case c.Duration < 10*time.Millisecond || c.Duration > time.Hour:
		return fmt.Errorf("duration %s: want 10ms to 1h for a sample", c.Duration)
	case c.LeaseOps < 0:
		return fmt.Errorf("lease-ops %d: want 0 (one lease for the whole sample) or more", c.LeaseOps)
	case c.Rate < 0:
		return fmt.Errorf("rate %g: want 0 (closed loop) or more operations per second", c.Rate)
	case c.Rate > 0 && c.Workload.BurstMS > 0:
		return fmt.Errorf("rate %g: workload %s comes in bursts, it has no rate", c.Rate, c.Workload.Name)
	}
	c.Rungs = slices.Clone(c.Rungs)
	slices.Sort(c.Rungs)
	for i, r := range c.Rungs {
		if r < 1 || r > maxRung {
			return fmt.Errorf("rung %d: want 1 to %d", r, maxRung)
		}
		if i > 0 && c.Rungs[i-1] == r {
			return fmt.Errorf("rung %d: is named twice", r)
		}
		if r > c.Workers && r%c.Workers != 0 {
			return fmt.Errorf("rung %d: want at most %d, or a multiple: each of the %d harness processes has as many sessions", r, c.Workers, c.Workers)
		}
	}
	if c.Slots == 0 {
		// Where leases go by the power of two choices, one sandbox may get all of them.
		c.Slots = c.Rungs[len(c.Rungs)-1]
	}
	if c.Slots < 1 {
		return fmt.Errorf("slots %d: want 1 or more leases for each sandbox", c.Slots)
	}
	if top := c.Rungs[len(c.Rungs)-1]; c.LeaseOps == 0 && c.Slots*c.Sandboxes < top {
		return fmt.Errorf("slots %d: %d sandboxes have too few for rung %d, whose sessions hold a lease each; want %d, or lease-ops",
			c.Slots, c.Sandboxes, top, (top+c.Sandboxes-1)/c.Sandboxes)
	}
	c.Limits = c.Limits.Defaults()
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	if c.Emit == nil {
		c.Emit = func(any) error { return nil }
	}
	return c.Limits.Check()
}

// split says how a rung's sessions are spread over harness processes.
func split(rung, workers int) (processes, sessions int) {
	if rung <= workers {
		return rung, 1
	}
	return workers, rung / workers
}
