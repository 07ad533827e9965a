package hub

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus"
)

// Stats are the numbers of a hub's server since its start; Connections, Subscriptions and JetStreamBytes are those of now.
type Stats struct {
	Connections, Subscriptions         int
	SlowConsumers                      int64
	InMsgs, OutMsgs, InBytes, OutBytes int64
	JetStreamBytes                     uint64
}

// Stats asks the hub's server. Errors: the server is stopping.
func (h *Hub) Stats() (s Stats, err error) {
	v, err := h.srv.srv.Varz(&server.VarzOptions{})
	if err != nil {
		return s, fmt.Errorf("hub statistics: %w", err)
	}
	s = Stats{
		Connections: v.Connections, Subscriptions: int(v.Subscriptions), SlowConsumers: v.SlowConsumers,
		InMsgs: v.InMsgs, OutMsgs: v.OutMsgs, InBytes: v.InBytes, OutBytes: v.OutBytes,
	}
	if v.JetStream.Stats != nil {
		s.JetStreamBytes = v.JetStream.Stats.Memory + v.JetStream.Stats.Store
	}
	return s, nil
}

// Registrar is the hub's registrar; nil when it has none.
func (h *Hub) Registrar() *bus.Registrar { return h.registrar }
