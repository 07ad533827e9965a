package rig

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sandbus/sandbus/loadtest/workload"
)

// stage is what all arms share: the hub, the sandboxes, the harness processes.
type stage struct {
	cfg       Config
	dir       string
	stderr    io.Writer
	shared    *workload.Shared
	forks     *forks
	hub       *process
	hubReady  hubReady
	places    []Place
	sandboxes []*process
	harnesses []*process
}

// setting is an arm with what runs for it alone.
type setting struct {
	arm
	stage *stage
	site  *Site
	// sandboxes and hub are the processes to measure; a hub inside the harness is none.
	sandboxes []*process
	hub       *process
	relays    []*process
	// containers are sandboxes that are no processes of the rig's.
	containers []container
	service    int64 // ns: mean time of an operation when there is one session
	opened     int   // how many harness processes have it
	stops      []func()
}

// sandboxName is the id of a sandbox.
func sandboxName(i int) string { return fmt.Sprintf("box%d", i) }

// setUp starts the processes. What it returns must be struck, also beside an error.
func setUp(ctx context.Context, cfg Config) (*stage, error) {
	s := &stage{cfg: cfg, stderr: cfg.Progress}
	dir, err := os.MkdirTemp("", "sandbus-loadtest-")
	if err != nil {
		return s, err
	}
	s.dir = dir
	if err := os.Chmod(dir, 0o755); err != nil { // what a sandbox runs as may be another user
		return s, err
	}
	if s.shared, err = cfg.Workload.Prepare(dir, cfg.Seed); err != nil {
		return s, err
	}
	var ids []string
	for i := range cfg.Sandboxes {
		p := Place{ID: sandboxName(i), Dir: filepath.Join(dir, sandboxName(i))}
		if err := os.Mkdir(p.Dir, 0o755); err != nil {
			return s, err
		}
		if err := cfg.Workload.Furnish(p.Dir, s.shared, cfg.Rungs[len(cfg.Rungs)-1]); err != nil {
			return s, fmt.Errorf("files of %s: %w", p.ID, err)
		}
		s.places = append(s.places, p)
		ids = append(ids, p.ID)
	}
	if s.forks, err = watchForks(); err != nil {
		_, _ = fmt.Fprintf(cfg.Progress, "processes started are not counted: %v\n", err)
	}
	s.hub, err = spawn(ctx, "hub", "hub", s.stderr, hubConfig{Profiles: cfg.Profiles, Sandboxes: ids}, &s.hubReady)
	if err != nil {
		return s, err
	}
	if s.sandboxes, err = s.startSandboxes(ctx, "", s.hubReady.URL, s.hubReady.Tokens, true); err != nil {
		return s, err
	}
	return s, s.startHarnesses(ctx)
}

// startSandboxes starts a worker for each place at a hub; what has started is returned also beside an error.
func (s *stage) startSandboxes(ctx context.Context, prefix, url string, tokens []string, bare bool) ([]*process, error) {
	var started []*process
	for i, p := range s.places {
		c := sandboxConfig{
			Name: prefix + p.ID, URL: url, Token: tokens[i], Dir: p.Dir, Slots: s.cfg.Slots, Bare: bare, Profiles: s.cfg.Profiles,
		}
		proc, err := spawn(ctx, "sandbox", c.Name, s.stderr, c, &struct{}{})
		if err != nil {
			return started, err
		}
		s.forks.add(proc.pid())
		started = append(started, proc)
	}
	return started, nil
}

func (s *stage) startHarnesses(ctx context.Context) error {
	for i := range s.cfg.Workers {
		c := harnessConfig{
			Name: fmt.Sprintf("harness%d", i), Workload: s.cfg.Workload, Shared: s.shared, Seed: s.cfg.Seed, Profiles: s.cfg.Profiles,
		}
		proc, err := spawn(ctx, "harness", c.Name, s.stderr, c, &struct{}{})
		if err != nil {
			return err
		}
		s.forks.add(proc.pid())
		s.harnesses = append(s.harnesses, proc)
	}
	return nil
}

// strike ends everything.
func (s *stage) strike() error {
	var all []*process
	all = append(all, s.harnesses...)
	all = append(all, s.sandboxes...)
	stopAll(all)
	if s.hub != nil {
		s.hub.stop()
	}
	s.forks.close()
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

func stopAll(ps []*process) {
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(p.stop)
	}
	wg.Wait()
}

// open makes an arm ready in all harness processes that it can use. Errors: ErrUnavailable.
func (s *stage) open(ctx context.Context, name string) (*setting, error) {
	a, err := findArm(name)
	if err != nil {
		return nil, err
	}
	t := &setting{
		arm: a, stage: s, hub: s.hub, sandboxes: s.sandboxes,
		site: &Site{URL: s.hubReady.URL, Token: s.hubReady.Harness, Sandboxes: s.places, Options: map[string]string{}},
	}
	if err := t.begin(ctx); err != nil {
		t.strike()
		return nil, err
	}
	return t, nil
}

func (t *setting) begin(ctx context.Context) error {
	if t.setup != nil {
		if err := t.setup(ctx, t); err != nil {
			return err
		}
	}
	if t.below {
		t.sandboxes, t.hub = nil, nil
	}
	t.opened = len(t.stage.harnesses)
	if t.oneHarness {
		t.opened = 1
	}
	for _, h := range t.stage.harnesses[:t.opened] {
		var ready openReady
		if err := h.call(ctx, "open", openRequest{Arm: t.name, Site: t.site}, &ready); err != nil {
			return err
		}
		if ready.URL == "" {
			continue
		}
		joined, err := t.stage.startSandboxes(ctx, t.name+"-", ready.URL, ready.Tokens, false)
		t.stops = append(t.stops, func() { stopAll(joined) })
		if err != nil {
			return err
		}
		t.sandboxes, t.hub = joined, nil
	}
	return nil
}

// strike ends what runs for the arm alone. Its clients end with their processes.
func (t *setting) strike() {
	for _, stop := range slices.Backward(t.stops) {
		stop()
	}
	t.stops = nil
}

// lockedWriter lets several processes write lines to one place.
type lockedWriter struct {
	mu sync.Mutex // guards writing
	to io.Writer
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}
