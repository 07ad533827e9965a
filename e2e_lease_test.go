package sandbus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd"
)

// connectAs connects a harness of another identity.
func connectAs(tb testing.TB, b *bustest.Bus, name string) *harnesslib.Hub {
	tb.Helper()
	cred, err := b.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: name})
	require.NoError(tb, err)
	h, err := harnesslib.Connect(tb.Context(), harnesslib.Config{URL: b.URL(), Dial: b.Dial, Token: cred.Token(), Logger: bustest.Logger(tb)})
	require.NoError(tb, err)
	tb.Cleanup(h.Close)
	return h
}

func acquire(tb testing.TB, h *harnesslib.Hub, o harnesslib.AcquireOptions) *harnesslib.Lease {
	tb.Helper()
	l, err := h.Acquire(tb.Context(), o)
	require.NoError(tb, err)
	return l
}

// lost waits for a lease's end and its cause.
func lost(t *testing.T, l *harnesslib.Lease, why error) {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(60 * time.Second):
		require.Fail(t, "the lease has not ended")
	}
	require.ErrorIs(t, l.Cause(), why)
}

// rawHarness sends requests as they are.
type rawHarness struct {
	*bus.Caller
	target bus.Target
}

func (p *place) raw(t *testing.T, name string) rawHarness {
	t.Helper()
	c, err := bus.NewCaller(p.bus.Connect(t, bus.RoleHarness, name))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	info, err := p.Info(t.Context())
	require.NoError(t, err)
	return rawHarness{c, info.Target()}
}

func (r rawHarness) acquire(t *testing.T, req *sandbusv1.LeaseAcquireRequest) (*sandbusv1.LeaseAcquireResponse, error) {
	t.Helper()
	resp := &sandbusv1.LeaseAcquireResponse{}
	return resp, r.Request(t.Context(), r.target, "lease.acquire", "", req, resp)
}

// stream asks for a stream and returns why there is none.
func (r rawHarness) stream(t *testing.T, verb string, op bus.OpID, req proto.Message) error {
	t.Helper()
	st, err := r.Open(t.Context(), r.target, verb, op, req, 0, true)
	require.NoError(t, err)
	defer st.Close()
	_, err = st.Next(t.Context())
	return err
}

