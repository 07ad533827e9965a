package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Presence is what the hub knows of a live worker: the value of its key in the presence bucket, as JSON.
type Presence struct {
	Zone         Zone              `json:"zone"`
	Sandbox      SandboxID         `json:"sandbox"`
	Instance     InstanceID        `json:"instance"`
	Protocol     int32             `json:"protocol"`
	Features     []string          `json:"features,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Capabilities []string          `json:"capabilities,omitempty"`
	Image        string            `json:"image,omitempty"`
	Arch         string            `json:"arch"`
	OS           string            `json:"os"`
	Trust        string            `json:"trust"` // "trusted" or "untrusted"
	Slots        int32             `json:"slots"` // leases granted at once
	Used         int32             `json:"used"`  // of them taken
	Load         int32             `json:"load"`  // requests under way
	Shells       []string          `json:"shells,omitempty"`
	Version      string            `json:"version"`
	Draining     bool              `json:"draining,omitempty"`
	Started      time.Time         `json:"started"`   // when the registrar first heard of the instance
	LastBeat     time.Time         `json:"last_beat"` // by the registrar's clock
}

// Target is where requests to the worker go.
func (p Presence) Target() Target { return Target{p.Zone, p.Sandbox, p.Instance} }

// PresenceTTL is how long a worker counts as live after its last beat.
const PresenceTTL = 17 * time.Second

// ErrUnknownSandbox says that presence has no live worker for an id.
var ErrUnknownSandbox = errors.New("unknown sandbox: no live worker has that id")

func presenceKey(z Zone, id SandboxID) string { return string(z) + "." + string(id) }

// Directory reads presence.
type Directory struct {
	conn *Conn
	kv   jetstream.KeyValue
}

// OpenDirectory finds the presence bucket. Errors: there is none (no registrar runs), the context's.
func OpenDirectory(ctx context.Context, conn *Conn) (*Directory, error) {
	js, err := jetstream.New(conn.nc)
	if err != nil {
		return nil, fmt.Errorf("presence: %w", err)
	}
	kv, err := js.KeyValue(ctx, PresenceBucket)
	if err != nil {
		return nil, fmt.Errorf("presence bucket (does a registrar run at this hub?): %w", err)
	}
	return &Directory{conn: conn, kv: kv}, nil
}

// Lookup finds the live worker of a sandbox. Errors: ErrUnknownSandbox, the context's.
func (d *Directory) Lookup(ctx context.Context, z Zone, id SandboxID) (Presence, error) {
	e, err := d.kv.Get(ctx, presenceKey(z, id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Presence{}, ErrUnknownSandbox
	}
	if err != nil {
		return Presence{}, fmt.Errorf("presence of %s: %w", id, err)
	}
	return parsePresence(e.Key(), e.Value())
}

// List returns all live workers, sorted by zone and id.
func (d *Directory) List(ctx context.Context) ([]Presence, error) {
	w, err := d.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("presence: %w", err)
	}
	defer func() { _ = w.Stop() }() // the values are in hand
	var out []Presence
	for {
		select {
		case e := <-w.Updates():
			if e == nil { // all present values have come
				slices.SortFunc(out, func(a, b Presence) int {
					return strings.Compare(presenceKey(a.Zone, a.Sandbox), presenceKey(b.Zone, b.Sandbox))
				})
				return out, nil
			}
			p, err := parsePresence(e.Key(), e.Value())
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		case <-ctx.Done():
			return nil, fmt.Errorf("presence: %w", context.Cause(ctx))
		}
	}
}

func parsePresence(key string, value []byte) (Presence, error) {
	var p Presence
	if err := json.Unmarshal(value, &p); err != nil {
		return Presence{}, fmt.Errorf("presence of %s: %w", key, err)
	}
	if presenceKey(p.Zone, p.Sandbox) != key {
		return Presence{}, fmt.Errorf("presence of %s: the record is of %s", key, presenceKey(p.Zone, p.Sandbox))
	}
	return p, nil
}
