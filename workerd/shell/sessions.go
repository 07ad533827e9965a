package shell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/workerd/proc"
)

// SessionsConfig bounds the sessions of a worker.
type SessionsConfig struct {
	Config               // the shell, its directory and environment; Max, Warm and Queue do not count
	Bound  int           // sessions that are open at once; zero means 64; one more is refused with ErrSessions
	Queue  int           // commands that wait for one session; zero means 64; one more is refused with ErrBusy
	Idle   time.Duration // a session ends that was not used for so long; zero means 10 minutes
}

var (
	// ErrSessions says that as many sessions are open as may be.
	ErrSessions = errors.New("too many sessions")
	// ErrNoSession says that there is no such session, or no longer.
	ErrNoSession = errors.New("no such session")
)

// SessionKey names a session: those of one owner are none of another's business.
type SessionKey struct {
	Owner string
	Name  string
}

// SessionInfo is what is known of a session.
type SessionInfo struct {
	Name   string
	Dir    string        // where its shell was when its last command ended
	Busy   bool          // a command runs
	Queued int           // commands that wait
	Idle   time.Duration // since the last command's end; zero when busy
	Age    time.Duration // since it was opened
}

// Sessions are the named shells of a worker, whose state (directory, variables, functions, options) stays from one
// command to the next. All methods may be called at once.
type Sessions struct {
	cfg   SessionsConfig
	pipes *pipes
	wg    sync.WaitGroup // the sessions that are being closed

	mu     sync.Mutex // guards the fields below and those of each session that say so
	open   map[SessionKey]*session
	closed bool
}

// NewSessions finds out how shells get at their pipes; it starts none. Errors: the shell cannot be started.
func NewSessions(cfg SessionsConfig) (*Sessions, error) {
	if cfg.Bound == 0 {
		cfg.Bound = 64
	}
	if cfg.Queue == 0 {
		cfg.Queue = 64
	}
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p, _, err := newPipes(cfg.Path, cfg.Temp, cfg.Rules, cfg.forceFIFO)
	if err != nil {
		return nil, fmt.Errorf("start shell %s: %w", cfg.Path, err)
	}
	return &Sessions{cfg: cfg, pipes: p, open: map[SessionKey]*session{}}, nil
}

// Open opens a session in a directory (absolute; empty means the worker's); one that is open already stays as it is,
// and created is false. Its shell is started by its first command. Errors: ErrSessions, ErrClosed, and a
// *[proc.StartError] for the directory.
func (s *Sessions) Open(key SessionKey, dir string) (created bool, err error) {
	if dir == "" {
		dir = s.cfg.Dir
	}
	s.mu.Lock()
	_, exists := s.open[key]
	s.mu.Unlock()
	if !exists {
		if err := proc.CheckDir(dir); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return false, ErrClosed
	case s.open[key] != nil:
		return false, nil
	case len(s.open) >= s.cfg.Bound:
		return false, fmt.Errorf("%w: %d are open, the bound is %d: close one", ErrSessions, len(s.open), s.cfg.Bound)
	}
	now := time.Now()
	x := &session{all: s, key: key, dir: dir, opened: now, used: now, gone: make(chan struct{})}
	x.life, x.end = context.WithCancelCause(context.Background())
	x.idle = time.AfterFunc(s.cfg.Idle, x.expire)
	s.open[key] = x
	return true, nil
}

// Close ends a session: a command that runs is aborted, those that wait are refused. When it returns, nothing that the
// session's shell has below it is alive. Errors: ErrNoSession.
func (s *Sessions) Close(key SessionKey) error {
	s.mu.Lock()
	x := s.open[key]
	if x == nil {
		s.mu.Unlock()
		return s.none(key)
	}
	x.closeLocked()
	s.mu.Unlock()
	<-x.gone
	return nil
}

func (s *Sessions) none(key SessionKey) error {
	return fmt.Errorf("%w: %q is not open; one ends after %s without a command", ErrNoSession, key.Name, s.cfg.Idle)
}

