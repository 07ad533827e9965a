// Package history is what was done, seen and broken in a run, and the check that the promise was kept: every operation
// ends in one outcome that is true, nothing runs twice, no output is lost without being counted, no lease is held twice.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says what an event is.
type Kind string

// The kinds of events.
const (
	Request Kind = "request" // an operation begins; Op, Verb and what it expects
	Outcome Kind = "outcome" // it has ended; Op, Result
	Fault   Kind = "fault"   // something was broken or mended; Detail
	Granted Kind = "granted" // a lease is held from now on; Lease, Sandbox
	Ended   Kind = "ended"   // it is not any more
	Left    Kind = "left"    // something was left behind; Detail
	Broken  Kind = "broken"  // the side itself saw a promise broken; Detail
	Probe   Kind = "probe"   // a question that does nothing was answered
	Died    Kind = "died"    // a side was killed, Detail: its operations may lack an outcome, and its leases have ended
)

// Verb is what an operation does.
type Verb string

// The verbs. The first three append their op to the sandbox's journal when they run.
const (
	Fast   Verb = "fast"   // a short script on the fast tier
	Exec   Verb = "exec"   // a stream of numbered lines
	Write  Verb = "write"  // of a file of its own
	Read   Verb = "read"   // of a file that is there
	Detach Verb = "detach" // an exec that runs on by itself, and is attached to later
)

// Result is how an operation ended, in the caller's words.
type Result string

// The results. Exited, Signalled, TimedOut, Aborted, OutputLimit and OOM say that it ran, Refused that it did not, and
// Lost that nobody knows.
const (
	Exited      Result = "exited"
	Signalled   Result = "signalled"
	TimedOut    Result = "timed_out"
	Aborted     Result = "aborted"
	OutputLimit Result = "output_limit"
	OOM         Result = "oom"
	StartFailed Result = "start_failed"
	Refused     Result = "refused"
	Lost        Result = "lost"
)

// Event is one line of a history.
type Event struct {
	At      time.Duration `json:"at"` // of the machine's clock since its start, which all processes share
	Side    string        `json:"side"`
	Kind    Kind          `json:"kind"`
	Op      string        `json:"op,omitempty"`
	Verb    Verb          `json:"verb,omitempty"`
	Sandbox string        `json:"sandbox,omitempty"`
	Result  Result        `json:"result,omitempty"`
	Code    int           `json:"code,omitempty"` // of Exited
	// Want is the exit code that the operation has when it runs to its end; of a request.
	Want int `json:"want,omitempty"`
	// Lines is how many numbered lines an exec prints (request), or how many arrived in order (outcome).
	// Of a write it is how many lines its file has.
	Lines int `json:"lines,omitempty"`
	// Omitted is how many bytes of output the outcome says did not come; Wrong says that a line was not the next one.
	Omitted int64  `json:"omitted,omitempty"`
	Wrong   bool   `json:"wrong,omitempty"`
	Resent  int64  `json:"resent,omitempty"` // bytes that were sent again
	Lease   string `json:"lease,omitempty"`
	// Slots is how many leases the sandbox may grant at once; of Granted.
	Slots  int    `json:"slots,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Now is the clock of events.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the clock is always there
	}
	return time.Duration(ts.Nano())
}

// Recorder writes the events of one side as JSON lines. It may be used by many goroutines.
type Recorder struct {
	side string

	mu  sync.Mutex // guards the fields below
	w   io.Writer
	err error
}

// NewRecorder writes to w, each event in one write, so that what a killed process has said is whole.
func NewRecorder(side string, w io.Writer) *Recorder { return &Recorder{side: side, w: w} }

// Add records an event now.
func (r *Recorder) Add(e Event) {
	e.At, e.Side = Now(), r.side
	b, err := json.Marshal(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		_, err = r.w.Write(append(b, '\n'))
	}
	if r.err == nil {
		r.err = err
	}
}

// Err is the first failure to write.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Load reads the events of files. A last line that was cut off by a kill is left out.
func Load(files ...string) ([]Event, error) {
	var all []Event
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		events, err := read(f)
		_ = f.Close() // was only read
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, events...)
	}
	return all, nil
}

func read(r io.Reader) (events []Event, err error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if err != nil {
			return nil, err // of a line that was not the last
		}
		var e Event
		if err = json.Unmarshal(s.Bytes(), &e); err == nil {
			events = append(events, e)
		}
	}
	return events, s.Err()
}
