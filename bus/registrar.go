package bus

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Registrar turns what workers say of themselves into presence. Workers have no right on the bucket: one header on a
// key of its own would let a worker wipe it (protocol.md, "Who may do what"). Everything that it reads comes from
// untrusted senders, except the zone and id in the subject, for which the hub vouches.
//
// Any number of registrars may serve one hub. Each hears everything and writes everything; a write names the revision
// that it replaces, so that the one who comes second sees that it is done.
type Registrar struct {
	conn *Conn
	cfg  RegistrarConfig
	js   jetstream.JetStream
	log  *slog.Logger
	subs []*nats.Subscription // to what workers say
	// probes is the subscription to what the hub says of probes.
	probes *nats.Subscription
	unsys  func() // ends the subscription to the system account's events
	lanes  []chan task
	seed   maphash.Seed
	inbox  string // where the hub's answers to probes come
	again  chan struct{}

	wg     sync.WaitGroup
	life   context.Context //nolint:containedctx // the registrar's own life, ended by Stop
	cancel context.CancelCauseFunc

	mu      sync.Mutex // guards the fields below
	kv      jetstream.KeyValue
	view    map[string]*record // what is in the bucket, as far as this registrar knows
	holders map[connection]string
	refused map[string]duplicateSeen
	waiting map[string]*nats.Msg // hellos that wait for a probe of the holder, by key
	// gathered are beats that will be written together.
	gathered []said
}

// RegistrarConfig says how a registrar works; its zero value is one for a hub of one server.
type RegistrarConfig struct {
	// Replicas is on how many servers of a cluster the bucket is kept, 1 to 5; zero means as many as it is kept on
	// already, and one for a new bucket.
	Replicas int
	// Zones are asked for beats at the start, in addition to the default zone and those in the bucket. Workers of other
	// zones are found by their next beat.
	Zones []Zone
	// System is the hub's system account: then a worker is gone as soon as its connection is closed, and a duplicate
	// that stays is disconnected. Nil means that beats and probes have to tell. It stays open.
	System *System
	// Logger gets what happens; nil discards it.
	Logger *slog.Logger
}

const (
	// registrarLanes is how many writes to the bucket are on their way at once. One sandbox is always in one lane, so
	// that what it says stays in order.
	registrarLanes = 8
	// laneDepth holds a beat of every sandbox of a full lane (10,000 sandboxes); what is beyond is dropped, the next
	// beat makes up for it.
	laneDepth = 2048
	// saidQueue holds what comes faster than it is handed to the lanes, all hellos of a hub that has restarted at once.
	saidQueue = 1 << 14
	// maxSaid bounds a hello, beat or goodbye, in bytes.
	maxSaid = 64 << 10
	// beatNowSpread is over what time the answers to "beat now" are spread: 10,000 sandboxes must be seen again within
	// 10 s, and not all in the same instant.
	beatNowSpread = 2 * time.Second
	// bucketPatience is how long the start may take: a cluster that has no leader yet needs a while.
	bucketPatience = 30 * time.Second
	// bucketTry is how long one try may take: what a cluster without a leader is asked, nobody answers.
	bucketTry = 4 * time.Second
	// sweepEvery is how often silent workers are looked for.
	sweepEvery = time.Second
)

var errRegistrarStopped = errors.New("registrar stopped")

// task is something to be done for one sandbox, in its lane.
type task struct {
	at Subject // zone and sandbox count; and the instance, for what is about one
	do func(ctx context.Context, at Subject) error
}

