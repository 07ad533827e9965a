package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/e2e/faults/history"
	"github.com/sandbus/sandbus/e2e/faults/link"
)

// scenario is something that is broken while harnesses work.
type scenario struct {
	need func(testing.TB) // skips where the machine cannot do it; nil means everywhere
	shape
	faults func(context.Context, *world) error // breaks, and mends
}

// scenarios are all of them, by name.
var scenarios = map[string]scenario{
	"hub-killed":             {faults: hubKilled(false)},
	"hub-killed-wiped":       {faults: hubKilled(true)},
	"leader-of-three-killed": {shape: shape{hubs: 3}, faults: leaderKilled},
	"network-cut-1s":         {faults: networkCut(time.Second, time.Second)},
	"network-cut-10s":        {faults: networkCut(10*time.Second, 10*time.Second)},
	"network-cut-60s":        {faults: networkCut(20*time.Second, time.Minute)},
	"network-one-way":        {faults: oneWay},
	"network-slow": {shape: shape{harness: func(i int, s *spec) {
		s.Verbs = []history.Verb{history.Fast, history.Fast, history.Exec, history.Write}
		if i == 0 {
			s.Stream, s.Lines, s.Fast = "big-stream", 30_000, true
		}
	}}, faults: slow},
	"worker-stopped-30s":       {faults: workerStopped},
	"worker-killed-restarted":  {faults: workerKilled},
	"duplicate-worker":         {faults: duplicate},
	"registrar-killed":         {faults: registrarKilled},
	"registrars-gone-60s":      {faults: registrarsGone},
	"leases-and-a-dead-worker": {shape: shape{harness: func(_ int, s *spec) { s.Lease = true }}, faults: workerKilled},
	"harness-killed": {shape: shape{harness: func(i int, s *spec) {
		if i == 0 {
			s.Stream = streamID
		}
	}}, faults: harnessKilled},
	"execs-500-on-4-slots": {shape: shape{boxes: 2, harness: func(_ int, s *spec) {
		s.Lease, s.Burst, s.Ops, s.NoNaps = true, 250, 10, true
		s.Verbs = []history.Verb{history.Exec}
	}}, faults: func(ctx context.Context, w *world) error { return w.mended(ctx) }},
	"credential-rotated": {shape: shape{life: credentialLife}, faults: rotated},
	"credential-revoked": {shape: shape{harness: func(_ int, s *spec) { s.Final = slices.DeleteFunc(s.Final, func(n string) bool { return n == box(2) }) }}, faults: revoked},
}

// lead is the time before a fault.
func (w *world) lead(ctx context.Context) error {
	return pause(ctx, time.Duration(300+w.rng.IntN(1200))*time.Millisecond)
}

// mended notes that all works again, and lets it for a while.
func (w *world) mended(ctx context.Context) error {
	w.note("mended")
	return pause(ctx, time.Duration(1000+w.rng.IntN(1000))*time.Millisecond)
}

