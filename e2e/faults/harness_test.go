package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/e2e/faults/history"
	"github.com/sandbus/sandbus/harnesslib"
)

// spec is the work of a harness process.
type spec struct {
	Side       string
	URL, Creds string
	History    string // the file for its events
	Seed       uint64
	Ops        int               // operations at most; it ends sooner when its input does
	Rounds     int               // times that a fault is repeated, where a scenario repeats it
	Loops      int               // operations at once; zero means 4
	Burst      int               // operations that are all begun at once, under leases, before the others
	Journals   map[string]string // by sandbox
	Verbs      []history.Verb    // zero means all
	Probe      string            // the sandbox that is asked again and again
	Final      []string          // sandboxes that must answer in the end
	Lease      bool              // commands run under leases
	Stream     string            // the id of an exec that goes on beside the others; empty means none
	Lines      int               // of the stream; zero means 400
	Fast       bool              // the stream goes as fast as it can, not at 50 lines a second
	NoNaps     bool              // commands fork nothing
	Small      bool              // files are small
	Hogs       int               // commands that take more memory than they may, beside the others
	Endless    bool              // Ops is no bound
}

const (
	readFile    = "read.txt"
	readLines   = 5000
	streamLines = 400
	// diskFull is with what a command exits that could not note that it ran.
	diskFull = 97
	// leaseTTL is long enough for a busy machine to renew in, and short enough to be waited for.
	leaseTTL = 20 * time.Second
	// opLimit is how long an operation may take before its context ends.
	opLimit = 100 * time.Second
)

// contentOf is what a file has that belongs to a name.
func contentOf(name string, lines int) []byte {
	return bytes.Repeat([]byte(name+" 0123456789 abcdefghijklmnopqrstuvwxyz\n"), lines)
}

// harness is a harness process at work.
type harness struct {
	spec
	hub   *harnesslib.Hub
	boxes map[string]*harnesslib.Sandbox
	rec   *history.Recorder
	ops   atomic.Int64
	over  chan struct{} // closed when no operation is to begin any more
}

// playHarness does what FAULTS_SPEC says until its input ends, and checks then that it holds no more than before.
func playHarness(ctx context.Context, log *slog.Logger) error {
	h := &harness{boxes: map[string]*harnesslib.Sandbox{}, over: make(chan struct{})}
	if err := json.Unmarshal([]byte(os.Getenv("FAULTS_SPEC")), &h.spec); err != nil {
		return err
	}
	f, err := os.OpenFile(h.History, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // each event was written whole, or Err says so
	h.rec = history.NewRecorder(h.Side, f)
	if h.hub, err = harnesslib.Connect(ctx, harnesslib.Config{URL: h.URL, Credentials: h.Creds, ConnectTimeout: -1, Logger: log}); err != nil {
		return err
	}
	defer h.hub.Close()
	for name := range h.Journals {
		if h.boxes[name], err = h.hub.Sandbox(name); err != nil {
			return err
		}
	}
	if err := h.warm(ctx); err != nil {
		return err
	}
	before := held()
	fmt.Println(readyLine)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the driver closes it
		close(h.over)
	}()
	h.work(ctx)
	h.final(ctx)
	h.leftovers(ctx, before)
	return h.rec.Err()
}

// warm does one of each, so that what is kept for good is there.
func (h *harness) warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, sb := range h.boxes {
		if _, err := sb.ScriptCommand("true").Output(ctx); err != nil {
			return err
		}
		if err := sb.Command("true").Run(ctx); err != nil {
			return err
		}
	}
	if h.Lease {
		l, err := h.hub.Acquire(ctx, harnesslib.AcquireOptions{Wait: true, TTL: leaseTTL})
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
	return nil
}