// TestC71FencedHolder has an old holder ask for everything after its lease went to another: nothing runs.
func TestC71FencedHolder(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.Slots = 1 })
	old := p.raw(t, "old")
	first, err := old.acquire(t, &sandbusv1.LeaseAcquireRequest{})
	require.NoError(t, err)
	meta := func() *sandbusv1.RequestMeta {
		return &sandbusv1.RequestMeta{Op: string(bus.NewOpID()), Lease: first.GetLease()}
	}
	write := func() error {
		return old.Request(t.Context(), old.target, "fs.write", "", &sandbusv1.WriteRequest{
			Meta: &sandbusv1.RequestMeta{Lease: first.GetLease()}, Path: "written", Data: []byte("x"), NoSync: true,
		}, &sandbusv1.WriteResponse{})
	}
	require.NoError(t, write())
	require.NoError(t, os.Remove(filepath.Join(p.dir, "written")))
	require.NoError(t, old.Request(t.Context(), old.target, "lease.release", "",
		&sandbusv1.LeaseReleaseRequest{Meta: &sandbusv1.RequestMeta{Lease: first.GetLease()}}, &sandbusv1.LeaseReleaseResponse{}))
	next := p.raw(t, "next")
	second, err := next.acquire(t, &sandbusv1.LeaseAcquireRequest{})
	require.NoError(t, err)
	require.Greater(t, second.GetEpoch(), first.GetEpoch())

	touch := "touch " + filepath.Join(p.dir, "ran")
	for verb, ask := range map[string]func(string) error{
		"fs.write": func(string) error { return write() },
		"fs.mkdir": func(verb string) error {
			return old.Request(t.Context(), old.target, verb, "", &sandbusv1.MkdirRequest{Meta: &sandbusv1.RequestMeta{Lease: first.GetLease()}, Path: "made"}, &sandbusv1.MkdirResponse{})
		},
		"shell.run": func(verb string) error {
			m := meta()
			return old.Request(t.Context(), old.target, verb, bus.OpID(m.GetOp()), &sandbusv1.ShellRunRequest{Meta: m, Script: touch}, &sandbusv1.ShellRunResponse{})
		},
		"exec.start": func(verb string) error {
			m := meta()
			return old.stream(t, verb, bus.OpID(m.GetOp()), &sandbusv1.ExecStartRequest{Meta: m, Script: touch})
		},
		"fs.upload": func(verb string) error {
			m := meta()
			return old.stream(t, verb, bus.OpID(m.GetOp()), &sandbusv1.UploadRequest{Meta: m, Path: "up", Id: "id", Size: 1})
		},
		"net.dial": func(verb string) error {
			m := meta()
			return old.stream(t, verb, bus.OpID(m.GetOp()), &sandbusv1.DialRequest{Meta: m, Network: "tcp", Address: "127.0.0.1:1"})
		},
		"session.open": func(verb string) error {
			return old.Request(t.Context(), old.target, verb, "", &sandbusv1.SessionOpenRequest{Meta: &sandbusv1.RequestMeta{Lease: first.GetLease()}, Name: "s"}, &sandbusv1.SessionOpenResponse{})
		},
		"lease.renew": func(verb string) error {
			return old.Request(t.Context(), old.target, verb, "", &sandbusv1.LeaseRenewRequest{Meta: &sandbusv1.RequestMeta{Lease: first.GetLease()}}, &sandbusv1.LeaseRenewResponse{})
		},
	} {
		err := ask(verb)
		require.ErrorIs(t, err, bus.ErrFenced, verb)
		require.ErrorContains(t, err, "its holder has released it", verb)
	}
	stolen := old.Request(t.Context(), old.target, "fs.stat", "",
		&sandbusv1.StatRequest{Meta: &sandbusv1.RequestMeta{Lease: second.GetLease()}, Path: "."}, &sandbusv1.StatResponse{})
	require.ErrorIs(t, stolen, bus.ErrFenced)
	require.ErrorContains(t, stolen, "another harness's")
	left, err := os.ReadDir(p.dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing ran")
	require.NoError(t, next.Request(t.Context(), next.target, "fs.stat", "",
		&sandbusv1.StatRequest{Meta: &sandbusv1.RequestMeta{Lease: second.GetLease()}, Path: "."}, &sandbusv1.StatResponse{}))
}

func TestLeaseRequestsOutOfBounds(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.Slots = 2 })
	r := p.raw(t, "h")
	for want, req := range map[string]*sandbusv1.LeaseAcquireRequest{
		"1000 to 3600000": {TtlMs: -1},
		"ttl_ms 3600001":  {TtlMs: 3_600_001},
		"ttl_ms 999":      {TtlMs: 999},
		"cap -1":          {Cap: -1},
		"1 to 65535":      {Cap: 65536},
		"0 to 604800000":  {Ticket: "t", WaitedMs: -1},
		"ticket":          {Ticket: "A B"},
	} {
		_, err := r.acquire(t, req)
		be, ok := errors.AsType[*bus.Error](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, sandbusv1.Code_CODE_INVALID, be.Code)
		require.ErrorContains(t, err, want)
	}
	resp, err := r.acquire(t, &sandbusv1.LeaseAcquireRequest{Exclusive: true})
	require.NoError(t, err)
	require.EqualValues(t, 2, resp.GetUsed())
	require.EqualValues(t, 60_000, resp.GetTtlMs())
	busy, err := r.acquire(t, &sandbusv1.LeaseAcquireRequest{})
	be, ok := errors.AsType[*bus.Error](err)
	require.True(t, ok)
	require.Equal(t, sandbusv1.Code_CODE_BUSY, be.Code)
	require.EqualValues(t, 2, busy.GetSlots())
	require.EqualValues(t, 2, busy.GetUsed(), "the true load")
	for name, req := range map[string]*sandbusv1.LeaseReleaseRequest{
		"neither": {},
		"both":    {Meta: &sandbusv1.RequestMeta{Lease: resp.GetLease()}, AcquireOp: "op"},
	} {
		err := r.Request(t.Context(), r.target, "lease.release", "", req, &sandbusv1.LeaseReleaseResponse{})
		require.ErrorContains(t, err, "either", name)
	}
	err = r.Request(t.Context(), r.target, "fs.stat", "",
		&sandbusv1.StatRequest{Meta: &sandbusv1.RequestMeta{Lease: strings.Repeat("wrong", 1000)}, Path: "."}, &sandbusv1.StatResponse{})
	require.ErrorIs(t, err, bus.ErrFenced)
	require.ErrorContains(t, err, "not granted it")
}

