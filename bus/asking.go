package bus

import (
	"fmt"
	"sync"
	"time"
)

const (
	// silenceLimit is how long a worker that has a request under way may say nothing at all while we are connected: it
	// sends a keep-alive every 5 s, and the verdict must be there when presence ends, at the latest.
	silenceLimit = PresenceTTL - time.Second
	// repeatAfter is how long nothing may be heard of a request before it is sent again: a keep-alive is overdue then.
	repeatAfter = keepAliveEvery + time.Second
	// repeatFirst is repeatAfter for the first repeat of a request of which nothing was heard at all; it doubles with each
	// one. Most are answered at once, and one that fell into the death of the worker's hub server, or into a cut, should not
	// wait for the next keep-alive.
	repeatFirst = time.Second
	// comeBack is how long after our own reconnect a worker may be on its way back, too: a hub that restarts has lost all
	// of its clients.
	comeBack = 15 * time.Second
	// refusedAgainAfter is the time to the next try when the hub says that nobody answers, and that is not to be believed yet.
	refusedAgainAfter = 250 * time.Millisecond
)

// asking is a request on its way. It is sent again after a reconnect, and when nothing is heard of it: the worker knows
// the ops that have an effect and does nothing twice (see Server), so that is safe. What is not safe is to believe the
// hub's word that nobody answers when the request was sent before: it may have run.
type asking struct {
	conn           *Conn
	subject, reply string
	payload        []byte
	trace          string
	once           bool // it is sent again only when it has not arrived for sure: nobody remembers it
	untilHeard     bool // it is not sent again when something was heard of it
	failed         func(error)

	mu      sync.Mutex // guards the fields below
	opened  time.Time  // when it was sent, or the connection came back
	last    time.Time  // when something was heard last; zero before
	tried   time.Time  // when it was sent last
	sent    int        // how often it was sent
	refused int        // how often the hub has said that nobody answers
	next    *time.Timer
	over    bool
}

// opens notes that the request was sent for the first time.
func (a *asking) opens() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opened = time.Now()
	a.tried = a.opened
	a.sent = 1
}

// hear notes a sign of the worker.
func (a *asking) hear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
}

// close ends the repeats.
func (a *asking) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.next != nil {
		a.next.Stop()
	}
}

// again sends the request once more.
func (a *asking) again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.againLocked()
}

func (a *asking) againLocked() {
	if a.over || a.sent == 0 || a.once && a.refused < a.sent || a.untilHeard && !a.last.IsZero() {
		return
	}
	a.tried = time.Now()
	if a.conn.publishTraced(a.subject, a.reply, a.payload, a.trace) == nil { // else the next reconnect tries again
		a.sent++
		a.conn.meter.Repeats.Add(1)
	}
}

// reconnected goes on after our own connection was gone: the silence of that time was not the worker's.
func (a *asking) reconnected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opened = time.Now()
	a.againLocked()
}

// refuse takes the hub's word that nobody answers.
func (a *asking) refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused++
	back, ever := a.conn.backSince()
	nothingRan := a.last.IsZero() && a.refused >= a.sent
	if nothingRan && (!ever || back > comeBack) {
		a.failed(ErrNoResponders)
		return
	}
	// Until the silence limit, or the end of comeBack: the worker may be on its way back.
	if a.next == nil {
		a.next = time.AfterFunc(refusedAgainAfter, a.again)
	} else {
		a.next.Reset(refusedAgainAfter)
	}
}

// look is called when a while has passed: it repeats a request of which nothing is heard. It says when to look again; an
// error when nobody is there any more. Errors: ErrPeerSilent.
func (a *asking) look() (next time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.conn.isConnected() { // the silence is not the worker's
		a.opened = time.Now()
		return repeatAfter, nil
	}
	quiet := time.Since(later(a.opened, a.last))
	if quiet >= silenceLimit {
		return 0, fmt.Errorf("%w: nothing heard of op %s for %s", ErrPeerSilent, a.reply[lastDot(a.reply)+1:], silenceLimit)
	}
	wait, since := a.patienceLocked(), min(quiet, time.Since(a.tried))
	if since >= wait {
		a.againLocked()
		wait, since = a.patienceLocked(), 0
	}
	return min(wait-since, silenceLimit-quiet), nil
}

// patienceLocked is how long nothing may be heard before the request is sent again.
func (a *asking) patienceLocked() time.Duration {
	if a.last.IsZero() {
		return min(repeatFirst<<min(max(a.sent, 1)-1, 3), repeatAfter)
	}
	return repeatAfter
}