// work does operations until there are enough of them, or no more are wanted.
func (h *harness) work(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.probe(ctx) })
	if h.Stream != "" {
		nap := "sleep 0.02"
		if h.Fast {
			nap = ""
		}
		lines := h.Lines
		if lines == 0 {
			lines = streamLines
		}
		wg.Go(func() { h.exec(ctx, h.boxes[h.Probe], h.Stream, lines, 0, nap) })
	}
	for n := range h.Burst {
		wg.Go(func() { h.leased(ctx, rand.New(rand.NewPCG(h.Seed, uint64(1000+n)))) })
	}
	for n := range h.Hogs {
		wg.Go(func() { h.hog(ctx, n) })
	}
	loops := h.Loops
	if loops == 0 {
		loops = 4
	}
	for n := range loops {
		rng := rand.New(rand.NewPCG(h.Seed, uint64(10+n)+uint64(len(h.Side))<<32+uint64(h.Side[len(h.Side)-1])<<40))
		wg.Go(func() {
			for h.ops.Add(1) <= int64(h.Ops) || h.Endless {
				if h.Lease {
					h.leased(ctx, rng)
				} else {
					names := h.names()
					name := names[rng.IntN(len(names))]
					h.one(ctx, rng, name, h.boxes[name])
				}
				select {
				case <-h.over:
					return
				case <-time.After(time.Duration(rng.IntN(250)) * time.Millisecond):
				}
			}
		})
	}
	wg.Wait()
}

