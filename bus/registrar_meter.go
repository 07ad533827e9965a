package bus

import "sync/atomic"

// RegistrarMeter counts what a registrar has done since its start.
type RegistrarMeter struct {
	Beats   atomic.Int64 // beats that were heard
	Dropped atomic.Int64 // things said that were not taken: too long, no subject of the grammar, or too many at once
	Adopted atomic.Int64 // workers that were made the one of their id
	Refused atomic.Int64 // hellos of an id that another live worker has
	Suspect atomic.Int64 // times that a worker was silent for too long
	Gone    atomic.Int64 // workers that were taken out of presence, and those whose beats stayed away
	Failed  atomic.Int64 // things said that could not be written or were wrong
}

// Meter is what the registrar counts.
func (r *Registrar) Meter() *RegistrarMeter { return &r.meter }

// Live is how many workers the registrar knows.
func (r *Registrar) Live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.view)
}

// Open says whether the registrar has its bucket and a connection to the hub.
func (r *Registrar) Open() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kv != nil && r.conn.isConnected()
}
