package bus

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// leader takes the messages of a subscription in order, on one goroutine, and replaces that goroutine when a message
// keeps it too long: then the messages behind are taken by another one, and the old one ends with its message. So what
// is quick runs at once, and what turns out not to be holds the others up for takeoverAfter at most.
type leader struct {
	messages chan *nats.Msg
	take     func(*nats.Msg)
	quit     chan struct{}
	wg       sync.WaitGroup
	watch    *time.Timer
	armed    atomic.Bool          // the watch runs
	taken    atomic.Uint64        // how many messages were taken
	seen     uint64               // what the watch saw of it last
	turn     atomic.Pointer[turn] // of the goroutine that leads
}

// turn is the time of one goroutine as the leader. It holds when the present message was taken, in nanoseconds since
// epoch; idle while there is none, relieved for good when another goroutine has taken over. Only a turn that has a message
// can be relieved, and only once: one that waits for a message would take it beside its successor.
type turn struct{ began atomic.Int64 }

const (
	idle     = 0
	relieved = -1
)

const (
	// takeoverAfter is how long one message may hold up the others, and how often the watch looks while there is work.
	takeoverAfter = 5 * time.Millisecond
	// leaderQueue is how many messages may wait. Requests under way are bounded by maxRequests and streams by their
	// credit; what does not fit is lost as on the network, and recovered in the same way.
	leaderQueue = 1 << 16
)

var epoch = time.Now()

func newLeader(take func(*nats.Msg)) *leader {
	l := &leader{messages: make(chan *nats.Msg, leaderQueue), take: take, quit: make(chan struct{})}
	l.watch = time.AfterFunc(time.Hour, l.look)
	l.watch.Stop()
	l.begin()
	return l
}

// begin has a goroutine lead from now on.
func (l *leader) begin() {
	t := &turn{}
	l.turn.Store(t)
	l.wg.Go(func() { l.lead(t) })
}

// stop ends the leader when no message comes any more.
func (l *leader) stop() {
	close(l.quit)
	l.wg.Wait()
	l.watch.Stop()
}

func (l *leader) lead(t *turn) {
	for {
		var m *nats.Msg
		select {
		case m = <-l.messages:
		case <-l.quit:
			return
		}
		began := int64(time.Since(epoch))
		t.began.Store(began)
		l.taken.Add(1)
		// The watch is not set anew for each message: a timer that becomes the earliest wakes a thread, which would cost
		// as much as the message.
		if !l.armed.Load() && l.armed.CompareAndSwap(false, true) {
			l.watch.Reset(takeoverAfter)
		}
		l.take(m)
		if !t.began.CompareAndSwap(began, idle) {
			return // relieved
		}
	}
}

// look has another goroutine take over when the present message has kept the leader too long. It goes on looking while
// there is work, so that an idle worker does nothing.
func (l *leader) look() {
	t, taken := l.turn.Load(), l.taken.Load()
	switch began := t.began.Load(); {
	case began == idle && taken == l.seen:
		l.armed.Store(false)
		return
	case began != idle && time.Since(epoch)-time.Duration(began) >= takeoverAfter && t.began.CompareAndSwap(began, relieved):
		l.begin()
	}
	l.seen = taken
	l.watch.Reset(takeoverAfter)
}