func (h *harness) names() []string {
	var names []string
	for name := range h.boxes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// probe asks one sandbox again and again, and notes when it answers.
func (h *harness) probe(ctx context.Context) {
	for {
		ask, cancel := context.WithTimeout(ctx, opLimit)
		_, err := h.boxes[h.Probe].ScriptCommand("true").Output(ask)
		cancel()
		if err == nil {
			h.rec.Add(history.Event{Kind: history.Probe, Sandbox: h.Probe})
		}
		select {
		case <-h.over:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

var opCount atomic.Int64

func (h *harness) id(rng *rand.Rand) string {
	return fmt.Sprintf("%s-%d-%x", h.Side, opCount.Add(1), rng.Uint32())
}

// one does one operation.
func (h *harness) one(ctx context.Context, rng *rand.Rand, name string, sb *harnesslib.Sandbox) {
	verbs := h.Verbs
	if len(verbs) == 0 {
		verbs = []history.Verb{history.Fast, history.Fast, history.Fast, history.Exec, history.Exec, history.Write, history.Read, history.Detach}
	}
	id := h.id(rng)
	code := 0
	if rng.IntN(2) == 0 {
		code = 1 + rng.IntN(90)
	}
	nap := ""
	if rng.IntN(3) == 0 && !h.NoNaps {
		nap = fmt.Sprintf("sleep 0.0%d", rng.IntN(9))
	}
	switch v := verbs[rng.IntN(len(verbs))]; v {
	case history.Fast:
		h.fast(ctx, name, sb, id, code, nap)
	case history.Exec:
		h.exec(ctx, sb, id, 1+rng.IntN(60), code, nap)
	case history.Detach:
		h.detach(ctx, name, sb, id, 1+rng.IntN(60), code, nap)
	case history.Write:
		lines := 1 + rng.IntN(500)
		if rng.IntN(10) == 0 && !h.Small {
			lines = 20_000 // more than fits into one message
		}
		h.write(ctx, name, sb, id, lines)
	case history.Read:
		h.read(ctx, name, sb, id)
	}
}

// noted is the beginning of each command: it says in the sandbox's journal that it runs, in one write.
func (h *harness) noted(name, id string) string {
	return fmt.Sprintf(`echo %s >>%s || exit %d; `, id, h.Journals[name], diskFull)
}

// did records an outcome.
func (h *harness) did(id string, e history.Event, err error) {
	e.Kind, e.Op = history.Outcome, id
	var known bool
	e.Result, e.Code, known = resultOf(err)
	if e.Result == history.Exited && e.Code == diskFull {
		e.Result = history.Refused
	}
	if err != nil {
		e.Detail = err.Error()
	}
	h.rec.Add(e)
	if !known {
		h.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("op %s: an error that no doc comment names: %T: %v", id, err, err)})
	}
}

// resultOf is what an error says of an operation; known is false for one that says nothing.
func resultOf(err error) (r history.Result, code int, known bool) {
	var exit *harnesslib.ExitError
	var path *fs.PathError
	var said *bus.Error
	var gone *harnesslib.HubGoneError
	switch {
	case err == nil:
		return history.Exited, 0, true
	case errors.Is(err, harnesslib.ErrLost):
		return history.Lost, 0, true
	case errors.As(err, &exit):
		return history.Result(exit.Outcome.Kind), exit.Outcome.Code, true
	case errors.Is(err, harnesslib.ErrFenced), errors.Is(err, harnesslib.ErrGone), errors.Is(err, harnesslib.ErrQuarantined),
		errors.Is(err, harnesslib.ErrReleased):
		return history.Aborted, 0, true // it did not run, or what ran was ended with the lease
	case errors.Is(err, harnesslib.ErrUnknownSandbox), errors.Is(err, harnesslib.ErrUnreachable), errors.Is(err, harnesslib.ErrBusy),
		errors.Is(err, harnesslib.ErrPoolSaturated), errors.Is(err, harnesslib.ErrNoSandbox),
		errors.Is(err, bus.ErrPublish), errors.As(err, &gone), errors.As(err, &path), errors.As(err, &said),
		errors.Is(err, context.DeadlineExceeded):
		return history.Refused, 0, true
	}
	return history.Lost, 0, false
}

func (h *harness) fast(ctx context.Context, name string, sb *harnesslib.Sandbox, id string, code int, nap string) {
	h.rec.Add(history.Event{Kind: history.Request, Op: id, Verb: history.Fast, Sandbox: name, Want: code, Lines: 1})
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	c := sb.ScriptCommand(h.noted(name, id) + nap + "\necho " + id + "; exit " + strconv.Itoa(code))
	out, err := c.Output(ctx)
	e := history.Event{Omitted: c.Omitted}
	switch string(out) {
	case id + "\n":
		e.Lines = 1
	case "":
	default:
		e.Wrong = true
	}
	h.did(id, e, err)
}

// script prints numbered lines.
func (h *harness) script(name, id string, lines, code int, nap string) string {
	if nap == "" {
		nap = ":"
	}
	return fmt.Sprintf("%s i=0; while [ $i -lt %d ]; do echo %s $i; i=$((i+1)); %s; done; exit %d", h.noted(name, id), lines, id, nap, code)
}

// lineCounter counts lines that come in their order.
type lineCounter struct {
	id    string
	lines int
	wrong bool
	part  []byte
}

func (l *lineCounter) Write(b []byte) (int, error) {
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		if string(line) != l.id+" "+strconv.Itoa(l.lines) {
			l.wrong = true
		}
		l.lines++
		l.part = rest
	}
}

func (h *harness) exec(ctx context.Context, sb *harnesslib.Sandbox, id string, lines, code int, nap string) {
	name := sb.ID()
	h.rec.Add(history.Event{Kind: history.Request, Op: id, Verb: history.Exec, Sandbox: name, Want: code, Lines: lines})
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	c := sb.Command("sh", "-c", h.script(name, id, lines, code, nap))
	c.ID = id
	got := &lineCounter{id: id}
	c.Stdout = got
	err := c.Run(ctx)
	h.did(id, history.Event{Lines: got.lines, Wrong: got.wrong && c.Omitted == 0, Omitted: c.Omitted}, err)
}

// detach starts a command that runs by itself, and attaches to it until its end.
func (h *harness) detach(ctx context.Context, name string, sb *harnesslib.Sandbox, id string, lines, code int, nap string) {
	h.rec.Add(history.Event{Kind: history.Request, Op: id, Verb: history.Detach, Sandbox: name, Want: code, Lines: lines})
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	c := sb.Command("sh", "-c", h.script(name, id, lines, code, nap))
	c.ID, c.Detach = id, true
	if err := c.Run(ctx); err != nil || !c.Running {
		h.did(id, history.Event{Lines: lines}, err) // a short one may have ended in its start: its output was not asked for
		return
	}
	end := time.Now().Add(opLimit / 5)
	for {
		a := sb.AttachCommand(id)
		got := &lineCounter{id: id}
		a.Stdout = got
		err := a.Run(ctx)
		var exit *harnesslib.ExitError
		switch {
		case err == nil, errors.As(err, &exit):
			h.did(id, history.Event{Lines: got.lines, Wrong: got.wrong && a.Omitted == 0, Omitted: a.Omitted}, err)
			return
		case errors.Is(err, harnesslib.ErrUnknownExec), time.Now().After(end), ctx.Err() != nil:
			// Its worker has been started anew, or cannot be asked: it had started, and that is all that is known.
			h.did(id, history.Event{Lines: got.lines}, fmt.Errorf("%w: %w", harnesslib.ErrLost, err))
			return
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			continue // ctx has ended: said above
		}
	}
}

func (h *harness) write(ctx context.Context, name string, sb *harnesslib.Sandbox, id string, lines int) {
	h.rec.Add(history.Event{Kind: history.Request, Op: id, Verb: history.Write, Sandbox: name, Lines: lines})
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	_, err := sb.Write(ctx, "w-"+id, contentOf(id, lines), harnesslib.WriteOptions{NoSync: true})
	h.did(id, history.Event{}, err)
}

func (h *harness) read(ctx context.Context, name string, sb *harnesslib.Sandbox, id string) {
	h.rec.Add(history.Event{Kind: history.Request, Op: id, Verb: history.Read, Sandbox: name})
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	b, err := sb.ReadFile(ctx, readFile)
	h.did(id, history.Event{Wrong: err == nil && !bytes.Equal(b, contentOf(name, readLines))}, err)
}

// leased does an operation under a lease of whichever sandbox has a slot.
func (h *harness) leased(ctx context.Context, rng *rand.Rand) {
	limit, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	l, err := h.hub.Acquire(limit, harnesslib.AcquireOptions{Wait: true, TTL: leaseTTL})
	if err != nil {
		if _, _, known := resultOf(err); !known {
			h.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("acquire: an error that no doc comment names: %T: %v", err, err)})
		}
		return
	}
	sb := l.Sandbox()
	// The parent of its shell is the worker: leases of an earlier one ended with it.
	pid, err := sb.ScriptCommand("echo $PPID").Output(limit)
	place := sb.ID() + " of worker " + strings.TrimSpace(string(pid))
	e := history.Event{Kind: history.Granted, Lease: fmt.Sprintf("%s-%d", h.Side, opCount.Add(1)), Sandbox: place, Slots: 2}
	ended := e
	ended.Kind = history.Ended
	var once sync.Once
	end := func() { once.Do(func() { h.rec.Add(ended) }) }
	if err == nil {
		h.rec.Add(e)
		var watch sync.WaitGroup
		done := make(chan struct{})
		watch.Go(func() {
			select {
			case <-l.Lost():
				end()
			case <-done:
			}
		})
		h.one(limit, rng, sb.ID(), sb)
		close(done)
		watch.Wait()
		end()
	}
	_ = l.Release(limit) // what ended it before is no violation
}

