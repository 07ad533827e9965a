package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// ProtocolVersion is the version of the wire rules that this package speaks.
const ProtocolVersion = 1

// beatEvery is how often a worker beats, give or take a fifth.
const beatEvery = 5 * time.Second

// ErrDuplicate says that another live worker has the sandbox's id.
var ErrDuplicate = errors.New("another live worker has this sandbox id")

// Announcer makes a worker known: hello, beats, goodbye. Its fields are set before Run.
type Announcer struct {
	Conn   *Conn
	Target Target
	Hello  *sandbusv1.Hello // its instance is set by Run
	// Beat fills in load, slots in use and draining.
	Beat func(*sandbusv1.Beat)
	// Ready is called after the first accepted hello; nil means nobody.
	Ready  func()
	Logger *slog.Logger // nil discards

	mu  sync.Mutex // guards the field below
	seq uint64
}

// Run announces the worker until ctx ends; it does not say goodbye. Errors: ErrDuplicate, *[Error] of a refused hello,
// or nil when ctx ended.
func (a *Announcer) Run(ctx context.Context) error {
	if a.Logger == nil {
		a.Logger = slog.New(slog.DiscardHandler)
	}
	a.Hello.Instance = string(a.Target.Instance)
	a.Hello.Protocol = ProtocolVersion
	if !slices.Contains(a.Hello.GetFeatures(), featureProbe) {
		a.Hello.Features = append(a.Hello.Features, featureProbe)
	}
	own := join(string(a.Target.Zone), string(a.Target.Sandbox))
	again := make(chan struct{}, 1) // somebody wants to hear hello
	ask := func(*nats.Msg) {
		select {
		case again <- struct{}{}:
		default:
		}
	}
	soon := make(chan time.Duration, 1) // somebody wants to hear a beat within a time
	for subject, f := range map[string]nats.MsgHandler{
		"_I." + own + ".hello":        ask,
		"bc." + string(a.Target.Zone): func(m *nats.Msg) { a.beatSoon(soon, m.Data) },
		probeSubject(a.Target.Zone, a.Target.Sandbox, a.Target.Instance): func(*nats.Msg) { a.beat(own) },
	} {
		sub, err := a.Conn.subscribe(subject, f)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	}
	a.Conn.onReconnected(a, func() { ask(nil) })
	defer a.Conn.onReconnected(a, nil)

	ready := a.Ready
	for {
		every, err := a.hello(ctx, own)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if ready != nil {
			ready()
			ready = nil
		}
		if !a.beatUntil(ctx, every, own, again, soon) {
			return nil
		}
	}
}

// hello repeats until the registrar has answered. It returns how often to beat.
func (a *Announcer) hello(ctx context.Context, own string) (time.Duration, error) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, beatEvery) {
		payload, err := a.helloNow()
		if err != nil {
			return 0, fmt.Errorf("hello: %w", err)
		}
		req, cancel := context.WithTimeout(ctx, 2*time.Second)
		m, err := a.Conn.nc.RequestWithContext(req, "evt."+own+".hello", payload)
		cancel()
		if err == nil {
			return a.accepted(m.Data)
		}
		if ctx.Err() != nil {
			return 0, nil //nolint:nilerr // the end of ctx is no error of Run
		}
		a.Logger.Debug("no registrar answers", "error", err)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, nil
		}
	}
}

// helloNow is the hello with what changes between two of them.
func (a *Announcer) helloNow() ([]byte, error) {
	c := a.Conn.connection()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Hello.Seq, a.Hello.ServerId, a.Hello.ClientId = a.seq, c.server, c.client
	return proto.Marshal(a.Hello)
}

// maxSpread bounds the time within which "beat now" is answered: presence must not expire meanwhile.
const maxSpread = 10 * time.Second

// beatSoon takes a "beat now".
func (a *Announcer) beatSoon(soon chan<- time.Duration, payload []byte) {
	var now sandbusv1.BeatNow
	if err := proto.Unmarshal(payload, &now); err != nil {
		a.Logger.Debug("beat now: the payload is no BeatNow", "error", err)
	}
	spread := max(0, min(time.Duration(now.GetSpreadMs())*time.Millisecond, maxSpread))
	select {
	case soon <- spread:
	default: // one is under way
	}
}

func (a *Announcer) accepted(answer []byte) (time.Duration, error) {
	var resp sandbusv1.HelloResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return 0, fmt.Errorf("hello: the registrar's answer is no HelloResponse: %w", err)
	}
	if h := resp.GetHolder(); h != "" {
		return 0, fmt.Errorf("%w: %s.%s is held by instance %.63s; stop that worker, or start this one with another id",
			ErrDuplicate, a.Target.Zone, a.Target.Sandbox, h)
	}
	if err := FromWire(resp.GetError()); err != nil {
		return 0, fmt.Errorf("hello refused: %w", err)
	}
	every := time.Duration(resp.GetBeatMs()) * time.Millisecond
	if every < 100*time.Millisecond || every > PresenceTTL/2 {
		every = beatEvery
	}
	return every, nil
}

// beatUntil beats until ctx ends (false) or somebody wants to hear hello (true).
func (a *Announcer) beatUntil(ctx context.Context, every time.Duration, own string, again <-chan struct{}, soon <-chan time.Duration) bool {
	for {
		jitter := time.Duration((rand.Float64()*0.4 - 0.2) * float64(every)) //nolint:gosec // G404: spreads load, hides nothing
		next := time.Now().Add(every + jitter)
		t := time.NewTimer(every + jitter)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				t.Stop()
				return false
			case <-again:
				t.Stop()
				return true
			case spread := <-soon:
				if delay := time.Duration(rand.Float64() * float64(spread)); delay < time.Until(next) { //nolint:gosec // G404: as above
					next = time.Now().Add(delay)
					t.Reset(delay)
				}
			case <-t.C:
				waiting = false
			}
		}
		a.beat(own)
	}
}

func (a *Announcer) beat(own string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seq++
	b := &sandbusv1.Beat{Instance: string(a.Target.Instance), Seq: a.seq, Slots: a.Hello.GetSlots(), Version: a.Hello.GetVersion()}
	if a.Beat != nil {
		a.Beat(b)
	}
	payload, err := proto.Marshal(b)
	if err == nil {
		err = a.Conn.publish("hb."+own, payload)
	}
	if err != nil {
		a.Logger.Debug("beat not sent", "error", err)
	}
}

// BeatNow beats out of turn, when something has changed that others should know soon.
func (a *Announcer) BeatNow() { a.beat(join(string(a.Target.Zone), string(a.Target.Sandbox))) }

// Goodbye says that the worker ends. It is best effort: presence expires without it.
func (a *Announcer) Goodbye(reason string) {
	payload, err := proto.Marshal(&sandbusv1.Goodbye{Instance: string(a.Target.Instance), Reason: reason})
	if err == nil {
		_ = a.Conn.publish(join("evt", string(a.Target.Zone), string(a.Target.Sandbox), "goodbye"), payload)
	}
}
