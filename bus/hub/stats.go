package hub

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// Stats is what a hub has done since its start.
type Stats struct {
	InMsgs, OutMsgs   int64 // messages taken from clients, and given to them
	InBytes, OutBytes int64 // their payloads, in bytes
	SlowConsumers     int64 // clients that were cut off because they did not read
	Connections       int   // clients now, the hub's own among them
}

// Stats reads the counters. Errors: the hub is stopped.
func (h *Hub) Stats() (Stats, error) {
	if h.srv == nil {
		return Stats{}, errors.New("hub: stopped")
	}
	v, err := h.srv.srv.Varz(nil)
	if err != nil {
		return Stats{}, fmt.Errorf("hub counters: %w", err)
	}
	return Stats{
		InMsgs: v.InMsgs, OutMsgs: v.OutMsgs, InBytes: v.InBytes, OutBytes: v.OutBytes,
		SlowConsumers: v.SlowConsumers, Connections: v.Connections,
	}, nil
}

// Version is the release of the embedded server.
func Version() string { return server.VERSION }
