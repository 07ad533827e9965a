package sandbus_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

var errEnough = errors.New("enough")

// TestAbortOfAFlood gives up a command whose output never pauses.
func TestAbortOfAFlood(t *testing.T) {
	p := start(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c := p.Command("yes")
	n := 0
	c.Stdout = writerFunc(func(b []byte) (int, error) {
		if n += len(b); n > 4<<20 {
			cancel(errEnough)
		}
		return len(b), nil
	})
	err := c.Run(ctx)
	require.ErrorIs(t, err, harnesslib.ErrAborted)
	require.ErrorIs(t, err, errEnough)
	require.Equal(t, harnesslib.Aborted, c.Outcome.Kind)
}

// narrow is a way to the hub on which all connections together carry so many bytes a second towards it.
type narrow struct {
	url string

	once sync.Once
	wide chan struct{} // closed when it is narrow no more

	mu   sync.Mutex // guards the field below
	free time.Time  // when the link has sent what it was given
}

// open makes the way as wide as it can be.
func (w *narrow) open() { w.once.Do(func() { close(w.wide) }) }

func (n *network) narrow(t *testing.T, bytesPerSecond int) *narrow {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &narrow{url: fmt.Sprintf("nats://%s", l.Addr()), wide: make(chan struct{})}
	var wg sync.WaitGroup
	carry := func(to, from net.Conn, slow bool) {
		buf := make([]byte, 2<<10)
		for {
			k, err := from.Read(buf)
			if slow {
				w.wait(time.Duration(k)*time.Second/time.Duration(bytesPerSecond))
			}
			if _, werr := to.Write(buf[:k]); err != nil || werr != nil {
				_ = to.Close()
				_ = from.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(n.hub.URL(), "nats://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			_ = near.(*net.TCPConn).SetReadBuffer(4 << 10) // else the kernel takes in whole windows
			wg.Go(func() { carry(far, near, true) })
			wg.Go(func() { carry(near, far, false) })
		}
	})
	t.Cleanup(func() {
		w.open()
		_ = l.Close()
		wg.Wait()
	})
	return w
}

// wait takes its turn on the link.
func (w *narrow) wait(d time.Duration) {
	w.mu.Lock()
	now := time.Now()
	if w.free.Before(now) {
		w.free = now
	}
	w.free = w.free.Add(d)
	due := time.NewTimer(w.free.Sub(now))
	w.mu.Unlock()
	defer due.Stop()
	select {
	case <-due.C:
	case <-w.wide:
	}
}

// TestAbortBehindAFullLink aborts a command on a link on which the windows of several others are waiting: the end of its
// stream would take half a minute. The abort is confirmed all the same, and what did not come is counted.
func TestAbortBehindAFullLink(t *testing.T) {
	n := newNetwork(t)
	slow := n.narrow(t, 64<<10)
	n.workerProcess(t, slow.url)
	p := n.place(t, n.hub.URL())
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	got := int64(0)
	c := p.Command("sh", "-c", "echo up; while ! [ -e go ]; do sleep 0.05; done; head -c 600000 /dev/zero; sleep 300")
	up := make(chan struct{})
	c.Stdout = writerFunc(func(b []byte) (int, error) {
		if got == 0 {
			close(up)
		}
		got += int64(len(b))
		return len(b), nil
	})
	mine, abort := context.WithCancelCause(t.Context())
	defer abort(nil)
	require.NoError(t, c.Start(mine))
	<-up
	var flowing, ended sync.WaitGroup
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "go"), nil, 0o600))
	for range 4 {
		var once sync.Once
		flowing.Add(1)
		flood := p.Command("yes")
		flood.Stdout = writerFunc(func(b []byte) (int, error) {
			once.Do(flowing.Done)
			return len(b), nil
		})
		require.NoError(t, flood.Start(ctx))
		ended.Go(func() { _ = flood.Wait() }) // of the others nothing is asked
	}
	flowing.Wait()
	abort(errEnough)
	err := c.Wait()
	require.ErrorIs(t, err, harnesslib.ErrAborted)
	require.Equal(t, harnesslib.Aborted, c.Outcome.Kind)
	require.Positive(t, c.Omitted)
	require.LessOrEqual(t, got+c.Omitted, int64(600_000+len("up\n")))
	slow.open()
	cancel(errEnough)
	ended.Wait()
}