// TestManyClientsFewSlots has 40 clients in four processes' worth of hubs use 20 slots of 5 sandboxes. Each sandbox
// counts for itself, by a directory that each holder makes in it.
func TestManyClientsFewSlots(t *testing.T) {
	const sandboxes, slots, clients, rounds = 5, 4, 40, 3
	b := bustest.Start(t)
	for i := range sandboxes {
		dir := t.TempDir()
		startWorker(t, b, fmt.Sprintf("box%d", i), func(c *workerd.Config) { c.Dir, c.Slots, c.Shell = dir, slots, "sh" })
	}
	hubs := make([]*harnesslib.Hub, 4)
	for i := range hubs {
		hubs[i] = connectAs(t, b, fmt.Sprintf("h%d", i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	client := func(i int) error {
		for round := range rounds {
			l, err := hubs[i%len(hubs)].Acquire(ctx, harnesslib.AcquireOptions{Wait: true})
			if err != nil {
				return err
			}
			sb := l.Sandbox()
			name := fmt.Sprintf("holder-%d-%d", i, round)
			if err := sb.Mkdir(ctx, name, 0o755); err != nil {
				return err
			}
			there, err := sb.ReadDir(ctx, ".")
			if err != nil {
				return err
			}
			if len(there) > slots {
				return fmt.Errorf("%d hold %s at once, it has %d slots", len(there), sb.ID(), slots)
			}
			if err := sb.Remove(ctx, name); err != nil {
				return err
			}
			if err := l.Release(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { errs[i] = client(i) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	var granted, released int64
	for _, h := range hubs {
		s := h.LeaseStats()
		granted, released = granted+s.Granted, released+s.Released
		require.Zero(t, s.Held)
		require.Zero(t, s.Waiting)
	}
	require.EqualValues(t, clients*rounds, granted)
	require.EqualValues(t, clients*rounds, released)
}

// TestLeasesAndRestart restarts the worker: its leases are gone, and the new instance knows none of them.
func TestLeasesAndRestart(t *testing.T) {
	b := bustest.Start(t)
	dir := t.TempDir()
	configure := func(c *workerd.Config) { c.Dir, c.Slots = dir, 1 }
	stop := startWorker(t, b, "box", configure)
	h := connect(t, b)
	l := acquire(t, h, harnesslib.AcquireOptions{})
	require.NoError(t, l.Sandbox().WriteFile(t.Context(), "a", []byte("x"), 0o644))
	running := l.Sandbox().Command("sleep", "1000")
	require.NoError(t, running.Start(t.Context()))
	stop()
	require.Error(t, running.Wait())
	startWorker(t, b, "box", configure)
	lost(t, l, harnesslib.ErrGone)
	_, err := l.Sandbox().ReadFile(t.Context(), "a")
	require.ErrorIs(t, err, harnesslib.ErrGone)
	require.ErrorIs(t, l.Release(t.Context()), harnesslib.ErrGone)
	var next *harnesslib.Lease
	require.Eventually(t, func() bool {
		next, err = h.Acquire(t.Context(), harnesslib.AcquireOptions{})
		return err == nil
	}, 60*time.Second, 10*time.Millisecond)
	require.EqualValues(t, 1, next.Epoch(), "a new instance counts anew")
	require.EqualValues(t, 1, h.LeaseStats().Gone)
}

// TestTheEndOfALease sees what ends with a lease and what does not.
func TestTheEndOfALease(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.Slots = 2 })
	h := connectAs(t, p.bus, "h")
	l := acquire(t, h, harnesslib.AcquireOptions{})
	sb := l.Sandbox()
	plain := p.Command("sh", "-c", "echo $$ >plain; exec sleep 1000") // without a lease
	require.NoError(t, plain.Start(t.Context()))
	appears(t, p, "plain")
	held := sb.Command("sh", "-c", "echo $$ >held; exec sleep 1000")
	require.NoError(t, held.Start(t.Context()))
	detached := sb.Command("sh", "-c", "echo $$ >detached; echo out; exec sleep 1000")
	detached.Detach = true
	require.NoError(t, detached.Run(t.Context()))
	fast := make(chan error, 1)
	go func() {
		_, err := sb.ScriptCommand("echo $$ >fast; sleep 1000").Output(t.Context())
		fast <- err
	}()
	s, err := sb.Session(t.Context(), "work", "")
	require.NoError(t, err)
	_, err = s.Run(t.Context(), "V=kept")
	require.NoError(t, err)
	for _, f := range []string{"held", "detached", "fast"} {
		appears(t, p, f)
	}
	require.NoError(t, l.Release(t.Context()))
	require.ErrorIs(t, held.Wait(), harnesslib.ErrReleased)
	require.ErrorIs(t, <-fast, harnesslib.ErrReleased)
	_, err = s.Run(t.Context(), "true")
	require.ErrorIs(t, err, harnesslib.ErrReleased)
	ended := func(file string) bool { return !alive(pidIn(t, p, file)) }
	require.Eventually(t, func() bool { return ended("held") }, 60*time.Second, 5*time.Millisecond)
	require.False(t, ended("detached"))
	require.False(t, ended("plain"))

	// A successor of the same harness, in another process, finds what was left.
	next := acquire(t, connectAs(t, p.bus, "h"), harnesslib.AcquireOptions{})
	s, err = next.Sandbox().Session(t.Context(), "work", "")
	require.NoError(t, err)
	res, err := s.Run(t.Context(), "echo $V")
	require.NoError(t, err)
	require.Equal(t, "kept\n", string(res.Stdout))
	attached := next.Sandbox().AttachCommand(detached.ID)
	attached.NoFollow = true
	out, err := attached.Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "out\n", string(out))
	theirs := acquire(t, connectAs(t, p.bus, "other"), harnesslib.AcquireOptions{})
	_, err = theirs.Sandbox().AttachCommand(detached.ID).Output(t.Context())
	require.ErrorContains(t, err, "lease of harness h")
	require.NoError(t, next.Sandbox().Abort(t.Context(), detached.ID))
	require.Eventually(t, func() bool { return ended("detached") }, 60*time.Second, 5*time.Millisecond)
	require.NoError(t, p.Abort(t.Context(), plain.ID))
	require.ErrorIs(t, plain.Wait(), harnesslib.ErrAborted)
}

func pidIn(t *testing.T, p *place, file string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(p.dir, file))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	require.NoError(t, err)
	return pid
}

// TestNobodyComesBack ends what a harness left behind when nobody has come back for it for a while.
func TestNobodyComesBack(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.LeaseKeep = 300 * time.Millisecond })
	h := connectAs(t, p.bus, "h")
	l := acquire(t, h, harnesslib.AcquireOptions{})
	detached := l.Sandbox().Command("sh", "-c", "echo $$ >detached; exec sleep 1000")
	detached.Detach = true
	require.NoError(t, detached.Run(t.Context()))
	appears(t, p, "detached")
	_, err := l.Sandbox().Session(t.Context(), "leased", "")
	require.NoError(t, err)
	mine, err := h.Sandbox("box")
	require.NoError(t, err)
	_, err = mine.Session(t.Context(), "plain", "")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
	require.Eventually(t, func() bool { return !alive(pidIn(t, p, "detached")) }, 60*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		list, err := mine.Sessions(t.Context())
		require.NoError(t, err)
		return len(list) == 1 && list[0].Name == "plain"
	}, 60*time.Second, 5*time.Millisecond)
}

