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
	armed    atomic.Bool   // the watch runs
	began    atomic.Int64  // when the present message was taken, in nanoseconds since epoch; zero while there is none
	taken    atomic.Uint64 // how many messages were taken
	seen     uint64        // what the watch saw of it last
	term     atomic.Uint64 // which goroutine leads
}

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
	l.wg.Go(func() { l.lead(0) })
	return l
}

// stop ends the leader when no message comes any more.
func (l *leader) stop() {
	close(l.quit)
	l.wg.Wait()
	l.watch.Stop()
}

func (l *leader) lead(term uint64) {
	for l.term.Load() == term {
		var m *nats.Msg
		select {
		case m = <-l.messages:
		case <-l.quit:
			return
		}
		l.began.Store(int64(time.Since(epoch)))
		l.taken.Add(1)
		// The watch is not set anew for each message: a timer that becomes the earliest wakes a thread, which would cost
		// as much as the message.
		if !l.armed.Load() && l.armed.CompareAndSwap(false, true) {
			l.watch.Reset(takeoverAfter)
		}
		l.take(m)
		l.began.Store(0)
	}
}

// look has another goroutine take over when the present message has kept the leader too long. It goes on looking while
// there is work, so that an idle worker does nothing.
func (l *leader) look() {
	began, taken := l.began.Load(), l.taken.Load()
	if began != 0 && time.Since(epoch)-time.Duration(began) >= takeoverAfter {
		term := l.term.Add(1)
		l.wg.Go(func() { l.lead(term) })
	} else if began == 0 && taken == l.seen {
		l.armed.Store(false)
		return
	}
	l.seen = taken
	l.watch.Reset(takeoverAfter)
}