// repeat does something so many times, one after the other.
func (w *world) repeat(ctx context.Context, one func() error) error {
	for range max(1, w.Rounds) {
		if err := errors.Join(w.lead(ctx), one(), w.mended(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// within is a time up to a bound.
func (w *world) within(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

func hubKilled(wiped bool) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		return w.repeat(ctx, func() error {
			w.note("hub killed")
			w.hub[0].kill()
			if wiped {
				if err := os.RemoveAll(w.store(0)); err != nil {
					return err
				}
			}
			return errors.Join(pause(ctx, w.within(2*time.Second)), w.startHub(0))
		})
	}
}

// leaderKilled kills the server that leads the presence bucket.
func leaderKilled(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		i, err := w.leader(ctx)
		if err != nil {
			return err
		}
		w.note("hub server %d killed, the leader", i)
		w.hub[i].kill()
		return errors.Join(pause(ctx, time.Second+w.within(4*time.Second)), w.startHub(i))
	})
}

// leader is the server that leads the presence bucket.
func (w *world) leader(ctx context.Context) (leader int, err error) {
	last := ""
	err = poll(ctx, func() (bool, error) {
		var answer struct {
			Accounts []struct {
				Streams []struct {
					Name    string `json:"name"`
					Cluster struct {
						Leader string `json:"leader"`
					} `json:"cluster"`
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		for i := range w.hub {
			if err := w.ask(ctx, i, "/jsz?accounts=true&streams=true", &answer); err != nil {
				last = err.Error()
				continue
			}
			for _, a := range answer.Accounts {
				for _, s := range a.Streams {
					last = s.Name + " is led by " + s.Cluster.Leader
					if s.Name != "KV_"+bus.PresenceBucket {
						continue
					}
					if _, err := fmt.Sscanf(s.Cluster.Leader, "n%d-", &leader); err == nil {
						return true, nil
					}
				}
			}
		}
		return false, nil
	}, func() string { return "no server leads: " + last })
	return leader, err
}

// networkCut cuts the network of a sandbox.
func networkCut(short, whole time.Duration) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		d := short
		if *long {
			d = whole
		}
		if d > time.Second {
			w.Rounds = 1
		}
		return w.repeat(ctx, func() error {
			w.note("network of %s cut for %s", box(0), d)
			w.eachLink((*link.Link).Cut, box(0))
			err := pause(ctx, d)
			w.eachLink((*link.Link).Mend, box(0))
			return err
		})
	}
}

// oneWay swallows what one side says, or what is said to it. TCP would send it again: so the connections end with it.
func oneWay(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		side := []string{box(0), "h0", "registrar-0"}[w.rng.IntN(3)]
		forth, back := link.Rules{Hole: true}, link.Rules{}
		if w.rng.IntN(2) == 0 {
			forth, back = back, forth
		}
		w.note("link of %s swallows: to the hub %v, from it %v", side, forth.Hole, back.Hole)
		w.eachLink(func(l *link.Link) { l.Set(forth, back) }, side)
		err := pause(ctx, 2*time.Second+w.within(4*time.Second))
		w.eachLink((*link.Link).Cut, side)
		w.eachLink((*link.Link).Mend, side)
		return err
	})
}

func slow(ctx context.Context, w *world) error {
	w.note("link of %s takes 64 KiB/s", box(0))
	w.eachLink(func(l *link.Link) { l.Set(link.Rules{Rate: 64 << 10}, link.Rules{}) }, box(0))
	if err := pause(ctx, 8*time.Second); err != nil {
		return err
	}
	w.eachLink((*link.Link).Mend, box(0))
	return w.mended(ctx)
}

// workerStopped freezes a worker, for less than presence lasts or for more.
func workerStopped(ctx context.Context, w *world) error {
	d := 4 * time.Second
	switch {
	case *long:
		d = 30 * time.Second
	case w.Seed%2 == 0:
		d = bus.PresenceTTL + 3*time.Second
	}
	w.Rounds = 1
	return w.repeat(ctx, func() error {
		w.note("%s stopped for %s", box(0), d)
		w.workers[0].signal(syscall.SIGSTOP)
		err := pause(ctx, d)
		w.workers[0].signal(syscall.SIGCONT)
		return err
	})
}

func workerKilled(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		w.note("%s killed", box(0))
		w.workers[0].kill()
		return errors.Join(pause(ctx, w.within(2*time.Second)), w.startWorker(0))
	})
}

// duplicate starts a second worker of a sandbox, which must not stay, and must not disturb the first.
func duplicate(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		w.note("a second worker of %s", box(0))
		p, err := w.workerProcess(0, "duplicate", "")
		if err != nil {
			return err
		}
		select {
		case <-p.ended:
		case <-time.After(patience):
			w.rec.Add(history.Event{Kind: history.Broken, Detail: "a duplicate worker does not end"})
			p.kill()
			return nil
		}
		if p.err == nil || !strings.Contains(p.tail(3), bus.ErrDuplicate.Error()) {
			w.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("a duplicate worker ended with %v: %s", p.err, p.tail(3))})
		}
		if w.workers[0].hasEnded() {
			w.rec.Add(history.Event{Kind: history.Broken, Detail: "the first worker ended"})
		}
		return nil
	})
}

func registrarKilled(ctx context.Context, w *world) error {
	return w.repeat(ctx, func() error {
		i := w.rng.IntN(len(w.registrars))
		w.note("registrar %d killed", i)
		w.registrars[i].kill()
		return errors.Join(pause(ctx, w.within(3*time.Second)), w.startRegistrar(i))
	})
}

