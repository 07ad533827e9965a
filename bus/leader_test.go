package bus

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestLeaderIsRelievedOnce has one message wait, as for a file system that hangs: another goroutine takes over, and only
// one, however long it lasts; what comes then is taken in order.
func TestLeaderIsRelievedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var taken []string
		var atOnce, most atomic.Int32
		l := newLeader(func(m *nats.Msg) {
			if m.Subject == "slow" {
				<-release
				return
			}
			most.Store(max(most.Load(), atOnce.Add(1)))
			<-time.After(time.Millisecond)
			taken = append(taken, m.Subject) // the race detector sees when two take at once
			atOnce.Add(-1)
		})
		defer l.stop()
		before := runtime.NumGoroutine()
		l.messages <- &nats.Msg{Subject: "slow"}
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.Equal(t, before+1, runtime.NumGoroutine(), "one goroutine waits for the next message")
		var want []string
		for i := range 100 {
			s := string(rune('A' + i))
			want = append(want, s)
			l.messages <- &nats.Msg{Subject: s}
		}
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, want, taken)
		require.EqualValues(t, 1, most.Load())

		// The one that comes back has ended; the next message that waits is relieved like the first.
		close(release)
		synctest.Wait()
		require.Equal(t, before, runtime.NumGoroutine())
		release = make(chan struct{})
		l.messages <- &nats.Msg{Subject: "slow"}
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, before+1, runtime.NumGoroutine())
		close(release)
	})
}