// TestACommandEndsWithItsLease sees what the worker does by itself when a lease ends under which things run.
func TestACommandEndsWithItsLease(t *testing.T) {
	p := start(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second) // never a hang
	defer cancel()
	r := p.raw(t, "h")
	l, err := r.acquire(t, &sandbusv1.LeaseAcquireRequest{})
	require.NoError(t, err)
	meta := func(op bus.OpID) *sandbusv1.RequestMeta {
		return &sandbusv1.RequestMeta{Op: string(op), Lease: l.GetLease()}
	}
	op, attached, fast := bus.NewOpID(), bus.NewOpID(), bus.NewOpID()
	st, err := r.Open(ctx, r.target, "exec.start", op, &sandbusv1.ExecStartRequest{Meta: meta(op), Script: "echo $$ >pid; exec sleep 1000"}, 0, false)
	require.NoError(t, err)
	defer st.Close()
	appears(t, p, "pid")
	view, err := r.Open(ctx, r.target, "exec.attach", attached, &sandbusv1.ExecAttachRequest{Meta: meta(attached), ExecId: string(op)}, 0, false)
	require.NoError(t, err)
	defer view.Close()
	for _, s := range []*bus.Stream{st, view} {
		f, err := s.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, bus.FrameStarted, f.Kind)
	}
	unary := make(chan error, 1)
	go func() {
		unary <- r.Request(ctx, r.target, "shell.run", fast,
			&sandbusv1.ShellRunRequest{Meta: meta(fast), Script: "echo $$ >fast; sleep 1000"}, &sandbusv1.ShellRunResponse{})
	}()
	appears(t, p, "fast")
	require.NoError(t, r.Request(ctx, r.target, "lease.release", "",
		&sandbusv1.LeaseReleaseRequest{Meta: meta("")}, &sandbusv1.LeaseReleaseResponse{}))
	require.ErrorIs(t, <-unary, bus.ErrFenced)
	for _, s := range []*bus.Stream{st, view} {
		_, err := s.Next(ctx)
		require.ErrorIs(t, err, bus.ErrFenced)
	}
	require.Eventually(t, func() bool { return !alive(pidIn(t, p, "pid")) }, 60*time.Second, 5*time.Millisecond)
}

