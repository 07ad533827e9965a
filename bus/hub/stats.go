package hub

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus"
)

// Stats are the numbers of a hub's server since its start; Connections, Subscriptions and JetStreamBytes are those of now.
type Stats struct {
	InMsgs, OutMsgs   int64 // messages taken from clients, and given to them
	InBytes, OutBytes int64 // their payloads, in bytes
	SlowConsumers     int64 // clients that were cut off because they did not read
	Connections       int   // clients, the hub's own among them
	Subscriptions     int
	JetStreamBytes    uint64
}

// Stats asks the hub's server. Errors: the hub is stopped.
func (h *Hub) Stats() (s Stats, err error) {
	if h.srv == nil {
		return s, errors.New("hub: stopped")
	}
	v, err := h.srv.srv.Varz(&server.VarzOptions{})
	if err != nil {
		return s, fmt.Errorf("hub statistics: %w", err)
	}
	s = Stats{
		InMsgs: v.InMsgs, OutMsgs: v.OutMsgs, InBytes: v.InBytes, OutBytes: v.OutBytes,
		SlowConsumers: v.SlowConsumers, Connections: v.Connections, Subscriptions: int(v.Subscriptions),
	}
	if v.JetStream.Stats != nil {
		s.JetStreamBytes = v.JetStream.Stats.Memory + v.JetStream.Stats.Store
	}
	return s, nil
}

// Version is the release of the embedded server.
func Version() string { return server.VERSION }

// Registrar is the hub's registrar; nil when it has none.
func (h *Hub) Registrar() *bus.Registrar { return h.registrar }