// registrarsGone leaves nobody to keep presence. A harness that knows a sandbox goes on with it.
func registrarsGone(ctx context.Context, w *world) error {
	d := bus.PresenceTTL + 3*time.Second
	if *long {
		d = time.Minute
	}
	h, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	sb, err := h.Sandbox(box(1))
	if err != nil {
		return err
	}
	if err := sb.Command("true").Run(ctx); err != nil {
		return err
	}
	w.Rounds = 1
	return w.repeat(ctx, func() error {
		w.note("all registrars killed")
		for _, p := range w.registrars {
			p.kill()
		}
		if err := pause(ctx, d); err != nil {
			return err
		}
		if err := sb.Command("true").Run(ctx); err != nil {
			w.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("with no registrar for %s a sandbox that is known cannot be used: %v", d, err)})
		}
		var errs []error
		for i := range w.registrars {
			errs = append(errs, w.startRegistrar(i))
		}
		return errors.Join(errs...)
	})
}

// streamID is the exec whose harness dies.
const streamID = "h0-stream"

// harnessKilled kills a harness in the middle of a stream; another one attaches and gets all of it.
func harnessKilled(ctx context.Context, w *world) error {
	err := poll(ctx, func() (bool, error) {
		b, err := os.ReadFile(w.journal(0))
		return strings.Contains(string(b), streamID), err
	}, func() string { return "the stream has not begun" })
	if err != nil {
		return err
	}
	if err := w.lead(ctx); err != nil {
		return err
	}
	w.note("harness killed")
	w.harnesses[0].kill()
	w.died("h0")
	w.harnesses = w.harnesses[1:]
	h, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	sb, err := h.Sandbox(box(0))
	if err != nil {
		return err
	}
	got := &lineCounter{id: streamID}
	c := sb.AttachCommand(streamID)
	c.Stdout = got
	if err := c.Run(ctx); err != nil || got.lines != streamLines || got.wrong || c.Omitted != 0 {
		w.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("attached to a dead harness's exec: %d of %d lines, wrong %v, %d bytes omitted, %v",
			got.lines, streamLines, got.wrong, c.Omitted, err)})
	}
	return w.mended(ctx)
}

// credentialLife is how long credentials live that are replaced meanwhile: a third before its end a newer one is looked for.
const credentialLife = 24 * time.Second

// rotated gives all workers and harnesses newer credentials, again and again, for longer than one lives.
func rotated(ctx context.Context, w *world) error {
	replace := func(life time.Duration) (err error) {
		for i := range w.boxes {
			_, e := w.creds(box(i), bus.RoleSandbox, box(i), life)
			err = errors.Join(err, e)
		}
		for i := range harnesses {
			side := fmt.Sprintf("h%d", i)
			_, e := w.creds(side, bus.RoleHarness, side, life)
			err = errors.Join(err, e)
		}
		return err
	}
	w.note("credentials are replaced")
	for begin := time.Now(); time.Since(begin) < credentialLife+2*time.Second; {
		if err := errors.Join(replace(credentialLife), pause(ctx, 3*time.Second)); err != nil {
			return err
		}
	}
	return errors.Join(replace(0), w.mended(ctx))
}

// revoked takes a worker's credential away. Its worker ends; nobody else is disturbed.
func revoked(ctx context.Context, w *world) error {
	if err := w.lead(ctx); err != nil {
		return err
	}
	entries, err := w.keys.Find(auth.DefaultTenant, bus.RoleSandbox, bus.DefaultZone, box(2))
	if err != nil {
		return err
	}
	admin, err := w.keys.Admin()
	if err != nil {
		return err
	}
	conn, err := bus.Connect(ctx, bus.Config{URL: "nats://" + w.hubAddr(0, clientPort), Credential: admin, ConnectTimeout: patience})
	if err != nil {
		return err
	}
	defer conn.Close()
	w.note("credential of %s revoked", box(2))
	for _, e := range entries {
		if err := w.keys.Revoke(ctx, conn, auth.DefaultTenant, e.Key); err != nil {
			return err
		}
	}
	select {
	case <-w.workers[2].ended:
		if w.workers[2].err == nil || !strings.Contains(w.workers[2].tail(3), bus.ErrRevoked.Error()) {
			w.rec.Add(history.Event{Kind: history.Broken, Detail: fmt.Sprintf("a revoked worker ended with %v: %s", w.workers[2].err, w.workers[2].tail(3))})
		}
	case <-time.After(patience):
		w.rec.Add(history.Event{Kind: history.Broken, Detail: "a revoked worker does not end"})
	}
	return w.mended(ctx)
}
