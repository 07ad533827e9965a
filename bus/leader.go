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
	began    atomic.Int64  // when the present message was taken, in nanoseconds since epoch; zero while there is none
	term     atomic.Uint64 // which goroutine leads
}

const (
	// takeoverAfter is how long one message may hold up the others.
	takeoverAfter = time.Millisecond
	// leaderQueue is how many messages may wait. Requests under way are bounded by maxRequests and streams by their
	// credit; what does not fit is lost as on the network, and recovered in the same way.
	leaderQueue = 1 << 16
)

var epoch = time.Now()

func newLeader(take func(*nats.Msg)) *leader {
	l := &leader{messages: make(chan *nats.Msg, leaderQueue), take: take, quit: make(chan struct{})}
	l.watch = time.AfterFunc(time.Hour, l.takeover)
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
		m := l.next()
		if m == nil {
			return
		}
		l.began.Store(int64(time.Since(epoch)))
		l.take(m)
	}
}

// next waits for a message; nil means the end. The watch runs only while messages are taken, so that an idle worker
// does nothing.
func (l *leader) next() *nats.Msg {
	select {
	case m := <-l.messages:
		return m
	default:
	}
	l.watch.Stop()
	l.began.Store(0)
	select {
	case m := <-l.messages:
		l.began.Store(int64(time.Since(epoch)))
		l.watch.Reset(takeoverAfter)
		return m
	case <-l.quit:
		return nil
	}
}

// takeover looks whether the present message has kept the leader too long.
func (l *leader) takeover() {
	began := l.began.Load()
	if began == 0 {
		return // waits for a message
	}
	held := time.Since(epoch) - time.Duration(began)
	if held < takeoverAfter {
		l.watch.Reset(takeoverAfter - held)
		return
	}
	term := l.term.Add(1)
	l.began.Store(int64(time.Since(epoch)))
	l.watch.Reset(takeoverAfter)
	l.wg.Go(func() { l.lead(term) })
}