// TestACutHolder cuts a holder off for longer than its lease lasts: both sides end it by their own clocks.
func TestACutHolder(t *testing.T) {
	n := newNetwork(t)
	n.workerProcess(t, n.hub.URL())
	cuttable := n.proxy(t)
	p := n.place(t, cuttable.url)
	l := acquire(t, p.hub, harnesslib.AcquireOptions{TTL: time.Second})
	running := l.Sandbox().Command("sh", "-c", "echo $$ >pid; exec sleep 1000")
	require.NoError(t, running.Start(t.Context()))
	appears(t, p, "pid")
	cuttable.cut()
	lost(t, l, harnesslib.ErrFenced)
	require.ErrorIs(t, running.Wait(), harnesslib.ErrFenced)
	require.Eventually(t, func() bool { return !alive(pidIn(t, p, "pid")) }, 60*time.Second, 5*time.Millisecond)
	cuttable.mend()
	require.ErrorIs(t, l.Sandbox().Command("true").Run(t.Context()), harnesslib.ErrFenced)
	require.EqualValues(t, 1, p.hub.LeaseStats().Fenced)
	require.NoError(t, acquire(t, p.hub, harnesslib.AcquireOptions{}).Release(t.Context()))
}

// TestQuarantine stops a worker's process so that it cannot confirm an abort.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	w := n.workerProcess(t, n.hub.URL())
	p := n.place(t, n.hub.URL())
	l := acquire(t, p.hub, harnesslib.AcquireOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	running := l.Sandbox().Command("sh", "-c", "echo $$ >pid; exec sleep 1000")
	require.NoError(t, running.Start(ctx))
	appears(t, p, "pid")
	require.NoError(t, w.Process.Signal(syscall.SIGSTOP))
	cancel(errors.New("the caller has had enough"))
	err := running.Wait()
	require.NoError(t, w.Process.Signal(syscall.SIGCONT))
	require.ErrorIs(t, err, harnesslib.ErrLost)
	require.ErrorIs(t, l.Cause(), harnesslib.ErrQuarantined)
	require.EqualValues(t, 1, p.hub.LeaseStats().Quarantined)
	require.ErrorIs(t, l.Sandbox().Command("true").Run(t.Context()), harnesslib.ErrQuarantined)
	_, err = p.hub.Acquire(t.Context(), harnesslib.AcquireOptions{})
	require.ErrorIs(t, err, harnesslib.ErrNoSandbox)
	require.NoError(t, p.Command("true").Run(t.Context()), "it answers again")
	_, err = p.hub.Acquire(t.Context(), harnesslib.AcquireOptions{})
	require.ErrorIs(t, err, harnesslib.ErrNoSandbox, "and is not used all the same")
	require.ErrorContains(t, err, "1 quarantined")

	require.NoError(t, w.Process.Signal(syscall.SIGTERM))
	require.NoError(t, w.Wait())
	n.workerProcess(t, n.hub.URL())
	require.Eventually(t, func() bool {
		l, err = p.hub.Acquire(t.Context(), harnesslib.AcquireOptions{})
		return err == nil
	}, 60*time.Second, 10*time.Millisecond, "a new instance is")
	require.NoError(t, l.Sandbox().Command("true").Run(t.Context()))
}

