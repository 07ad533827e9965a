package bus

import (
	"context"
	"encoding/json"
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
type Registrar struct {
	conn   *Conn
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	log    *slog.Logger
	subs   []*nats.Subscription
	lanes  []chan *nats.Msg
	seed   maphash.Seed
	wg     sync.WaitGroup
	life   context.Context //nolint:containedctx // the registrar's own life, ended by Stop
	cancel context.CancelFunc
}

const (
	// registrarLanes is how many writes to the bucket are on their way at once. One sandbox is always in one lane, so
	// that what it says stays in order.
	registrarLanes = 8
	// laneDepth holds a beat of every sandbox of a full lane (10,000 sandboxes); what is beyond is dropped, the next
	// beat makes up for it.
	laneDepth = 2048
	// maxSaid bounds a hello, beat or goodbye, in bytes.
	maxSaid = 64 << 10
)

// StartRegistrar makes the presence bucket where there is none and begins to listen.
func StartRegistrar(ctx context.Context, conn *Conn, log *slog.Logger) (*Registrar, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	js, err := jetstream.New(conn.nc)
	if err != nil {
		return nil, fmt.Errorf("registrar: %w", err)
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: PresenceBucket, Description: "live sandbus workers", History: 1, Storage: jetstream.MemoryStorage,
		LimitMarkerTTL: time.Minute, MaxValueSize: maxSaid,
	})
	if err != nil {
		return nil, fmt.Errorf("registrar: presence bucket: %w", err)
	}
	r := &Registrar{conn: conn, js: js, kv: kv, log: log, seed: maphash.MakeSeed()}
	r.life, r.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // the cause is never asked for
	for range registrarLanes {
		lane := make(chan *nats.Msg, laneDepth)
		r.lanes = append(r.lanes, lane)
		r.wg.Go(func() {
			for m := range lane {
				r.handle(m)
			}
		})
	}
	for _, subject := range []string{"hb.>", "evt.>"} {
		sub, err := conn.subscribe(subject, r.receive)
		if err != nil {
			r.Stop()
			return nil, err
		}
		r.subs = append(r.subs, sub)
	}
	if err := conn.publish("bc."+string(DefaultZone), nil); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

// Stop ends the registrar; the connection stays open. It may be called once.
func (r *Registrar) Stop() {
	for _, sub := range r.subs {
		done := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(done) })
		if sub.Drain() == nil { // its callback does not run any more when it is done
			<-done
		}
	}
	r.cancel()
	for _, lane := range r.lanes {
		close(lane)
	}
	r.wg.Wait()
}

func (r *Registrar) receive(m *nats.Msg) {
	s, err := ParseSubject(m.Subject)
	if err != nil || len(m.Data) > maxSaid {
		r.log.Warn("registrar drops a message", "size", len(m.Data))
		return
	}
	lane := r.lanes[maphash.String(r.seed, presenceKey(s.Zone, s.Sandbox))%registrarLanes]
	select {
	case lane <- m:
	default:
		r.log.Warn("registrar is behind", "sandbox", string(s.Sandbox))
	}
}

func (r *Registrar) handle(m *nats.Msg) {
	s, err := ParseSubject(m.Subject)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.life, PresenceTTL/4)
	defer cancel()
	switch {
	case s.Kind == SubjectBeat:
		err = r.beat(ctx, s, m.Data)
	case s.Event == "hello":
		err = r.hello(ctx, s, m)
	case s.Event == "goodbye":
		err = r.goodbye(ctx, s, m.Data)
	}
	if err != nil && r.life.Err() == nil {
		r.log.Warn("registrar", "sandbox", string(s.Sandbox), "zone", string(s.Zone), "error", err)
	}
}