// TestInputSurvivesCuts feeds a command while the connection of either side is cut again and again: each byte arrives once.
func TestInputSurvivesCuts(t *testing.T) {
	for _, side := range []string{"harness", "worker"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			cuttable := n.proxy(t)
			workerURL, harnessURL := n.hub.URL(), n.hub.URL()
			if side == "worker" {
				workerURL = cuttable.url
			} else {
				harnessURL = cuttable.url
			}
			n.workerProcess(t, workerURL)
			p := n.place(t, harnessURL)
			data := make([]byte, 6<<20)
			_, _ = rand.NewChaCha8([32]byte{2}).Read(data) // never fails
			c := p.Command("sh", "-c", "tee copy | sha256sum; wc -c <copy")
			c.Stdin = &cutting{Reader: bytes.NewReader(data), every: 2 << 20, cut: func() {
				cuttable.cut()
				cuttable.mend()
			}}
			out, err := c.Output(t.Context())
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%x  -\n%d\n", sha256.Sum256(data), len(data)), string(out))
		})
	}
}

// cutting cuts something now and then while it is read.
type cutting struct {
	io.Reader
	every int
	cut   func()
	n     int
}

func (c *cutting) Read(b []byte) (int, error) {
	before := c.n / c.every
	n, err := c.Reader.Read(b)
	if c.n += n; c.n/c.every > before {
		c.cut()
	}
	return n, err
}

// TestC48BothAreCut cuts everybody's connection at once, a hub that restarts, under commands of both tiers.
func TestC48BothAreCut(t *testing.T) {
	n := newNetwork(t)
	cuttable := n.proxy(t)
	n.workerProcess(t, cuttable.url)
	p := n.place(t, cuttable.url)
	c := p.Command("sh", "-c", "for i in $(seq 1 200); do echo $i; sleep 0.02; done")
	var out lockedBuffer
	c.Stdout = &out
	require.NoError(t, c.Start(t.Context()))
	fast := make(chan error, 1)
	go func() {
		got, err := p.ScriptCommand("echo run >>runs; sleep 1; echo done").Output(t.Context())
		if err == nil && string(got) != "done\n" {
			err = fmt.Errorf("it printed %q", got)
		}
		fast <- err
	}()
	appears(t, &place{dir: n.dir}, "runs")
	cuttable.cut()
	<-time.After(2 * time.Second) // the command ends meanwhile
	cuttable.mend()
	require.NoError(t, <-fast)
	require.NoError(t, c.Wait())
	var want strings.Builder
	for i := 1; i <= 200; i++ {
		fmt.Fprintln(&want, i)
	}
	require.Equal(t, want.String(), out.String(), "all lines, once")
	runs, err := os.ReadFile(filepath.Join(n.dir, "runs"))
	require.NoError(t, err)
	require.Equal(t, "run\n", string(runs), "one run")
}

// TestC51AbandonedStreams opens 10,000 streams and leaves them, some of them with output waiting. Nothing of them stays.
func TestC51AbandonedStreams(t *testing.T) {
	p := start(t, nil)
	c := p.Command("sh", "-c", "head -c 100000 /dev/zero; sleep 300")
	c.ID, c.Detach = string(bus.NewOpID()), true
	require.NoError(t, c.Run(t.Context()))
	defer func() { require.NoError(t, p.Abort(t.Context(), c.ID)) }()
	info, err := p.Info(t.Context())
	require.NoError(t, err)
	caller, err := bus.NewCaller(p.bus.Connect(t, bus.RoleHarness, "careless"))
	require.NoError(t, err)
	defer caller.Close()
	abandon := func(count int) {
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				for range count / len(errs) {
					if errs[i] = abandonOne(t.Context(), caller, info.Target(), c.ID); errs[i] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
	}
	abandon(80)
	readers := func() int {
		list, err := p.Execs(t.Context())
		require.NoError(t, err)
		return list[0].Readers
	}
	settled := func() bool { return readers() == 0 }
	require.Eventually(t, settled, 60*time.Second, 10*time.Millisecond)
	goroutines, files, subs := runtime.NumGoroutine(), descriptors(t), p.bus.Subscriptions()
	abandon(10_000)
	require.Eventually(t, func() bool {
		return settled() && runtime.NumGoroutine() <= goroutines+20 && descriptors(t) <= files+5 && p.bus.Subscriptions() <= subs+10
	}, 60*time.Second, 10*time.Millisecond, "%d goroutines before, %d after; %d and %d descriptors; %d and %d subscriptions",
		goroutines, runtime.NumGoroutine(), files, descriptors(t), subs, p.bus.Subscriptions())
}

// abandonOne reads a little of an exec's output and gives it up without a word to the exec.
func abandonOne(ctx context.Context, c *bus.Caller, t bus.Target, id string) error {
	op := bus.NewOpID()
	st, err := c.Open(ctx, t, "exec.attach", op, &sandbusv1.ExecAttachRequest{Meta: &sandbusv1.RequestMeta{Op: string(op)}, ExecId: id}, 0, false)
	if err != nil {
		return err
	}
	defer st.Close()
	_, err = st.Next(ctx)
	return err
}
