package hubtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Swarm is many workers that do nothing but announce themselves, on one connection.
type Swarm struct {
	nc    *nats.Conn
	boxes map[string]*box
	life  context.Context //nolint:containedctx // the swarm's own life
}

type box struct {
	mu    sync.Mutex // guards the fields below
	id    string
	inst  string
	seq   uint64
	timer *time.Timer
}

// SwarmBeat is how often a worker of a swarm beats, give or take a fifth: as often as any other.
const SwarmBeat = 5 * time.Second

// Swarm runs n workers of the default zone, named box0 and so on; their first hellos are on their way when it returns.
func (c *Cluster) Swarm(tb testing.TB, n int) *Swarm {
	tb.Helper()
	nc, err := nats.Connect(c.URL(0), nats.Token(c.swarm), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	require.NoError(tb, err)
	life, end := context.WithCancelCause(context.Background())
	s := &Swarm{nc: nc, boxes: map[string]*box{}, life: life}
	tb.Cleanup(func() {
		end(errors.New("the test is over"))
		for _, b := range s.boxes {
			b.mu.Lock()
			b.timer.Stop()
			b.mu.Unlock()
		}
		nc.Close()
	})
	for i := range n {
		b := &box{id: fmt.Sprintf("box%d", i), inst: string(bus.NewInstanceID())}
		b.timer = time.AfterFunc(time.Hour, func() { s.beat(b) })
		s.boxes[b.id] = b
	}
	zone := string(bus.DefaultZone)
	sub, err := nc.Subscribe("_I."+zone+".>", func(m *nats.Msg) {
		if t := strings.Split(m.Subject, "."); t[3] == "hello" {
			s.hello(s.boxes[t[2]])
		}
	})
	require.NoError(tb, err)
	require.NoError(tb, sub.SetPendingLimits(-1, -1))
	_, err = nc.Subscribe("bc."+zone, func(m *nats.Msg) {
		var now sandbusv1.BeatNow
		if proto.Unmarshal(m.Data, &now) == nil {
			for _, b := range s.boxes {
				b.next(part(time.Duration(now.GetSpreadMs()) * time.Millisecond))
			}
		}
	})
	require.NoError(tb, err)
	for _, b := range s.boxes {
		s.hello(b)
		b.next(part(SwarmBeat))
	}
	require.NoError(tb, nc.Flush())
	return s
}

func (b *box) next(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer.Reset(d)
}

// part is a random part of a time.
func part(d time.Duration) time.Duration {
	return time.Duration(rand.Float64() * float64(d)) //nolint:gosec // G404: spreads load, hides nothing
}

// hello says hello; a lost one is asked for again at the next beat.
func (s *Swarm) hello(b *box) {
	b.mu.Lock()
	h := &sandbusv1.Hello{
		Instance: b.inst, Protocol: bus.ProtocolVersion, Slots: 2, Arch: "amd64", Os: "linux", Version: "v1.2.3", Seq: b.seq,
		Labels: map[string]string{"team": "alpha"}, Capabilities: []string{"files", "exec", "shell"}, Shells: []string{"/bin/bash"},
		Features: []string{"streams.1", "shell.run", "session.open", "exec.start"},
	}
	b.mu.Unlock()
	payload, err := proto.Marshal(h)
	if err == nil {
		zone := string(bus.DefaultZone)
		_ = s.nc.PublishRequest("evt."+zone+"."+b.id+".hello", "_I."+zone+"."+b.id+".swarm", payload) // as above
	}
}

func (s *Swarm) beat(b *box) {
	if s.life.Err() != nil {
		return
	}
	b.mu.Lock()
	b.seq++
	payload, err := proto.Marshal(&sandbusv1.Beat{Instance: b.inst, Seq: b.seq, Slots: 2, Load: int32(b.seq % 3), Version: "v1.2.3"})
	b.mu.Unlock()
	if err == nil {
		_ = s.nc.Publish("hb."+string(bus.DefaultZone)+"."+b.id, payload) // the next one may get through
	}
	b.next(SwarmBeat*4/5 + part(SwarmBeat*2/5))
}

// LoseBucket has the hub forget all of presence.
func (s *Swarm) LoseBucket(tb testing.TB) {
	tb.Helper()
	js, err := s.nc.JetStream()
	require.NoError(tb, err)
	require.NoError(tb, js.DeleteStream("KV_"+bus.PresenceBucket))
}
