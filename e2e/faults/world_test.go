package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/e2e/faults/history"
	"github.com/sandbus/sandbus/e2e/faults/link"
	"github.com/sandbus/sandbus/harnesslib"
)

// shape is what a world is made of; its zero value has one hub server, two registrars, three workers, two harnesses.
type shape struct {
	hubs      int                          // servers of the hub; zero means one
	boxes     int                          // sandboxes; zero means three
	workerEnv []string                     // added to the environment of each worker
	harness   func(i int, s *spec)         // adjusts the work of a harness; nil means as it is
	prepare   func(w *world) error         // before the workers start; nil means nothing
	life      time.Duration                // of the workers' and harnesses' credentials; zero means without end
	worker    func(w *world) (path string) // the binary of the workers; nil means this one
}

// world is a hub with all that belongs to it, in processes of their own.
type world struct {
	dir  string
	tmp  string // the temporary directory of all processes
	keys *auth.Keys
	rng  *rand.Rand
	shape
	spec

	host  string // of the loopback network, this world's own
	rec   *history.Recorder
	file  *os.File // of rec
	links map[string][]*link.Link

	hub        []*process
	registrars []*process
	workers    []*process
	harnesses  []*process
	undo       []func() // what prepare has done, last first

	wg  sync.WaitGroup
	mu  sync.Mutex // guards the field below
	all []*process
}

const (
	registrars = 2
	harnesses  = 2
)

// box is the name of a sandbox, from 0.
func box(i int) string { return fmt.Sprintf("box-%d", i) }

func (w *world) sandbox(i int) string { return filepath.Join(w.dir, box(i)) }
func (w *world) journal(i int) string { return filepath.Join(w.dir, box(i)+".journal") }

// newWorld makes the files of a world; nothing runs. sp is the work of its harnesses.
func newWorld(dir string, sh shape, sp spec) (*world, error) {
	rng := rand.New(rand.NewPCG(sp.Seed, 1))
	w := &world{dir: dir, tmp: filepath.Join(dir, "tmp"), rng: rng, shape: sh, spec: sp, links: map[string][]*link.Link{}}
	w.hubs = max(1, w.hubs)
	if w.boxes == 0 {
		w.boxes = 3
	}
	// An address of its own, so that a server that was killed finds its ports free: clients' ports are all on 127.0.0.1.
	// Not by the seed: other runs may have the same at the same time.
	w.host = fmt.Sprintf("127.%d.%d", 1+rand.IntN(254), rand.IntN(256))
	var err error
	if w.file, err = os.Create(filepath.Join(dir, "driver.history")); err != nil {
		return nil, err
	}
	w.rec = history.NewRecorder("driver", w.file)
	if err := os.Mkdir(w.tmp, 0o700); err != nil {
		return nil, err
	}
	for i := range w.boxes {
		err := errors.Join(os.Mkdir(w.sandbox(i), 0o700), os.WriteFile(w.journal(i), nil, 0o600),
			os.WriteFile(filepath.Join(w.sandbox(i), readFile), contentOf(box(i), readLines), 0o600))
		if err != nil {
			return nil, err
		}
	}
	if w.keys, err = auth.Init(filepath.Join(dir, "keys"), "", auth.DefaultTenant); err != nil {
		return nil, err
	}
	return w, w.writeConfigs()
}

func (w *world) hubAddr(i, port int) string {
	return net.JoinHostPort(fmt.Sprintf("%s.%d", w.host, 10+i), fmt.Sprint(port))
}

const (
	clientPort  = 4222
	clusterPort = 6222
	monitorPort = 8222
)