// StartRegistrar makes the presence bucket where there is none, begins to listen, and asks all workers for a beat.
// Errors: the hub has no JetStream or refuses the credential, replicas that it cannot have, the context's.
func StartRegistrar(ctx context.Context, conn *Conn, cfg RegistrarConfig) (*Registrar, error) {
	if cfg.Replicas < 0 || cfg.Replicas > 5 {
		return nil, fmt.Errorf("registrar: replicas %d: want 1 to 5, or 0 for what the bucket has", cfg.Replicas)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	js, err := jetstream.New(conn.nc)
	if err != nil {
		return nil, fmt.Errorf("registrar: %w", err)
	}
	r := &Registrar{
		conn: conn, cfg: cfg, js: js, log: cfg.Logger, seed: maphash.MakeSeed(), inbox: conn.nc.NewInbox(), again: make(chan struct{}, 1),
		view: map[string]*record{}, holders: map[connection]string{}, refused: map[string]duplicateSeen{}, waiting: map[string]*nats.Msg{},
	}
	r.life, r.cancel = context.WithCancelCause(context.Background())
	for range registrarLanes {
		lane := make(chan task, laneDepth)
		r.lanes = append(r.lanes, lane)
		r.wg.Go(func() { r.work(lane) })
	}
	if err := r.start(ctx); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

func (r *Registrar) start(ctx context.Context) error {
	patience, cancel := context.WithTimeout(ctx, bucketPatience)
	defer cancel()
	for {
		try, cancel := context.WithTimeout(patience, bucketTry)
		err := r.openBucket(try)
		cancel()
		if err == nil {
			break
		}
		if patience.Err() != nil || isPermanent(err) {
			return err
		}
		r.log.Debug("presence bucket not open yet", "error", err)
		if !pause(patience, 200*time.Millisecond) {
			return err
		}
	}
	heard := make(chan *nats.Msg, saidQueue) // both subjects: what a worker says is taken in its order
	for _, subject := range []string{"hb.>", "evt.>"} {
		sub, err := r.conn.subscribeChan(subject, heard)
		if err != nil {
			return err
		}
		r.subs = append(r.subs, sub)
	}
	r.wg.Go(func() { r.listen(heard) })
	probes, err := r.conn.subscribe(r.inbox+".>", r.probed)
	if err != nil {
		return err
	}
	r.probes = probes
	if r.cfg.System != nil {
		stop, err := r.cfg.System.onDisconnect(r.disconnected)
		if err != nil {
			return fmt.Errorf("registrar: %w", err)
		}
		r.unsys = stop
	}
	r.conn.onReconnected(r, r.reopen)
	r.wg.Go(r.keepBucket)
	r.wg.Go(r.sweep)
	r.wg.Go(r.writeGathered)
	return r.askForBeats()
}

// Stop ends the registrar; the connections stay open. It may be called once.
func (r *Registrar) Stop() {
	r.conn.onReconnected(r, nil)
	if r.unsys != nil {
		r.unsys()
	}
	for _, sub := range r.subs {
		_ = sub.Unsubscribe() // fails only when the connection is closed
	}
	if r.probes != nil {
		endSubscription(r.probes)
	}
	r.cancel(errRegistrarStopped)
	r.wg.Wait()
}

// endSubscription ends a subscription and waits for its callback. It does not drain, which takes long when the hub is
// gone.
func endSubscription(sub *nats.Subscription) {
	done := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(done) })
	if sub.Unsubscribe() == nil { // else the connection is closed
		<-done
	}
}

// pause waits, and says whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *Registrar) work(lane chan task) {
	for {
		select {
		case t := <-lane:
			ctx, cancel := context.WithTimeout(r.life, PresenceTTL/4)
			err := t.do(ctx, t.at)
			cancel()
			if err != nil && r.life.Err() == nil {
				r.log.Warn("registrar", "sandbox", string(t.at.Sandbox), "zone", string(t.at.Zone), "error", err)
			}
			if bucketLost(err) {
				r.reopen()
			}
		case <-r.life.Done():
			return
		}
	}
}

// enqueue has something done in the sandbox's lane; it does not wait.
func (r *Registrar) enqueue(at Subject, do func(context.Context, Subject) error) {
	lane := r.lanes[maphash.String(r.seed, presenceKey(at.Zone, at.Sandbox))%registrarLanes]
	select {
	case lane <- task{at, do}:
	default:
		r.log.Warn("registrar is behind", "sandbox", string(at.Sandbox), "zone", string(at.Zone))
	}
}

func (r *Registrar) listen(heard <-chan *nats.Msg) {
	for {
		select {
		case m := <-heard:
			r.receive(m)
		case <-r.life.Done():
			return
		}
	}
}

// receive takes what a worker says.
func (r *Registrar) receive(m *nats.Msg) {
	s, err := ParseSubject(m.Subject)
	if err != nil || len(m.Data) > maxSaid {
		r.log.Warn("registrar drops a message", "size", len(m.Data))
		return
	}
	switch {
	case s.Kind == SubjectBeat:
		if !r.gather(s, m) {
			r.inLane(said{s, m})
		}
	case s.Event == "hello":
		r.enqueue(s, func(ctx context.Context, s Subject) error { return r.hello(ctx, s, m) })
	case s.Event == "goodbye":
		r.enqueue(s, func(ctx context.Context, s Subject) error { return r.goodbye(ctx, s, m.Data) })
	}
}

// reopen has the bucket looked at again: the hub may have lost it.
func (r *Registrar) reopen() {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

// keepBucket makes the bucket anew where a hub has come back without it, and asks for beats.
func (r *Registrar) keepBucket() {
	for {
		select {
		case <-r.again:
		case <-r.life.Done():
			return
		}
		for {
			ctx, cancel := context.WithTimeout(r.life, bucketTry)
			err := r.openBucket(ctx)
			cancel()
			if err == nil {
				err = r.askForBeats()
			}
			if err == nil {
				break
			}
			r.log.Warn("presence bucket not open", "error", err)
			if !pause(r.life, 500*time.Millisecond) {
				return
			}
		}
		if !pause(r.life, sweepEvery) { // one answer to many that find it missing
			return
		}
	}
}

// askForBeats asks the workers of every zone that we know.
func (r *Registrar) askForBeats() error {
	payload, err := proto.Marshal(&sandbusv1.BeatNow{SpreadMs: beatNowSpread.Milliseconds()})
	if err != nil {
		return err
	}
	zones := map[Zone]bool{DefaultZone: true}
	for _, z := range r.cfg.Zones {
		zones[z] = true
	}
	r.mu.Lock()
	for _, e := range r.view {
		zones[e.Zone] = true
	}
	r.mu.Unlock()
	for z := range zones {
		if err := r.conn.publish("bc."+string(z), payload); err != nil {
			return err
		}
	}
	return nil
}
