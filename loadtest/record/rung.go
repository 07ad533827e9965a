package record

import (
	"slices"
	"time"
)

// Ops is what became of the operations of one kind at a rung. The quantiles are of successes only, each the median over
// the rung's samples, and the maximum is that of all of them; they are absent when nothing succeeded.
type Ops struct {
	N       int64            `json:"n"`
	OK      int64            `json:"ok"`
	Errors  map[string]int64 `json:"errors,omitempty"`
	P50     *float64         `json:"p50_us,omitempty"`
	P90     *float64         `json:"p90_us,omitempty"`
	P95     *float64         `json:"p95_us,omitempty"`
	P99     *float64         `json:"p99_us,omitempty"`
	P999    *float64         `json:"p999_us,omitempty"`
	Max     *float64         `json:"max_us,omitempty"`
	P50Of   []float64        `json:"p50_us_samples,omitempty"` // one for each sample, in their order
	P95Of   []float64        `json:"p95_us_samples,omitempty"`
	samples [][]float64
}

// Process is what one process used during a sample; at a rung the median over its samples.
type Process struct {
	Name  string   `json:"name"`
	CPU   *float64 `json:"cpu_s,omitempty"` // seconds of processor time
	Share *float64 `json:"cpu_share,omitempty"`
	RSS   *float64 `json:"rss_bytes,omitempty"`
	// Started is how many processes began below a sandbox's worker.
	Started *float64 `json:"processes_started,omitempty"`
	// Goroutines and SchedP99 are of harness processes: how many there were at the end, and how long a runnable one
	// waited for a processor.
	Goroutines *float64 `json:"goroutines,omitempty"`
	SchedP99   *float64 `json:"sched_p99_us,omitempty"`
}

// Hub is what the hub did during a sample.
type Hub struct {
	Process
	MsgsPerS      *float64 `json:"msgs_per_s,omitempty"`  // taken and given
	BytesPerS     *float64 `json:"bytes_per_s,omitempty"` // taken and given
	SlowConsumers *float64 `json:"slow_consumers,omitempty"`
}

// Leases is how the acquisitions of a sample went.
type Leases struct {
	Acquired int64     `json:"acquired"`
	Waited   int64     `json:"waited"`
	Refused  int64     `json:"refused"`
	WaitUS   []float64 `json:"wait_us,omitempty"` // how long each took that succeeded, also those that did not have to wait
}

// Sample is one measured interval.
type Sample struct {
	Latencies *Latencies
	Wall      time.Duration // from the start to the end of the last operation
	Busy      time.Duration // time that sessions had an operation at their sandbox, summed
	Sessions  int
	Late      *float64 // p99 of how late this machine's timers were, in µs
	Leases    *Leases
	Harnesses []Process
	Sandboxes []Process
	Relays    []Process
	Hub       *Hub
}