func (w *world) writeConfigs() error {
	var routes []string
	for i := range w.hubs {
		routes = append(routes, w.hubAddr(i, clusterPort))
	}
	for i := range w.hubs {
		cfg := auth.ServerConfig{
			Name: fmt.Sprintf("n%d", i), Listen: w.hubAddr(i, clientPort), Monitor: w.hubAddr(i, monitorPort), StoreDir: w.store(i),
		}
		if w.hubs > 1 {
			cfg.Cluster, cfg.Routes = w.hubAddr(i, clusterPort), routes
		}
		f, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("hub-%d.conf", i)))
		if err != nil {
			return err
		}
		if err := errors.Join(w.keys.WriteServerConfig(f, cfg), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// store is where a server of the hub keeps its state.
func (w *world) store(i int) string { return filepath.Join(w.dir, fmt.Sprintf("hub-%d.store", i)) }

// creds issues a credential into a side's file, and returns its name.
func (w *world) creds(side string, role bus.Role, name string, life time.Duration) (string, error) {
	cred, err := w.keys.Issue(auth.DefaultTenant, bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name}, life)
	if err != nil {
		return "", err
	}
	file := filepath.Join(w.dir, side+".creds")
	tmp := file + ".new"
	return file, errors.Join(cred.WriteFile(tmp, 0o600), os.Rename(tmp, file))
}

// url is the hub for one side, through links of its own.
func (w *world) url(side string) (string, error) {
	if w.links[side] == nil {
		for i := range w.hubs {
			l, err := link.New(w.hubAddr(i, clientPort))
			if err != nil {
				return "", err
			}
			w.links[side] = append(w.links[side], l)
		}
	}
	var urls []string
	for _, l := range w.links[side] {
		urls = append(urls, "nats://"+l.Addr())
	}
	return strings.Join(urls, ","), nil
}

// eachLink does something to the links of sides.
func (w *world) eachLink(do func(*link.Link), sides ...string) {
	for _, side := range sides {
		for _, l := range w.links[side] {
			do(l)
		}
	}
}

func (w *world) startHub(i int) error {
	p, err := w.start(fmt.Sprintf("hub-%d", i), "hub", "", true, fmt.Sprintf("FAULTS_CONFIG=%s/hub-%d.conf", w.dir, i))
	if err != nil {
		return err
	}
	if i < len(w.hub) {
		w.hub[i] = p
	} else {
		w.hub = append(w.hub, p)
	}
	return nil
}

func (w *world) startRegistrar(i int) error {
	side := fmt.Sprintf("registrar-%d", i)
	url, err1 := w.url(side)
	creds, err2 := w.creds(side, bus.RoleRegistrar, side, 0)
	system, err3 := w.creds(side+"-system", bus.RoleSystem, side, 0)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	replicas := 0
	if w.hubs > 1 {
		replicas = w.hubs
	}
	p, err := w.start(side, "registrar", "", true, "SANDBUS_URL="+url, "SANDBUS_CREDS="+creds, "FAULTS_SYSTEM_CREDS="+system,
		fmt.Sprintf("FAULTS_REPLICAS=%d", replicas))
	if err != nil {
		return err
	}
	if i < len(w.registrars) {
		w.registrars[i] = p
	} else {
		w.registrars = append(w.registrars, p)
	}
	return nil
}

// workerProcess starts the worker of a sandbox under a side's name, which is the sandbox's but for duplicates.
func (w *world) workerProcess(i int, side, binary string) (*process, error) {
	url, err := w.url(side)
	if err != nil {
		return nil, err
	}
	creds, err := w.creds(side, bus.RoleSandbox, box(i), w.life)
	if err != nil {
		return nil, err
	}
	return w.start(side, "worker", binary, false, append([]string{
		"SANDBUS_URL=" + url, "SANDBUS_CREDS=" + creds, "SANDBUS_DIR=" + w.sandbox(i),
		"SANDBUS_STATE_DIR=" + filepath.Join(w.dir, side+".state"), "SANDBUS_STOP_GRACE=200ms", "SANDBUS_SLOTS=2",
		"SANDBUS_LEASE_KEEP=1s", "SHELL=/bin/sh",
	}, w.workerEnv...)...)
}

func (w *world) startWorker(i int) error {
	binary := ""
	if w.worker != nil {
		binary = w.worker(w)
	}
	p, err := w.workerProcess(i, box(i), binary)
	if err != nil {
		return err
	}
	if i < len(w.workers) {
		w.workers[i] = p
	} else {
		w.workers = append(w.workers, p)
	}
	return nil
}

