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
}

// harness is a process with sessions.
type harness struct {
	cfg     harnessConfig
	clients map[string]client
	places  map[string][]Place
	open    []*running
}

// running is a session that is open.
type running struct {
	session
	gen  *workload.Generator
	duty float64
	n    int
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
			gen := h.cfg.Workload.Generator(h.cfg.Shared, h.dir(req.Arm, at), n, h.cfg.Seed)
			h.open[i] = &running{session: s, gen: gen, duty: gen.Duty(), n: n}
			return h.open[i].begin(gctx)
		})
	}
	err := group.Wait()
	if err != nil {
		h.finish(context.WithoutCancel(ctx))
		return nil, err
	}
	ready := &prepareReady{}
	if l, ok := c.(leaser); ok {
		ready.Leases = l.leases()
	}
	runtime.GC() // what the sessions before have left is not this sample's
	return ready, nil
}

// leaser is a client whose sessions hold leases; it tells how the acquisitions since the last question went.
type leaser interface{ leases() *record.Leases }

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