// Rung is one arm at one concurrency: what a line of JSON holds.
type Rung struct {
	Record      string  `json:"record"` // "rung"
	Time        string  `json:"time"`
	Arm         string  `json:"arm"`
	Workload    string  `json:"workload"`
	Workers     int     `json:"workers"`   // harness processes
	Sessions    int     `json:"sessions"`  // in each of them
	Sandboxes   int     `json:"sandboxes"` // worker processes or containers
	Concurrency int     `json:"concurrency"`
	Loop        string  `json:"loop"` // closed, open or burst
	RateOps     float64 `json:"rate_ops,omitempty"`
	ThinkUS     float64 `json:"think_us,omitempty"` // mean pause of a session between operations
	Samples     int     `json:"samples"`
	SampleS     float64 `json:"sample_s"`
	Seed        uint64  `json:"seed"`

	Attempts     int64            `json:"attempts"`
	OK           int64            `json:"ok"`
	Errors       map[string]int64 `json:"errors,omitempty"`
	SuccessRate  *float64         `json:"success_rate,omitempty"`
	Throughput   *float64         `json:"throughput_ops,omitempty"` // successes per second
	ThroughputOf []float64        `json:"throughput_ops_samples,omitempty"`
	Ops          map[string]*Ops  `json:"ops"`
	All          *Ops             `json:"all"` // every kind together

	LeaseWaitShare   *float64 `json:"lease_wait_share,omitempty"` // of acquisitions: refused or waited
	LeaseWaitP95     *float64 `json:"lease_wait_p95_us,omitempty"`
	SandboxCPUShare  *float64 `json:"sandbox_cpu_share,omitempty"`
	HarnessCPUShare  *float64 `json:"harness_cpu_share,omitempty"`
	HubCPUShare      *float64 `json:"hub_cpu_share,omitempty"`
	RelayCPUShare    *float64 `json:"relay_cpu_share,omitempty"`
	CPUPerOp         *float64 `json:"cpu_per_op_us,omitempty"` // of sandbox, hub and relay, for each success
	Duty             *float64 `json:"duty,omitempty"`          // share of a session's time with an operation at its sandbox
	HarnessRSS       *float64 `json:"harness_rss_bytes,omitempty"`
	SandboxRSS       *float64 `json:"sandbox_rss_bytes,omitempty"`
	ProcessesStarted *float64 `json:"processes_started,omitempty"`
	SchedP99         *float64 `json:"sched_p99_us,omitempty"` // of the worst harness process
	TimerLateP99     *float64 `json:"timer_late_p99_us,omitempty"`
	Ceiling          *float64 `json:"ceiling_ops,omitempty"` // what the generator does against a null responder

	Harnesses     []Process `json:"harness,omitempty"`
	SandboxesUsed []Process `json:"sandbox,omitempty"`
	Relays        []Process `json:"relay,omitempty"`
	Hub           *Hub      `json:"hub,omitempty"`

	Bound       string   `json:"bound"`
	BoundColumn string   `json:"bound_column,omitempty"`
	BoundValue  *float64 `json:"bound_value,omitempty"`

	Marks []string `json:"marks,omitempty"`
	Notes []string `json:"notes,omitempty"` // what a reader of the figures must know

	Machine Machine `json:"machine"`
}

// Marks of a rung. A rung that has one makes the run's exit status say so.
const (
	MarkSuccess     = "below-success-floor"
	MarkGenerator   = "generator-bound"
	MarkInterrupted = "interrupted"
)

// median of values, nil of none.
func median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return new((s[n/2-1] + s[n/2]) / 2)
	}
	return new(s[len(s)/2])
}

// medianOf is the median of what was measured in samples, nil when it never was.
func medianOf(samples []Sample, column func(Sample) *float64) *float64 {
	var values []float64
	for _, s := range samples {
		if v := column(s); v != nil {
			values = append(values, *v)
		}
	}
	return median(values)
}

// Summarize fills a rung from its samples. Counts are sums, all else medians over the samples.
func (r *Rung) Summarize(samples []Sample, machine Machine) {
	r.Record, r.Machine, r.Samples = "rung", machine, len(samples)
	r.Ops, r.All, r.Errors = map[string]*Ops{}, &Ops{}, map[string]int64{}
	for _, s := range samples {
		for op, k := range s.Latencies.kinds {
			if r.Ops[op] == nil {
				r.Ops[op] = &Ops{}
			}
			r.Ops[op].add(k)
		}
		all := s.Latencies.all()
		r.All.add(all)
		r.ThroughputOf = append(r.ThroughputOf, float64(all.ok)/max(s.Wall.Seconds(), 1e-9))
	}
	r.All.finish()
	for _, o := range r.Ops {
		o.finish()
	}
	r.Attempts, r.OK, r.Errors = r.All.N, r.All.OK, r.All.Errors
	if r.Attempts > 0 {
		r.SuccessRate = new(float64(r.OK) / float64(r.Attempts))
	}
	r.Throughput = median(r.ThroughputOf)
	r.summarizeUse(samples, machine.CPUs)
}

func (o *Ops) add(k *kind) {
	o.N += k.ok + k.failures()
	o.OK += k.ok
	for why, n := range k.failed {
		if o.Errors == nil {
			o.Errors = map[string]int64{}
		}
		o.Errors[why] += n
	}
	if k.ok > 0 {
		q := k.quantiles()
		o.samples = append(o.samples, q)
		o.P50Of, o.P95Of = append(o.P50Of, q[0]), append(o.P95Of, q[2])
	}
}

func (o *Ops) finish() {
	if len(o.samples) == 0 {
		return
	}
	column := func(i int) (values []float64) {
		for _, s := range o.samples {
			values = append(values, s[i])
		}
		return values
	}
	for i, to := range []**float64{&o.P50, &o.P90, &o.P95, &o.P99, &o.P999} {
		*to = median(column(i))
	}
	o.Max = new(slices.Max(column(5)))
}
