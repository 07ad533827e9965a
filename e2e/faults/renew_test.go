package faults

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/workerd"
)

// TestBothConnectionsOfAWorkerRenew has a worker outlive its first credential: each of its two connections gets a newer
// one, or the hub would end it.
func TestBothConnectionsOfAWorkerRenew(t *testing.T) {
	t.Parallel()
	o := bustest.StartOperator(t)
	id := bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: "box"}
	const life = 9 * time.Second
	first := o.Issue(t, id, life)
	renewed := make(chan struct{}, 64) // far more than there are
	w, err := workerd.New(workerd.Config{
		URL: o.URL(), Credential: first, Dir: t.TempDir(), StopGrace: 100 * time.Millisecond, ConnectTimeout: patience, Logger: bustest.Logger(t),
		Renew: func(context.Context) (bus.Credential, error) {
			select {
			case renewed <- struct{}{}:
			default:
			}
			return o.Keys.Issue("main", id, time.Hour)
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- w.Run(ctx) })
	defer wg.Wait()
	defer cancel(errors.New("the test is over"))
	for range 2 {
		select {
		case <-renewed:
		case err := <-ended:
			require.NoError(t, err, "the worker has ended")
		}
	}
	select {
	case err := <-ended:
		require.NoError(t, err, "the worker has ended")
	case <-time.After(time.Until(first.Expires()) + 2*time.Second):
	}
}