// get reads a worker's presence, with the revision that an update must name: 0 when the key has never been there.
func (r *Registrar) get(ctx context.Context, s Subject) (p Presence, revision uint64, found bool, err error) {
	e, err := r.kv.Get(ctx, presenceKey(s.Zone, s.Sandbox))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Presence{}, 0, false, nil
	}
	if err != nil {
		return Presence{}, 0, false, err
	}
	p, err = parsePresence(e.Key(), e.Value())
	return p, e.Revision(), err == nil, err
}

// put writes a worker's presence for one TTL. kv.Update would drop the TTL (nats.go issue 1994).
func (r *Registrar) put(ctx context.Context, p Presence, revision uint64, found bool) error {
	p.LastBeat = time.Now().UTC()
	value, err := json.Marshal(p)
	if err != nil {
		return err
	}
	key := presenceKey(p.Zone, p.Sandbox)
	if !found {
		_, err = r.kv.Create(ctx, key, value, jetstream.KeyTTL(PresenceTTL))
		return err
	}
	m := nats.NewMsg("$KV." + PresenceBucket + "." + key)
	m.Data = value
	_, err = r.js.PublishMsg(ctx, m, jetstream.WithMsgTTL(PresenceTTL), jetstream.WithExpectLastSequencePerSubject(revision))
	return err
}

func (r *Registrar) beat(ctx context.Context, s Subject, data []byte) error {
	var b sandbusv1.Beat
	if err := proto.Unmarshal(data, &b); err != nil {
		return fmt.Errorf("a beat that is none: %w", err)
	}
	p, revision, found, err := r.get(ctx, s)
	if err != nil {
		return err
	}
	if !found {
		// Expired, or we never knew it: a beat does not say enough of a worker to make its record.
		return r.conn.publish(join("_I", string(s.Zone), string(s.Sandbox), "hello"), nil)
	}
	if string(p.Instance) != b.GetInstance() {
		return fmt.Errorf("a beat of instance %.63q, the id is held by %s", b.GetInstance(), p.Instance)
	}
	p.Load, p.Used, p.Draining = clamp(b.GetLoad()), clamp(b.GetUsed()), b.GetDraining()
	return r.put(ctx, p, revision, true)
}

func clamp(n int32) int32 { return max(0, min(n, maxSlots)) }

func (r *Registrar) hello(ctx context.Context, s Subject, m *nats.Msg) error {
	answer := &sandbusv1.HelloResponse{BeatMs: beatEvery.Milliseconds()}
	err := r.adopt(ctx, s, m.Data, answer)
	if err != nil {
		var be *Error
		if !errors.As(err, &be) && answer.GetHolder() == "" {
			return err // not the worker's fault: it asks again
		}
		answer.Error = ToWire(err)
	}
	payload, merr := proto.Marshal(answer)
	if merr != nil {
		return merr
	}
	if own := join("_I", string(s.Zone), string(s.Sandbox)) + "."; len(m.Reply) <= len(own) || m.Reply[:len(own)] != own {
		return errors.New("a hello without a reply subject of its own")
	}
	return errors.Join(err, r.conn.publish(m.Reply, payload))
}

func (r *Registrar) adopt(ctx context.Context, s Subject, data []byte, answer *sandbusv1.HelloResponse) error {
	var h sandbusv1.Hello
	if err := proto.Unmarshal(data, &h); err != nil {
		return Errorf(sandbusv1.Code_CODE_INVALID, "the payload is no Hello: %v", err)
	}
	if err := checkHello(&h); err != nil {
		return err
	}
	now := time.Now().UTC()
	p := Presence{
		Zone: s.Zone, Sandbox: s.Sandbox, Instance: InstanceID(h.GetInstance()), Protocol: h.GetProtocol(),
		Features: h.GetFeatures(), Labels: h.GetLabels(), Capabilities: h.GetCapabilities(), Image: h.GetImage(),
		Arch: h.GetArch(), OS: h.GetOs(), Trust: h.GetTrust(), Slots: h.GetSlots(), Shells: h.GetShells(),
		Version: h.GetVersion(), Started: now,
		Worker: privileges(h.GetWorker()), Commands: privileges(h.GetCommands()), Files: privileges(h.GetFiles()),
	}
	if p.Trust == "" {
		p.Trust = "untrusted"
	}
	old, revision, found, err := r.get(ctx, s)
	if err != nil {
		return err
	}
	if found && old.Instance != p.Instance {
		answer.Holder = string(old.Instance)
		return Errorf(sandbusv1.Code_CODE_EXISTS, "sandbox %s.%s is held by live instance %s", s.Zone, s.Sandbox, old.Instance)
	}
	if found {
		p.Started = old.Started
	}
	if err := r.put(ctx, p, revision, found); err != nil {
		return err
	}
	if !found {
		r.log.Info("sandbox is live", "zone", string(s.Zone), "sandbox", string(s.Sandbox), "instance", h.GetInstance())
	}
	return nil
}

