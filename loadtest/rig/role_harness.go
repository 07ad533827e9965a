package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbus/sandbus/loadtest/record"
	"github.com/sandbus/sandbus/loadtest/workload"
)

type harnessConfig struct {
	Name     string             `json:"name"`
	Workload *workload.Workload `json:"workload"`
	Shared   *workload.Shared   `json:"shared"`
	Seed     uint64             `json:"seed"`
	Profiles Profiles           `json:"profiles"`
}

type openRequest struct {
	Arm  string `json:"arm"`
	Site *Site  `json:"site"`
}

// openReady has an address where the harness is the hub itself.
type openReady struct {
	URL    string   `json:"url,omitempty"`
	Tokens []string `json:"tokens,omitempty"`
}

// prepareRequest has a harness open sessions for the samples that follow, until it is told to finish.
type prepareRequest struct {
	Arm      string `json:"arm"`
	Sessions []int  `json:"sessions"` // their numbers in the rung
	LeaseOps int    `json:"lease_ops"`
}

// prepareReady says how the acquisitions of leases went; nil where the arm has none.
type prepareReady struct {
	Leases *record.Leases `json:"leases,omitempty"`
}

// goRequest runs one sample on the sessions that were prepared.
type goRequest struct {
	Start   int64         `json:"start"` // nanoseconds since 1970; all processes begin together
	For     time.Duration `json:"for"`
	Think   time.Duration `json:"think"`   // mean pause
	Service time.Duration `json:"service"` // mean time of an operation when idle, from which a duty makes pauses; zero means no pauses
	Rate    float64       `json:"rate"`    // operations per second of each session
	Every   time.Duration `json:"every"`
	Sample  uint64        `json:"sample"` // makes the pauses of samples differ
}

// goResult is what a process saw of a sample.
type goResult struct {
	Outcomes   map[string]record.Outcomes `json:"outcomes"`
	Examples   map[string]string          `json:"examples,omitempty"` // one error's text for each kind
	Wall       time.Duration              `json:"wall"`
	Busy       time.Duration              `json:"busy"`
	Think      time.Duration              `json:"think"` // mean of its sessions' pauses
	Late       *float64                   `json:"late_us,omitempty"`
	Goroutines float64                    `json:"goroutines"`
	SchedP99   *float64                   `json:"sched_p99_us,omitempty"`
	CPUNanos   int64                      `json:"cpu_ns"`
	Leases     *record.Leases             `json:"leases,omitempty"` // acquired during the sample
}

// harness is a process with sessions.
type harness struct {
	cfg     harnessConfig
	clients map[string]client
	places  map[string][]Place
	open    []*running
	leaser  leaser // of the arm whose sessions are open; nil when it has no leases
}

// running is a session that is open.
type running struct {
	session
	h    *harness
	arm  string
	n    int
	duty float64
	gen  *workload.Generator         // for the sandbox that it has now
	gens map[int]*workload.Generator // for those that it has had
	// leaseOps is how many operations it does with one lease; zero means all, or that it needs none.
	leaseOps int
	done     int // operations with the lease that it has
}