// TestALeaseOfADrainingWorker is kept, and no new one is had.
func TestALeaseOfADrainingWorker(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	dir := t.TempDir()
	stop := startWorker(t, b, "box", func(c *workerd.Config) { c.Dir, c.Slots, c.StopGrace = dir, 2, 60*time.Second })
	h := connect(t, b)
	l := acquire(t, h, harnesslib.AcquireOptions{TTL: time.Second}) // is renewed several times below
	running := l.Sandbox().Command("sh", "-c", "echo $$ >pid; read x; echo got $x")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	running.Stdin = r
	var out lockedBuffer
	running.Stdout = &out
	require.NoError(t, running.Start(t.Context()))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	require.Eventually(t, func() bool {
		_, err := h.Acquire(t.Context(), harnesslib.AcquireOptions{})
		return errors.Is(err, harnesslib.ErrNoSandbox) && strings.Contains(err.Error(), "1 draining")
	}, 60*time.Second, 10*time.Millisecond)
	begin := time.Now()
	require.Eventually(t, func() bool { return time.Since(begin) > 2*time.Second }, 60*time.Second, 50*time.Millisecond)
	require.NoError(t, l.Cause())
	_, err = w.WriteString("it\n")
	require.NoError(t, err)
	require.NoError(t, running.Wait())
	require.Equal(t, "got it\n", out.String())
	require.NoError(t, w.Close())
	<-stopped
	lost(t, l, harnesslib.ErrGone)
}

func TestExclusiveLease(t *testing.T) {
	t.Parallel()
	p := start(t, func(c *workerd.Config) { c.Slots = 3 })
	h := connectAs(t, p.bus, "h")
	one := acquire(t, h, harnesslib.AcquireOptions{})
	_, err := h.Acquire(t.Context(), harnesslib.AcquireOptions{Exclusive: true})
	require.ErrorIs(t, err, harnesslib.ErrPoolSaturated)
	got := make(chan *harnesslib.Lease, 1)
	go func() {
		l, err := h.Acquire(t.Context(), harnesslib.AcquireOptions{Exclusive: true, Wait: true})
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	require.NoError(t, one.Release(t.Context()))
	l := <-got
	require.NotNil(t, l)
	other := connectAs(t, p.bus, "other")
	_, err = other.Acquire(t.Context(), harnesslib.AcquireOptions{})
	var se *harnesslib.SaturatedError
	require.ErrorAs(t, err, &se)
	require.Equal(t, 3, se.Used)
	list, err := p.Leases(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, list.Used)
	require.Len(t, list.Leases, 1)
	require.True(t, list.Leases[0].Exclusive)
	require.Equal(t, "h", list.Leases[0].Harness)
	require.Eventually(t, func() bool { // the beats say it, too
		info, err := p.Info(t.Context())
		require.NoError(t, err)
		return info.Used == 3 && info.Slots == 3
	}, 60*time.Second, 20*time.Millisecond)
	require.NoError(t, l.Release(t.Context()))
	acquire(t, other, harnesslib.AcquireOptions{})
}

func TestALeaseIsRequired(t *testing.T) {
	p := start(t, func(c *workerd.Config) { c.RequireLease = true })
	_, err := p.ReadFile(t.Context(), "/etc/hostname")
	require.ErrorIs(t, err, harnesslib.ErrFenced)
	require.ErrorContains(t, err, "acquire one")
	require.ErrorIs(t, p.Command("touch", "x").Run(t.Context()), harnesslib.ErrFenced)
	l := acquire(t, p.hub, harnesslib.AcquireOptions{})
	require.NoError(t, l.Sandbox().Command("touch", "y").Run(t.Context()))
	left, err := l.Sandbox().ReadDir(t.Context(), ".")
	require.NoError(t, err)
	require.Len(t, left, 1)
	list, err := p.Leases(t.Context())
	require.NoError(t, err)
	require.True(t, list.Required)
	require.NoError(t, l.Release(t.Context()))
	require.ErrorIs(t, p.Command("true").Run(t.Context()), harnesslib.ErrFenced)
}
