package harnesslib

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/sandbus/sandbus/bus"
)

// Direct is a worker at the other end of a pair of pipes ("workerd --stdio"), without a hub: all of a Sandbox works, but
// Info and leases of its own, which only a hub can tell and grant.
type Direct struct {
	// Sandbox is where commands run.
	*Sandbox

	hub  *Hub
	wait sync.WaitGroup
}

// errNoHub says that something was asked of a hub where there is none.
var errNoHub = errors.New("the worker is reached over a pipe: there is no hub")

// OpenDirect speaks to the worker that has named itself by the line greeting; r and w stand behind that line, and are
// closed by Close, w first: that is how the worker learns that it is to end. When r ends, calls that are under way fail
// with ErrLost. A nil log discards. Errors: greeting is no worker's.
func OpenDirect(greeting string, r io.ReadCloser, w io.WriteCloser, log *slog.Logger) (*Direct, error) {
	target, err := bus.ParsePipeGreeting(greeting)
	if err != nil {
		return nil, err
	}
	lost := make(chan error, 1)
	id := bus.Identity{Role: bus.RoleHarness, Zone: target.Zone, Name: "pipe"}
	conn := bus.NewPipe(bus.PipeConfig{Identity: id, Logger: log, OnClosed: func(err error) { lost <- err }}, r, w)
	caller, err := bus.NewCaller(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	h := newHub(conn, caller, target.Zone)
	h.noHub = true
	h.located[address{target.Zone, target.Sandbox}] = target
	sb, err := h.Sandbox(string(target.Sandbox))
	if err != nil {
		h.Close()
		return nil, err
	}
	d := &Direct{Sandbox: sb, hub: h}
	d.wait.Go(func() {
		<-conn.Done()
		select {
		case err := <-lost:
			caller.Lose(fmt.Errorf("%w: the pipe to the worker has ended: %w", ErrLost, err))
		default: // closed by us
		}
	})
	return d, nil
}

// Done is closed when the pipes have ended.
func (d *Direct) Done() <-chan struct{} { return d.hub.conn.Done() }

// Close ends the pipes; calls that are under way fail. It may be called twice.
func (d *Direct) Close() {
	d.hub.Close()
	d.wait.Wait()
}
