package bothsides

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/bus/bustest/hostile"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// asked makes the requests that hostile workers answer.
func asked(t *testing.T, sb *harnesslib.Sandbox, w *hostile.Worker, b hostile.Behaviour) error {
	ctx := t.Context()
	if b.Want == "not confirmed" { // nothing but our own patience ends it
		short, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			select {
			case <-w.Asked():
				cancel(errEnough)
			case <-short.Done():
			}
		}()
		ctx = short
	}
	switch b.Verb {
	case "exec.start":
		c := sb.Command("x")
		if b.Name == "two ends" { // what follows the end must be there when the end is looked at
			c.Stdout = slowly{func() { _, _ = sb.Stat(ctx, "x") }}
		} else {
			c.Stdout = io.Discard
		}
		if strings.HasPrefix(b.Name, "an ack") {
			r, w := io.Pipe()
			defer func() { _ = w.Close() }()
			c.Stdin = r
		}
		return c.Run(ctx)
	case "shell.run":
		_, err := sb.ScriptCommand("x").Output(ctx)
		return err
	case "fs.read":
		_, err := sb.ReadRange(ctx, "x", 0, 10)
		return err
	case "fs.list":
		_, err := sb.ReadDir(ctx, "x")
		return err
	case "fs.walk":
		_, err := sb.Walk(ctx, "x", harnesslib.WalkOptions{})
		return err
	case "fs.grep":
		_, err := sb.Grep(ctx, "x", "x", harnesslib.GrepOptions{})
		return err
	case "fs.pack":
		_, err := sb.CopyOut(ctx, "x", t.TempDir(), harnesslib.TreeOptions{})
		return err
	case "fs.batch":
		_, err := sb.Hash(ctx, "x")
		return err
	case "fs.watch":
		for _, err := range sb.Watch(ctx, "x") {
			return err
		}
		return nil
	case "net.dial":
		_, err := sb.DialContext(ctx, "tcp", "127.0.0.1:1")
		return err
	case "exec.list":
		_, err := sb.Execs(ctx)
		return err
	case "session.open":
		_, err := sb.Session(ctx, "s", "")
		return err
	case "fs.write":
		return sb.WriteFile(ctx, "x", nil, 0o600)
	}
	t.Fatalf("no request of verb %q", b.Verb)
	return nil
}

// slowly is a writer that does something else first.
type slowly struct{ first func() }

func (s slowly) Write(b []byte) (int, error) {
	s.first()
	return len(b), nil
}

// heapLimit is more than the harness, the hub and all sandboxes of this test together need: half of it is what a
// harness holds by the protocol's own bounds (an answer of 64 MiB while it is put together).
const heapLimit = 512 << 20

// watchHeap notes the largest heap until stop.
func watchHeap(every time.Duration) (stop func() uint64) {
	end, done := make(chan struct{}), make(chan struct{})
	var most uint64
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() uint64 {
		close(end)
		<-done
		return most
	}
}

// TestC69HostileWorker has a harness drive sandboxes that break every rule, and one that does not, at the same time.
func TestC69HostileWorker(t *testing.T) {
	// What is measured is to be what is held, not what was: garbage may add a quarter.
	t.Cleanup(func(before int) func() { return func() { debug.SetGCPercent(before) } }(debug.SetGCPercent(25)))
	b := bustest.Start(t)
	startWorker(t, b, "good", func(c *workerd.Config) { c.Dir = t.TempDir() })
	h := connect(t, b)
	behaviours := hostile.Behaviours()
	require.Greater(t, len(behaviours), 30)
	heap := watchHeap(5 * time.Millisecond)

	// The good one does what it always does.
	over := make(chan struct{})
	isOver := func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	var good sync.WaitGroup
	var rounds, lines atomic.Int64
	sb, err := h.Sandbox("good")
	require.NoError(t, err)
	good.Go(func() {
		for !isOver() {
			out, err := sb.ScriptCommand("echo fine").Output(t.Context())
			if err == nil && string(out) != "fine\n" {
				err = fmt.Errorf("it printed %q", out)
			}
			if err == nil {
				err = sb.WriteFile(t.Context(), "f", out, 0o600)
			}
			if err != nil {
				t.Errorf("round %d of the good sandbox: %v", rounds.Load(), err)
				return
			}
			rounds.Add(1)
		}
	})
	good.Go(func() {
		r, w := io.Pipe()
		c := sb.Command("sh", "-c", "while read x; do echo $x; done")
		var out lockedBuffer
		c.Stdin, c.Stdout = r, &out
		var ran sync.WaitGroup
		ran.Go(func() {
			if err := c.Run(t.Context()); err != nil {
				t.Errorf("the stream of the good sandbox: %v", err)
			}
			_ = r.Close()
		})
		var want strings.Builder
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !isOver() {
			<-tick.C
			line := fmt.Sprintln(lines.Add(1))
			want.WriteString(line)
			if _, err := io.WriteString(w, line); err != nil {
				break
			}
		}
		_ = w.Close()
		ran.Wait()
		if out.String() != want.String() {
			t.Errorf("the stream of the good sandbox: %d bytes came, %d were sent", len(out.String()), want.Len())
		}
	})

	var bad sync.WaitGroup
	turns := make(chan struct{}, 8) // as many at once
	for i, does := range behaviours {
		bad.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			id := fmt.Sprintf("evil-%d", i)
			w, err := hostile.Start(t.Context(), b.Config(t, bus.RoleSandbox, id), does)
			if err != nil {
				t.Errorf("%s: %v", does.Name, err)
				return
			}
			defer w.Close()
			evil, err := h.Sandbox(id)
			if err == nil {
				err = asked(t, evil, w, does)
			}
			switch {
			case does.Want == "" && err != nil:
				t.Errorf("%s, %s: want no harm, got %v", does.Verb, does.Name, err)
			case does.Want != "" && (err == nil || !strings.Contains(err.Error(), does.Want)):
				t.Errorf("%s, %s: want an error with %q, got %.500v", does.Verb, does.Name, does.Want, err)
			case err != nil && (len(err.Error()) > 16<<10 || strings.ContainsAny(err.Error(), "\x1b\a\r")):
				t.Errorf("%s, %s: the error's text is not fit for a terminal: %d bytes", does.Verb, does.Name, len(err.Error()))
			}
		})
	}
	bad.Wait()
	close(over)
	good.Wait()
	most := heap()
	t.Logf("%d hostile sandboxes; the good one made %d rounds and %d lines meanwhile; largest heap %d MiB", len(behaviours), rounds.Load(), lines.Load(), most>>20)
	require.Positive(t, rounds.Load())
	require.Less(t, most, uint64(heapLimit), "the harness's memory is bounded")
}