// List returns the sessions of an owner by their names.
func (s *Sessions) List(owner string) []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []SessionInfo
	for key, x := range s.open {
		if key.Owner != owner {
			continue
		}
		info := SessionInfo{Name: key.Name, Dir: x.dir, Busy: x.busy, Queued: len(x.queue), Age: time.Since(x.opened)}
		if !x.busy {
			info.Idle = time.Since(x.used)
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Keep marks a session as one that its owner uses under a lease: see Rest and CloseOwner.
func (s *Sessions) Keep(key SessionKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.open[key]; x != nil {
		x.leased = true
	}
}

// Rest begins the idle time of an owner's marked sessions anew: its lease has ended, and another may come.
func (s *Sessions) Rest(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, x := range s.open {
		if key.Owner == owner && x.leased && !x.busy {
			x.idle.Reset(s.cfg.Idle)
		}
	}
}

// CloseOwner ends an owner's marked sessions as Close does, without waiting for them.
func (s *Sessions) CloseOwner(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, x := range s.open {
		if key.Owner == owner && x.leased {
			x.closeLocked()
		}
	}
}

// CloseAll ends all sessions, as Close does. It may be called twice.
func (s *Sessions) CloseAll() {
	s.mu.Lock()
	s.closed = true
	for _, x := range s.open {
		x.closeLocked()
	}
	s.mu.Unlock()
	s.wg.Wait()
	if err := s.pipes.close(); err != nil {
		s.cfg.Logger.Warn("private directory not removed", "error", err)
	}
}

// Turn is a command's place in a session's line. It must be used by Run.
type Turn struct {
	session *session
	ready   chan struct{} // closed when it is this command's turn
	arrived time.Time
}

// Queue takes a place: commands run in the order of their calls. Errors: ErrNoSession, ErrBusy.
func (s *Sessions) Queue(key SessionKey) (*Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.open[key]
	if x == nil {
		return nil, s.none(key)
	}
	t := &Turn{session: x, ready: make(chan struct{}), arrived: time.Now()}
	switch {
	case !x.busy:
		x.busy = true
		x.idle.Stop()
		close(t.ready)
	case len(x.queue) >= s.cfg.Queue:
		return nil, fmt.Errorf("%w: session %q runs a command and %d wait", ErrBusy, key.Name, s.cfg.Queue)
	default:
		x.queue = append(x.queue, t)
	}
	return t, nil
}

// session is one named shell. Whoever has the turn owns the fields without a lock.
type session struct {
	all    *Sessions
	key    SessionKey
	opened time.Time
	life   context.Context //nolint:containedctx // the session's own life, ended by closing it
	end    context.CancelCauseFunc
	idle   *time.Timer
	gone   chan struct{} // closed when it has ended

	shell  *sessionShell // nil before the first command, and after one that lost it
	busy   bool          // guarded by all.mu, as are the next ones
	leased bool          // its owner uses it under leases
	queue  []*Turn       // in order of arrival
	used   time.Time
	dir    string // where the shell is, as far as is known; written by whoever has the turn, under the lock
}

// expire closes a session that nobody uses.
func (x *session) expire() {
	x.all.mu.Lock()
	defer x.all.mu.Unlock()
	if !x.busy && x.all.open[x.key] == x {
		x.all.cfg.Logger.Info("session ended for want of use", "session", x.key.Name, "idle", x.all.cfg.Idle)
		x.closeLocked()
	}
}

// closeLocked takes the session off the list and has it end.
func (x *session) closeLocked() {
	delete(x.all.open, x.key)
	x.idle.Stop()
	x.end(fmt.Errorf("%w: %q was closed", ErrNoSession, x.key.Name))
	x.all.wg.Add(1)
	if !x.busy {
		x.busy = true
		go x.finish()
	}
}

// finish ends the shell of a session that is off the list; the caller has the turn.
func (x *session) finish() {
	defer x.all.wg.Done()
	defer close(x.gone)
	if x.shell != nil {
		x.shell.quit()
	}
}

// Run waits for the command's turn and runs it. The end of ctx aborts it: what the command started is dead when Run
// returns. Errors mean that nothing ran: ErrNoSession when the session was closed, the context's cause.
func (t *Turn) Run(ctx context.Context, c Command) (*Result, error) {
	x := t.session
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	defer x.next()
	if x.life.Err() != nil {
		return nil, context.Cause(x.life)
	}
	life, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(x.life, func() { cancel(context.Cause(x.life)) })()
	return x.run(life, &c, t.arrived), nil
}

func (t *Turn) wait(ctx context.Context) error {
	x := t.session
	select {
	case <-t.ready:
		return nil
	default:
	}
	var err error
	select {
	case <-t.ready:
		return nil
	case <-x.life.Done():
		err = context.Cause(x.life)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	x.all.mu.Lock()
	if i := slices.Index(x.queue, t); i >= 0 {
		x.queue = slices.Delete(x.queue, i, i+1)
	}
	x.all.mu.Unlock()
	select {
	case <-t.ready: // its turn came in this moment
		x.next()
	default:
	}
	return err
}

// next passes the turn on.
func (x *session) next() {
	x.all.mu.Lock()
	x.used = time.Now()
	switch {
	case x.life.Err() != nil: // those who wait find that themselves
		x.queue = nil
		x.all.mu.Unlock()
		x.finish()
	case len(x.queue) > 0:
		close(x.queue[0].ready)
		x.queue = x.queue[1:]
		x.all.mu.Unlock()
	default:
		x.busy = false
		x.idle.Reset(x.all.cfg.Idle)
		x.all.mu.Unlock()
	}
}

// setDir notes where the shell is.
func (x *session) setDir(dir string) {
	x.all.mu.Lock()
	defer x.all.mu.Unlock()
	x.dir = dir
}
