package record

import (
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The histograms hold nanoseconds from 100 ns to 10 min with three digits.
const (
	shortest = int64(100)
	longest  = int64(10 * time.Minute)
	digits   = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(shortest, longest, digits) }

// Recorder takes the outcomes of operations. It may be used by many goroutines.
type Recorder struct {
	mu    sync.Mutex // guards the fields below
	kinds map[string]*kind
}

type kind struct {
	mu     sync.Mutex // guards the fields below; taken without the recorder's
	hist   *hdrhistogram.Histogram
	ok     int64
	failed map[string]int64
}

// NewRecorder makes a recorder that has recorded nothing.
func NewRecorder() *Recorder { return &Recorder{kinds: map[string]*kind{}} }

func (r *Recorder) kind(op string) *kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kinds[op]
	if k == nil {
		k = &kind{hist: newHistogram(), failed: map[string]int64{}}
		r.kinds[op] = k
	}
	return k
}

// OK records a success. What is outside of the histogram's range is recorded at its end.
func (r *Recorder) OK(op string, took time.Duration) {
	k := r.kind(op)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ok++
	_ = k.hist.RecordValue(max(shortest, min(int64(took), longest))) // it is in range
}

// Failed records n failures of a kind of error; their time is not recorded.
func (r *Recorder) Failed(op, why string, n int) {
	k := r.kind(op)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed[why] += int64(n)
}

// Outcomes is what became of the operations of one kind, as it goes from one process to another.
type Outcomes struct {
	OK     int64            `json:"ok"`
	Failed map[string]int64 `json:"failed,omitempty"`
	Hist   []byte           `json:"hist"` // of the successes, in HDR's own compressed form
}

// Outcomes returns what was recorded, by kind of operation.
func (r *Recorder) Outcomes() (map[string]Outcomes, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]Outcomes{}
	for op, k := range r.kinds {
		k.mu.Lock()
		hist, err := k.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		o := Outcomes{OK: k.ok, Failed: k.failed, Hist: hist}
		k.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("histogram of %s: %w", op, err)
		}
		all[op] = o
	}
	return all, nil
}

// Latencies are the outcomes of one sample, of all processes together.
type Latencies struct {
	kinds map[string]*kind
}

// Merge puts the outcomes of several processes together. Errors: a histogram that is none.
func Merge(parts ...map[string]Outcomes) (*Latencies, error) {
	l := &Latencies{kinds: map[string]*kind{}}
	for _, part := range parts {
		for op, o := range part {
			k := l.kinds[op]
			if k == nil {
				k = &kind{hist: newHistogram(), failed: map[string]int64{}}
				l.kinds[op] = k
			}
			h, err := hdrhistogram.Decode(o.Hist)
			if err != nil {
				return nil, fmt.Errorf("histogram of %s: %w", op, err)
			}
			if dropped := k.hist.Merge(h); dropped > 0 {
				return nil, fmt.Errorf("histogram of %s: %d values are out of range", op, dropped)
			}
			k.ok += o.OK
			for why, n := range o.Failed {
				k.failed[why] += n
			}
		}
	}
	return l, nil
}

// all is every kind as one.
func (l *Latencies) all() *kind {
	sum := &kind{hist: newHistogram(), failed: map[string]int64{}}
	for _, k := range l.kinds {
		sum.hist.Merge(k.hist)
		sum.ok += k.ok
		for why, n := range k.failed {
			sum.failed[why] += n
		}
	}
	return sum
}

// quantiles are the ones that a rung has, in the order of quantileColumns.
var quantiles = []float64{50, 90, 95, 99, 99.9, 100}

func (k *kind) quantiles() []float64 {
	out := make([]float64, len(quantiles))
	for i, q := range quantiles {
		out[i] = float64(k.hist.ValueAtPercentile(q)) / 1e3
	}
	return out
}

func (k *kind) failures() (n int64) {
	for _, f := range k.failed {
		n += f
	}
	return n
}

// P99 is the 99th percentile of the successes of a kind, in microseconds; nil when there were none.
func (r *Recorder) P99(op string) *float64 {
	k := r.kind(op)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ok == 0 {
		return nil
	}
	return new(float64(k.hist.ValueAtPercentile(99)) / 1e3)
}