// maxSlots bounds what a worker may claim.
const maxSlots = 65535

func checkHello(h *sandbusv1.Hello) error {
	if _, err := ParseInstanceID(h.GetInstance()); err != nil {
		return Errorf(sandbusv1.Code_CODE_INVALID, "%v", err)
	}
	if h.GetProtocol() != ProtocolVersion {
		return Errorf(sandbusv1.Code_CODE_INVALID, "protocol %d: this registrar speaks %d", h.GetProtocol(), ProtocolVersion)
	}
	if t := h.GetTrust(); t != "" && t != "trusted" && t != "untrusted" {
		return Errorf(sandbusv1.Code_CODE_INVALID, `trust %.64q: want "trusted" or "untrusted"`, t)
	}
	if n := h.GetSlots(); n < 1 || n > maxSlots {
		return Errorf(sandbusv1.Code_CODE_INVALID, "slots %d: want 1 to %d", n, maxSlots)
	}
	for what, list := range map[string][]string{"features": h.GetFeatures(), "capabilities": h.GetCapabilities()} {
		if err := checkList(what, list, 64, 64); err != nil {
			return err
		}
	}
	if err := checkList("shells", h.GetShells(), 16, 256); err != nil {
		return err
	}
	if err := checkList("image, arch, os, version", []string{h.GetImage(), h.GetArch(), h.GetOs(), h.GetVersion()}, 4, 256); err != nil {
		return err
	}
	if len(h.GetLabels()) > 64 {
		return Errorf(sandbusv1.Code_CODE_INVALID, "%d labels: the bound is 64", len(h.GetLabels()))
	}
	for k, v := range h.GetLabels() {
		if k == "" || len(k) > 64 || len(v) > 256 {
			return Errorf(sandbusv1.Code_CODE_INVALID, "label %.64q: want a name of 1 to 64 bytes and a value of at most 256", k)
		}
	}
	return nil
}

func checkList(what string, list []string, count, size int) error {
	if len(list) > count {
		return Errorf(sandbusv1.Code_CODE_INVALID, "%s: %d of them, the bound is %d", what, len(list), count)
	}
	for _, s := range list {
		if len(s) > size {
			return Errorf(sandbusv1.Code_CODE_INVALID, "%s: one has %d bytes, the bound is %d", what, len(s), size)
		}
	}
	return nil
}

func (r *Registrar) goodbye(ctx context.Context, s Subject, data []byte) error {
	var g sandbusv1.Goodbye
	if err := proto.Unmarshal(data, &g); err != nil {
		return fmt.Errorf("a goodbye that is none: %w", err)
	}
	p, revision, found, err := r.get(ctx, s)
	if err != nil || !found || string(p.Instance) != g.GetInstance() {
		return err
	}
	r.log.Info("sandbox said goodbye", "zone", string(s.Zone), "sandbox", string(s.Sandbox))
	return r.kv.Purge(ctx, presenceKey(s.Zone, s.Sandbox), jetstream.LastRevision(revision), jetstream.PurgeTTL(time.Minute))
}
