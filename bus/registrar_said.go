package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// maxSlots bounds what a worker may claim.
	maxSlots = 65535
	// maxAhead is how far a beat's number may be ahead of the last one's: more than a worker can have sent since.
	maxAhead = 100_000
)

func clamp(n int32) int32 { return max(0, min(n, maxSlots)) }

// beat takes a beat of a worker whose hello we know.
func (r *Registrar) beat(ctx context.Context, s Subject, data []byte) error {
	var b sandbusv1.Beat
	if err := proto.Unmarshal(data, &b); err != nil {
		return fmt.Errorf("a beat that is none: %w", err)
	}
	return r.update(ctx, presenceKey(s.Zone, s.Sandbox), func(old *record) (Presence, time.Duration, error) {
		if old == nil {
			// Expired, or we never knew it: a beat does not say enough of a worker to make its record.
			return Presence{}, 0, r.askForHello(s)
		}
		if p, ok := next(old.Presence, &b); ok {
			return p, PresenceTTL, nil
		}
		switch {
		case string(old.Instance) != b.GetInstance():
			return Presence{}, 0, fmt.Errorf("a beat of instance %.63q, the id is held by %s", b.GetInstance(), old.Instance)
		case b.GetSeq() <= old.Seq: // said before: by a replay, or to the registrar who was faster
			return Presence{}, 0, nil
		}
		return Presence{}, 0, errors.Join(fmt.Errorf("beat %d follows beat %d: want at most %d more", b.GetSeq(), old.Seq, maxAhead), r.askForHello(s))
	})
}

func (r *Registrar) askForHello(s Subject) error {
	return r.conn.publish(join("_I", string(s.Zone), string(s.Sandbox), "hello"), nil)
}

// hello takes a hello and answers it; where another instance holds the id, the answer may come after a probe of it.
func (r *Registrar) hello(ctx context.Context, s Subject, m *nats.Msg) error {
	own := join("_I", string(s.Zone), string(s.Sandbox)) + "."
	if !strings.HasPrefix(m.Reply, own) || len(m.Reply) == len(own) {
		return errors.New("a hello without a reply subject of its own")
	}
	var h sandbusv1.Hello
	if err := proto.Unmarshal(m.Data, &h); err != nil {
		return r.answer(m, Errorf(sandbusv1.Code_CODE_INVALID, "the payload is no Hello: %v", err), "")
	}
	if err := checkHello(&h); err != nil {
		return r.answer(m, err, "")
	}
	holder, err := r.adopt(ctx, s, &h)
	if err != nil {
		return err // not the worker's fault: it asks again
	}
	if holder == nil {
		return r.answer(m, nil, "")
	}
	if r.probeHolder(s, holder, m) {
		return nil
	}
	return r.refuse(s, &h, holder, m)
}

func (r *Registrar) answer(m *nats.Msg, why error, holder InstanceID) error {
	payload, err := proto.Marshal(&sandbusv1.HelloResponse{BeatMs: beatEvery.Milliseconds(), Error: ToWire(why), Holder: string(holder)})
	if err != nil {
		return err
	}
	return errors.Join(why, r.conn.publish(m.Reply, payload))
}

// refuse tells a worker that the id is another's.
func (r *Registrar) refuse(s Subject, h *sandbusv1.Hello, holder *record, m *nats.Msg) error {
	r.noteRefused(s, h)
	return r.answer(m, Errorf(sandbusv1.Code_CODE_EXISTS, "sandbox %s.%s is held by live instance %s", s.Zone, s.Sandbox, holder.Instance), holder.Instance)
}

// adopt makes an instance the one that presence names, or returns the other one that is.
func (r *Registrar) adopt(ctx context.Context, s Subject, h *sandbusv1.Hello) (holder *record, err error) {
	fresh := false
	err = r.update(ctx, presenceKey(s.Zone, s.Sandbox), func(old *record) (Presence, time.Duration, error) {
		now := time.Now().UTC()
		p := Presence{
			Zone: s.Zone, Sandbox: s.Sandbox, Instance: InstanceID(h.GetInstance()), Protocol: h.GetProtocol(),
			Features: h.GetFeatures(), Labels: h.GetLabels(), Capabilities: h.GetCapabilities(), Image: h.GetImage(),
			Arch: h.GetArch(), OS: h.GetOs(), Trust: h.GetTrust(), Slots: h.GetSlots(), Shells: h.GetShells(),
			Version: h.GetVersion(), Started: now, LastBeat: now, Seq: h.GetSeq(),
			ServerID: h.GetServerId(), ClientID: h.GetClientId(),
			Worker: privileges(h.GetWorker()), Commands: privileges(h.GetCommands()), Files: privileges(h.GetFiles()),
		}
		if p.Trust == "" {
			p.Trust = "untrusted"
		}
		holder, fresh = nil, old == nil
		if old == nil {
			return p, PresenceTTL, nil
		}
		if old.Instance != p.Instance {
			holder = old
			return p, 0, nil
		}
		p.Started, p.Load, p.Used, p.Draining = old.Started, old.Load, old.Used, old.Draining
		return p, PresenceTTL, nil
	})
	if err == nil && fresh {
		r.log.Info("sandbox is live", "zone", string(s.Zone), "sandbox", string(s.Sandbox), "instance", h.GetInstance())
	}
	return holder, err
}

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
	if id := h.GetServerId(); id != "" && !isServerID(id) {
		return Errorf(sandbusv1.Code_CODE_INVALID, "server id %.80q: want at most 64 capital letters and digits", id)
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
	return r.remove(ctx, presenceKey(s.Zone, s.Sandbox), "it said goodbye", func(e *record) bool {
		return string(e.Instance) == g.GetInstance()
	})
}

// canBeProbed says that a worker listens on its probe subject: an older one does not, and silence there means nothing.
func canBeProbed(e *record) bool { return slices.Contains(e.Features, featureProbe) }
