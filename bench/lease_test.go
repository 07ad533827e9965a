package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/workerd"
)

// BenchmarkLeaseAcquire compares the acquisition of a lease, choice of the sandbox included, with a bare request. Its
// release is not counted.
func BenchmarkLeaseAcquire(b *testing.B) {
	r := startRig(b)
	bare := r.bare(b, "echo")
	acquire := func() (took time.Duration, err error) {
		begin := time.Now()
		l, err := r.hub.Acquire(b.Context(), harnesslib.AcquireOptions{})
		took = time.Since(begin)
		if err == nil {
			err = l.Release(b.Context())
		}
		return took, err
	}
	for b.Loop() {
		var requests, acquisitions []time.Duration
		for round := range 41 {
			for range 50 {
				begin := time.Now()
				_, err := bare.Request(b.Context(), []byte("32"))
				require.NoError(b, err)
				if round > 0 { // the first warms up
					requests = append(requests, time.Since(begin))
				}
			}
			for range 50 {
				took, err := acquire()
				require.NoError(b, err)
				if round > 0 {
					acquisitions = append(acquisitions, took)
				}
			}
		}
		slices.Sort(requests)
		slices.Sort(acquisitions)
		q, a := requests[len(requests)/2], acquisitions[len(acquisitions)/2]
		report(b, "lease acquire to bare request", float64(a)/float64(q), true, 2, fmt.Sprintf("%s to %s", a, q))
	}
}

// BenchmarkLeaseContention has 40 clients of 8 harnesses use 20 slots of 5 sandboxes, a tenth of a second each time: what
// the longest wait is to the median one. All of it is in one process: the waits are longer than any request takes.
func BenchmarkLeaseContention(b *testing.B) {
	const sandboxes, slots, harnesses, clients, times = 5, 4, 8, 40, 20
	h := bustest.Start(b)
	ctx, cancel := context.WithCancelCause(b.Context())
	var workers sync.WaitGroup
	b.Cleanup(workers.Wait)
	b.Cleanup(func() { cancel(errors.New("the benchmark is over")) })
	for i := range sandboxes {
		cfg := h.Config(b, bus.RoleSandbox, fmt.Sprint("box", i))
		ready := make(chan struct{})
		w, err := workerd.New(workerd.Config{
			URL: cfg.URL, Dial: cfg.Dial, Credential: cfg.Credential, Dir: b.TempDir(), Slots: slots, OnReady: func() { close(ready) },
		})
		require.NoError(b, err)
		workers.Go(func() { _ = w.Run(ctx) }) // its end is asked for
		<-ready
	}
	hubs := make([]*harnesslib.Hub, harnesses)
	for i := range hubs {
		cfg := h.Config(b, bus.RoleHarness, fmt.Sprint("h", i))
		hub, err := harnesslib.Connect(b.Context(), harnesslib.Config{URL: cfg.URL, Dial: cfg.Dial, Token: cfg.Credential.Token()})
		require.NoError(b, err)
		b.Cleanup(hub.Close)
		hubs[i] = hub
	}
	for b.Loop() {
		var mu sync.Mutex // guards waits
		var waits []time.Duration
		errs := make([]error, clients)
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for range times {
					begin := time.Now()
					l, err := hubs[i%harnesses].Acquire(b.Context(), harnesslib.AcquireOptions{Wait: true})
					if err != nil {
						errs[i] = err
						return
					}
					mu.Lock()
					waits = append(waits, time.Since(begin))
					mu.Unlock()
					<-time.After(100 * time.Millisecond)
					if errs[i] = l.Release(b.Context()); errs[i] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(begin)
		require.NoError(b, errors.Join(errs...))
		slices.Sort(waits)
		median, longest := waits[len(waits)/2], waits[len(waits)-1]
		used := float64(len(waits)) * 0.1 / (took.Seconds() * sandboxes * slots)
		report(b, "lease longest wait to median wait", float64(longest)/float64(median), true, 10,
			fmt.Sprintf("%s to %s; slots in use for %.0f%% of the time", longest.Round(time.Millisecond), median.Round(time.Millisecond), 100*used))
	}
}
