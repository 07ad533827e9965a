package bothsides

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd"
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

// full is a connection on which nothing leaves while it is shut.
type full struct {
	net.Conn
	shut *sync.RWMutex
}

func (f full) Write(b []byte) (int, error) {
	f.shut.RLock()
	defer f.shut.RUnlock()
	return f.Conn.Write(b)
}

// TestAbortBehindAFullLink aborts a command while the connection of the worker's streams takes nothing more, so that the end
// of its stream does not come. The abort is confirmed all the same, beside it, and what did not come is counted.
func TestAbortBehindAFullLink(t *testing.T) {
	var link sync.RWMutex // locked while the link is full
	b := bustest.Start(t)
	var dials atomic.Int32
	startWorker(t, b, "box", func(c *workerd.Config) {
		c.Dir = t.TempDir()
		dial := c.Dial
		c.Dial = func() (net.Conn, error) {
			n, err := dial()
			if dials.Add(1) == 2 { // the second one is for the streams
				n = full{n, &link}
			}
			return n, err
		}
	})
	sb, err := connect(t, b).Sandbox("box")
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c := sb.Command("yes")
	var got atomic.Int64
	shut := false
	c.Stdout = writerFunc(func(b []byte) (int, error) {
		if got.Add(int64(len(b))) > 1<<20 && !shut {
			shut = true
			link.Lock()
			go func() { // once there is output that cannot come
				for {
					list, err := sb.Execs(t.Context())
					if err != nil || len(list) == 1 && list[0].Output > got.Load() {
						cancel(errEnough)
						return
					}
				}
			}()
		}
		return len(b), nil
	})
	err = c.Run(ctx)
	if shut {
		link.Unlock()
	}
	require.ErrorIs(t, err, harnesslib.ErrAborted)
	require.ErrorIs(t, err, errEnough)
	require.Equal(t, harnesslib.Aborted, c.Outcome.Kind)
	require.Positive(t, c.Omitted)
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
