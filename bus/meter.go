package bus

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Meter counts what goes on in a connection and in what uses it. Its fields may be read at any time; counting is one atomic
// addition, without a lock and without memory. One Meter may serve several connections of a process (Config.Meter).
type Meter struct {
	Disconnects  atomic.Int64 // times that the connection to the hub was lost
	Reconnects   atomic.Int64 // times that it has come back
	CreditStalls atomic.Int64 // times that a sender of a stream had to wait for credit
	NaksSent     atomic.Int64 // gaps in what was received, for which the peer was asked
	NaksReceived atomic.Int64 // such questions of peers
	ResentBytes  atomic.Int64 // bytes of frames that were sent again
	KeepAlives   atomic.Int64 // frames that said that a stream or a request lives
	Repeats      atomic.Int64 // requests that were sent again

	mu    sync.Mutex                              // serialises additions to verbs
	verbs atomic.Pointer[map[string]*VerbLatency] // replaced whole, so that reading it needs no lock
}

// VerbLatency is how long the requests of one verb took, from the request to the end of its answer, on one side.
type VerbLatency struct {
	Histogram
	Failed atomic.Int64 // requests that were answered with an error, or not at all
}

// discarded is what counts of those go to who have no meter.
var discarded = &Meter{}

// orDiscard is a meter, whatever it is.
func (m *Meter) orDiscard() *Meter {
	if m == nil {
		return discarded
	}
	return m
}

// verb is where a verb is counted. Verbs are those of the code, so that there are few.
func (m *Meter) verb(name string) *VerbLatency {
	if v := m.Latencies()[name]; v != nil {
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.Latencies()
	if v := old[name]; v != nil {
		return v
	}
	next := make(map[string]*VerbLatency, len(old)+1)
	maps.Copy(next, old)
	v := &VerbLatency{}
	next[name] = v
	m.verbs.Store(&next)
	return v
}

// Latencies are the verbs that were seen. The map must not be changed.
func (m *Meter) Latencies() map[string]*VerbLatency {
	if p := m.verbs.Load(); p != nil {
		return *p
	}
	return nil
}

func (v *VerbLatency) done(began time.Time, err error) {
	v.Observe(time.Since(began))
	if err != nil {
		v.Failed.Add(1)
	}
}

// Buckets are the upper bounds of a Histogram's buckets, in seconds; one more holds what is above the last.
var Buckets = [...]float64{
	0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600,
}

// Histogram counts durations. Its zero value is empty.
type Histogram struct {
	counts [len(Buckets) + 1]atomic.Uint64
	micros atomic.Uint64
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	s := d.Seconds()
	i := 0
	for i < len(Buckets) && s > Buckets[i] {
		i++
	}
	h.counts[i].Add(1)
	h.micros.Add(uint64(max(0, d.Microseconds())))
}

// Snapshot is what was counted: how many, their sum in seconds, and how many were at most as long as each bound.
func (h *Histogram) Snapshot() (count uint64, sum float64, upTo map[float64]uint64) {
	upTo = make(map[float64]uint64, len(Buckets))
	for i := range h.counts {
		count += h.counts[i].Load()
		if i < len(Buckets) {
			upTo[Buckets[i]] = count
		}
	}
	return count, math.Round(float64(h.micros.Load())) / 1e6, upTo
}