// harness starts a harness process; it works as soon as it is ready.
func (w *world) startHarness(i int) error {
	s := w.spec
	s.Side = fmt.Sprintf("h%d", i)
	s.Probe = box(i % w.boxes)
	s.Journals, s.Final = map[string]string{}, nil
	for b := range w.boxes {
		s.Journals[box(b)] = w.journal(b)
		s.Final = append(s.Final, box(b))
	}
	s.History = filepath.Join(w.dir, s.Side+".history")
	url, err1 := w.url(s.Side)
	creds, err2 := w.creds(s.Side, bus.RoleHarness, s.Side, w.life)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	s.URL, s.Creds = url, creds
	if w.harness != nil {
		w.harness(i, &s)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	p, err := w.start(s.Side, "harness", "", true, "FAULTS_SPEC="+string(text))
	if err != nil {
		return err
	}
	w.harnesses = append(w.harnesses, p)
	return nil
}

// up starts all but the harnesses and waits until the sandboxes are known.
func (w *world) up(ctx context.Context) error {
	errs := make([]error, w.hubs)
	// Servers of a cluster are ready when they have found one another: they start together.
	var wg sync.WaitGroup
	w.hub = make([]*process, w.hubs)
	for i := range w.hubs {
		wg.Go(func() { errs[i] = w.startHub(i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i := range registrars {
		if err := w.startRegistrar(i); err != nil {
			return err
		}
	}
	if w.prepare != nil {
		if err := w.prepare(w); err != nil {
			return err
		}
	}
	for i := range w.boxes {
		if err := w.startWorker(i); err != nil {
			return err
		}
	}
	h, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	return w.known(ctx, h, w.boxes)
}

// connect is a harness in this process, which no link is in the way of.
func (w *world) connect(ctx context.Context) (*harnesslib.Hub, error) {
	creds, err := w.creds("driver", bus.RoleHarness, "driver", 0)
	if err != nil {
		return nil, err
	}
	var urls []string
	for i := range w.hubs {
		urls = append(urls, "nats://"+w.hubAddr(i, clientPort))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return harnesslib.Connect(ctx, harnesslib.Config{URL: strings.Join(urls, ","), Credentials: creds, ConnectTimeout: -1})
}

// known waits until so many sandboxes are in presence and not suspect.
func (w *world) known(ctx context.Context, h *harnesslib.Hub, n int) error {
	var last string
	return poll(ctx, func() (bool, error) {
		list, err := h.List(ctx)
		if err != nil {
			last = err.Error()
			return false, nil //nolint:nilerr // it is asked again
		}
		live := 0
		for _, p := range list {
			if !p.Suspect {
				live++
			}
		}
		last = fmt.Sprintf("%d of %d sandboxes are known and not suspect", live, len(list))
		return live == n && len(list) == n, nil
	}, func() string { return fmt.Sprintf("want %d sandboxes: %s", n, last) })
}

// poll asks until the answer is yes. Errors: the question's own; it did not come to be in time, in the words of what.
func poll(ctx context.Context, question func() (bool, error), what func() string) error {
	end := time.Now().Add(patience)
	for {
		ok, err := question()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %s: %s", patience, what())
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// note notes a fault in the history; mended ones begin with "mended".
func (w *world) note(format string, v ...any) {
	w.rec.Add(history.Event{Kind: history.Fault, Detail: fmt.Sprintf(format, v...)})
}

// died notes that a side was killed.
func (w *world) died(side string) {
	w.rec.Add(history.Event{Kind: history.Died, Detail: side})
}

// down ends all processes that are left, and the links. The files stay.
func (w *world) down() error {
	w.mu.Lock()
	all := w.all
	w.mu.Unlock()
	for _, p := range all {
		if !p.hasEnded() {
			p.signal(syscall.SIGCONT)
			p.kill()
		}
		_ = p.stdin.Close() // may be closed already
	}
	for _, links := range w.links {
		for _, l := range links {
			l.Close()
		}
	}
	w.wg.Wait()
	return errors.Join(w.rec.Err(), w.file.Close())
}

// close undoes what prepare has done; the files of the sandboxes may be gone then.
func (w *world) close() {
	for _, undo := range slices.Backward(w.undo) {
		undo()
	}
}