func harnessRole(life context.Context, config json.RawMessage) (any, map[string]handler, func(), error) {
	cfg, err := decode[harnessConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	stop, err := cfg.Profiles.start(cfg.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	h := &harness{cfg: cfg, clients: map[string]client{}, places: map[string][]Place{}}
	closeAll := func() {
		h.finish(context.WithoutCancel(life))
		for _, c := range h.clients {
			c.close()
		}
		stop()
	}
	return struct{}{}, map[string]handler{
		"open": func(ctx context.Context, body json.RawMessage) (any, error) {
			req, err := decode[openRequest](body)
			if err != nil {
				return nil, err
			}
			return h.openArm(ctx, req)
		},
		"prepare": func(ctx context.Context, body json.RawMessage) (any, error) {
			req, err := decode[prepareRequest](body)
			if err != nil {
				return nil, err
			}
			return h.prepare(ctx, req)
		},
		"go": func(ctx context.Context, body json.RawMessage) (any, error) {
			req, err := decode[goRequest](body)
			if err != nil {
				return nil, err
			}
			return h.sample(ctx, req)
		},
		"finish": func(ctx context.Context, _ json.RawMessage) (any, error) {
			h.finish(ctx)
			if h.leaser != nil && h.leaser.held() > 0 {
				return nil, fmt.Errorf("%d leases are held after all sessions have ended", h.leaser.held())
			}
			return struct{}{}, nil
		},
	}, closeAll, nil
}

func (h *harness) openArm(ctx context.Context, req openRequest) (*openReady, error) {
	a, err := findArm(req.Arm)
	if err != nil {
		return nil, err
	}
	c, ok := h.clients[a.name]
	if !ok {
		if c, err = a.open(ctx, req.Site); err != nil {
			return nil, err
		}
	}
	h.clients[a.name], h.places[a.name] = c, req.Site.Sandboxes
	ready := &openReady{}
	if hub, ok := c.(host); ok {
		ready.URL, ready.Tokens = hub.join()
	}
	return ready, nil
}

// opening is how many sessions open at once.
const opening = 16

func (h *harness) prepare(ctx context.Context, req prepareRequest) (*prepareReady, error) {
	c, ok := h.clients[req.Arm]
	if !ok {
		return nil, fmt.Errorf("arm %s is not open", req.Arm)
	}
	h.open = make([]*running, len(req.Sessions))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(opening)
	for i, n := range req.Sessions {
		group.Go(func() error {
			s, at, err := c.session(gctx, n)
			if err != nil {
				return fmt.Errorf("session %d: %w", n, err)
			}
			r := &running{session: s, h: h, arm: req.Arm, n: n, gens: map[int]*workload.Generator{}}
			h.open[i] = r
			if rents, ok := s.(renter); ok {
				if r.leaseOps = req.LeaseOps; r.leaseOps > 0 {
					return nil // it rents when it works
				}
				if at, err = rents.rent(gctx); err != nil {
					return fmt.Errorf("session %d: %w", n, err)
				}
			}
			return r.place(gctx, at)
		})
	}
	err := group.Wait()
	if err != nil {
		h.finish(context.WithoutCancel(ctx))
		return nil, err
	}
	h.leaser, _ = c.(leaser)
	ready := &prepareReady{Leases: h.leases()}
	runtime.GC() // what the sessions before have left is not this sample's
	return ready, nil
}

// leases tells of the acquisitions since the last call; nil where the arm has none.
func (h *harness) leases() *record.Leases {
	if h.leaser == nil {
		return nil
	}
	return h.leaser.leases()
}

// place has the session work in a sandbox from now on.
func (r *running) place(ctx context.Context, at int) error {
	if r.gen = r.gens[at]; r.gen != nil {
		return nil
	}
	r.gen = r.h.cfg.Workload.Generator(r.h.cfg.Shared, r.h.dir(r.arm, at), r.n, r.h.cfg.Seed)
	r.duty = r.gen.Duty()
	r.gens[at] = r.gen
	return r.begin(ctx)
}

// turn gives a lease back that was used for long enough, and rents another.
func (r *running) turn(ctx context.Context) error {
	if r.leaseOps == 0 || r.gen != nil && r.done%r.leaseOps != 0 {
		return nil
	}
	rents, ok := r.session.(renter)
	if !ok {
		return nil
	}
	rents.giveBack(ctx)
	r.gen = nil
	at, err := rents.rent(ctx)
	if err != nil {
		return err
	}
	return r.place(ctx, at)
}

// leaser is a client whose sessions hold leases; it tells how the acquisitions since the last question went, and
// how many leases there are now.
type leaser interface {
	leases() *record.Leases
	held() int
}

// dir is a sandbox's directory; the null responder has none.
func (h *harness) dir(arm string, sandbox int) string {
	if places := h.places[arm]; sandbox < len(places) {
		return places[sandbox].Dir
	}
	return "/"
}

// begin writes the session's own files.
func (r *running) begin(ctx context.Context) error {
	for _, o := range r.gen.First() {
		ctx, cancel := context.WithTimeout(ctx, opLimit)
		err := r.do(ctx, &o)
		cancel()
		if err != nil {
			return fmt.Errorf("session %d: %w", r.n, err)
		}
	}
	return nil
}

func (h *harness) finish(ctx context.Context) {
	var wg sync.WaitGroup
	for _, r := range h.open {
		if r != nil {
			wg.Go(func() { r.close(ctx) })
		}
	}
	wg.Wait()
	h.open = nil
}

// errNoSessions says that a sample was asked for without sessions.
var errNoSessions = errors.New("no sessions are prepared")