// hog takes memory until it is ended for it.
func (h *harness) hog(ctx context.Context, n int) {
	sb := h.boxes[h.Probe]
	id := fmt.Sprintf("%s-hog-%d", h.Side, n)
	h.rec.Add(history.Event{Kind: history.Request, Op: id, Verb: history.Exec, Sandbox: sb.ID(), Want: 0})
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	c := sb.Command("sh", "-c", h.noted(sb.ID(), id)+"head -c 300000000 /dev/zero | tail")
	c.ID, c.MemoryLimit = id, 32<<20
	c.Stdout = io.Discard
	err := c.Run(ctx)
	h.did(id, history.Event{}, err)
	if r, _, _ := resultOf(err); r == history.Exited {
		h.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("op %s took 300 MB and may have 32 MiB", id)})
	}
}

// final asks each sandbox until it answers.
func (h *harness) final(ctx context.Context) {
	var wg sync.WaitGroup
	for _, name := range h.Final {
		wg.Go(func() {
			var last error
			err := poll(ctx, func() (bool, error) {
				ask, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				if _, last = h.boxes[name].ScriptCommand("true").Output(ask); last != nil {
					return false, nil
				}
				last = h.boxes[name].Command("true").Run(ask)
				return last == nil, nil
			}, func() string { return fmt.Sprintf("sandbox %s: %v", name, last) })
			if err != nil {
				h.rec.Add(history.Event{Kind: history.Broken, Detail: "after all was mended: " + err.Error()})
			}
		})
	}
	wg.Wait()
}

// holdings is what a process holds.
type holdings struct{ goroutines, descriptors int }

func held() holdings {
	d, _ := os.ReadDir("/proc/self/fd") // it is there
	return holdings{runtime.NumGoroutine(), len(d)}
}

// leftovers waits until the process holds hardly more than before its work.
func (h *harness) leftovers(ctx context.Context, before holdings) {
	var now holdings
	err := poll(ctx, func() (bool, error) {
		now = held()
		return now.goroutines <= before.goroutines+10 && now.descriptors <= before.descriptors+8, nil
	}, func() string {
		return fmt.Sprintf("%d goroutines and %d descriptors, %d and %d before the work", now.goroutines, now.descriptors, before.goroutines, before.descriptors)
	})
	if err != nil {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%s\n", buf[:runtime.Stack(buf, true)])
		h.rec.Add(history.Event{Kind: history.Left, Detail: "in harness " + h.Side + ": " + err.Error()})
	}
}
