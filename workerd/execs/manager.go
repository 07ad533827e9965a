package execs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// Config says how execs run.
type Config struct {
	Shell    string       // for scripts; empty means that there is none
	SpoolDir string       // where files with full output go; empty means the system's temporary directory
	Max      int          // execs alive at once; zero means 1024
	Rules    *proc.Rules  // under which they run; nil means none
	Logger   *slog.Logger // nil discards
	// SpoolTotal is how many bytes files with full output may take together; zero means no bound.
	SpoolTotal int64
}

const (
	keepFor = 10 * time.Minute // how long an exec is remembered after its end
	keepMax = 64               // how many of those at most
)

// mark is in the environment of all that belongs to an exec. It is no secret: the id is known to the command's owner.
func (c *Config) mark(id string) string { return "SANDBUS_EXEC_ID=" + id }

// LineageMark is in the environment of all that a worker and its predecessors have started.
func LineageMark(lineage string) string { return "SANDBUS_LINEAGE=" + lineage }

// EndLeftovers kills what a crashed worker of a lineage has left alive, before a new one starts anything.
func EndLeftovers(ctx context.Context, lineage string) {
	proc.Marked(LineageMark(lineage)).End(ctx, time.Second)
}

// Manager knows the execs of a worker.
type Manager struct {
	cfg    Config
	spools *spoolRoom
	wg     sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	execs map[string]*Exec
	ended []string // ids in the order of their ends
	alive int
	stop  bool
}

var (
	// ErrConflict says that an id was used for another request.
	ErrConflict = errors.New("the exec id was used for another request")
	// ErrBusy says that too many execs are alive; nothing ran.
	ErrBusy = errors.New("too many execs are alive")
	// ErrStopping says that the worker ends; nothing ran.
	ErrStopping = errors.New("the worker is stopping")
)

// NewManager makes a manager without execs.
func NewManager(cfg Config) *Manager {
	if cfg.Max == 0 {
		cfg.Max = 1024
	}
	if cfg.SpoolDir == "" {
		cfg.SpoolDir = os.TempDir()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: cfg, spools: newSpoolRoom(cfg.SpoolTotal), execs: map[string]*Exec{}}
}

// Start runs an exec, or finds the one that the same request has started before (joined). Errors: ErrConflict, ErrBusy,
// ErrStopping.
func (m *Manager) Start(spec Spec) (e *Exec, joined bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.execs[spec.ID]; e != nil {
		if e.spec.Fingerprint != spec.Fingerprint {
			return nil, false, fmt.Errorf("exec %s: %w", spec.ID, ErrConflict)
		}
		return e, true, nil
	}
	if m.stop {
		return nil, false, ErrStopping
	}
	if m.alive >= m.cfg.Max {
		return nil, false, fmt.Errorf("%w: %d, the bound is %d", ErrBusy, m.alive, m.cfg.Max)
	}
	e = &Exec{
		Log: spec.newLog(), spec: spec, cfg: &m.cfg, arrived: time.Now(), began: time.Now(),
		started: make(chan struct{}), done: make(chan struct{}),
	}
	e.gone = m.gone
	e.life, e.end = context.WithCancelCause(context.Background())
	e.hold, e.release = context.WithCancelCause(context.Background())
	if spec.Spool {
		e.spool = newSpool(m.cfg.SpoolDir, spec.SpoolLimit, m.spools)
	}
	m.execs[spec.ID] = e
	m.alive++
	m.wg.Go(func() {
		e.run()
		m.over(e)
	})
	return e, false, nil
}

// gone makes room for another exec, before anybody hears of the end of this one.
func (m *Manager) gone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alive--
}

// over keeps an exec for those who ask later.
func (m *Manager) over(e *Exec) {
	r := e.Result()
	m.cfg.Logger.Info("exec ended", "exec", e.spec.ID, "outcome", strings.ToLower(r.GetOutcome().GetKind().String()),
		"code", r.GetOutcome().GetCode(), "run_us", r.GetTiming().GetRunUs(), "stdout_bytes", r.GetStdoutBytes(), "stderr_bytes", r.GetStderrBytes())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = append(m.ended, e.spec.ID)
	if len(m.ended) > keepMax {
		delete(m.execs, m.ended[0])
		m.ended = m.ended[1:]
	}
	time.AfterFunc(keepFor, func() { m.forget(e) })
}

func (m *Manager) forget(e *Exec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.execs[e.spec.ID] == e {
		delete(m.execs, e.spec.ID)
		m.ended = slices.DeleteFunc(m.ended, func(id string) bool { return id == e.spec.ID })
	}
}

// Get finds an exec that runs or is remembered.
func (m *Manager) Get(id string) (*Exec, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.execs[id]
	return e, ok
}

// Alive is how many execs run.
func (m *Manager) Alive() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.alive
}

// List describes the execs, sorted by their start.
func (m *Manager) List() []*sandbusv1.ExecInfo {
	m.mu.Lock()
	all := make([]*Exec, 0, len(m.execs))
	for _, e := range m.execs {
		all = append(all, e)
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *Exec) int {
		if c := a.arrived.Compare(b.arrived); c != 0 {
			return c
		}
		return strings.Compare(a.spec.ID, b.spec.ID)
	})
	out := make([]*sandbusv1.ExecInfo, len(all))
	for i, e := range all {
		out[i] = e.info()
	}
	return out
}

// EndLease aborts the execs that were started under a lease, but for those that are detached.
func (m *Manager) EndLease(lease string) {
	m.abort(func(s *Spec) bool { return lease != "" && s.Lease == lease && !s.Detach })
}

// EndOwner aborts all execs that an owner has started under leases.
func (m *Manager) EndOwner(owner string) {
	m.abort(func(s *Spec) bool { return owner != "" && s.Owner == owner })
}

func (m *Manager) abort(which func(*Spec) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.execs {
		if which(&e.spec) {
			e.Abort()
		}
	}
}

// Wait returns when no exec is alive, or ctx ends.
func (m *Manager) Wait(ctx context.Context) {
	m.mu.Lock()
	m.stop = true
	m.mu.Unlock()
	done := make(chan struct{})
	go func() {
		m.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Close ends all execs and waits for their ends.
func (m *Manager) Close() {
	m.mu.Lock()
	m.stop = true
	all := make([]*Exec, 0, len(m.execs))
	for _, e := range m.execs {
		all = append(all, e)
	}
	m.mu.Unlock()
	for _, e := range all {
		e.end(ErrStopping)
	}
	m.wg.Wait()
}
