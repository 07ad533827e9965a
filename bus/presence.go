package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
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
	Worker       *Privileges       `json:"worker,omitempty"`    // of the worker's process; nil when it did not say
	Commands     *Privileges       `json:"commands,omitempty"`  // of the commands that it runs; nil when it did not say
	Files        *Privileges       `json:"files,omitempty"`     // of file operations; nil when it did not say
	Suspect      bool              `json:"suspect,omitempty"`   // silent for longer than a live worker would be
	Seq          uint64            `json:"seq"`                 // of the last beat
	ServerID     string            `json:"server_id,omitempty"` // where the worker is connected, and its number there
	ClientID     uint64            `json:"client_id,omitempty"`
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

// Directory reads presence. Its questions outlive the connection: one that gets no answer, because the hub died or is
// just starting, is asked again until its context ends.
type Directory struct {
	conn *Conn
	kv   jetstream.KeyValue
}

// OpenDirectory finds the presence bucket. Errors: there is none (no registrar runs), *HubGoneError and the context's.
func OpenDirectory(ctx context.Context, conn *Conn) (*Directory, error) {
	js, err := jetstream.New(conn.nc)
	if err != nil {
		return nil, fmt.Errorf("presence: %w", err)
	}
	d := &Directory{conn: conn}
	err = d.ask(ctx, func(ctx context.Context, _ func()) (err error) {
		d.kv, err = js.KeyValue(ctx, PresenceBucket)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("presence bucket (does a registrar run at this hub?): %w", err)
	}
	return d, nil
}

const (
	// askAgainAfter is how long a question waits for its answer: what was asked just before the hub died is lost.
	askAgainAfter = 2 * time.Second
	// settleLimit is how long a hub that we are connected to may be without an answer, or without a bucket: its registrar
	// is just starting, or its servers choose a new leader (4 to 8 s).
	settleLimit = 15 * time.Second
	// noBucketLimit is settleLimit for a hub that says that there is no bucket.
	noBucketLimit = 5 * time.Second
)

// errAskAgain is the cause with which one try of a question ends.
var errAskAgain = errors.New("no answer")

// ask asks until there is an answer. Each try ends when nothing has come for a while, which the question may say by
// alive, and when the connection comes back.
func (d *Directory) ask(ctx context.Context, question func(ctx context.Context, alive func()) error) error {
	begin := time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := d.try(ctx, question)
		if err == nil || isAnswer(err) {
			return err
		}
		if ctx.Err() != nil {
			return d.conn.cause(ctx)
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return ErrClosed
		}
		limit := settleLimit
		if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			limit = noBucketLimit
		}
		if up := d.conn.connectedFor(); min(up, time.Since(begin)) > limit {
			return fmt.Errorf("hub %s: %w (asked for %s)", d.conn.url, err, time.Since(begin).Round(time.Millisecond))
		}
		if err := d.conn.awaitConnected(ctx); err != nil {
			return err
		}
		if !pause(ctx, wait) {
			return d.conn.cause(ctx)
		}
	}
}

func (d *Directory) try(ctx context.Context, question func(ctx context.Context, alive func()) error) error {
	try, end := context.WithCancelCause(ctx)
	defer end(nil)
	silence := time.AfterFunc(askAgainAfter, func() { end(errAskAgain) })
	defer silence.Stop()
	d.conn.onReconnected(try, func() { end(errAskAgain) })
	defer d.conn.onReconnected(try, nil)
	return question(try, func() { silence.Reset(askAgainAfter) })
}

// isAnswer tells what the hub says of presence from what it says of itself.
func isAnswer(err error) bool {
	var syntax *presenceError
	return errors.Is(err, jetstream.ErrKeyNotFound) || errors.As(err, &syntax)
}

// Lookup finds the live worker of a sandbox. Errors: ErrUnknownSandbox, *HubGoneError, the context's.
func (d *Directory) Lookup(ctx context.Context, z Zone, id SandboxID) (p Presence, err error) {
	err = d.ask(ctx, func(ctx context.Context, _ func()) error {
		e, err := d.kv.Get(ctx, presenceKey(z, id))
		if err != nil {
			return err
		}
		p, err = parsePresence(e.Key(), e.Value())
		return err
	})
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Presence{}, ErrUnknownSandbox
	}
	if err != nil {
		return Presence{}, fmt.Errorf("presence of %s: %w", id, err)
	}
	return p, nil
}

// List returns all live workers, sorted by zone and id. Errors: *HubGoneError, the context's.
func (d *Directory) List(ctx context.Context) ([]Presence, error) {
	f, err := d.follow(ctx)
	if err != nil {
		return nil, fmt.Errorf("presence: %w", err)
	}
	f.stop()
	return slices.SortedFunc(maps.Values(f.present), comparePresence), nil
}

func comparePresence(a, b Presence) int {
	return strings.Compare(presenceKey(a.Zone, a.Sandbox), presenceKey(b.Zone, b.Sandbox))
}

// presenceError is a record that cannot be read.
type presenceError struct {
	key string
	err error
}

func (e *presenceError) Error() string { return fmt.Sprintf("the record of %s: %v", e.key, e.err) }
func (e *presenceError) Unwrap() error { return e.err }

func parsePresence(key string, value []byte) (Presence, error) {
	var p Presence
	if err := json.Unmarshal(value, &p); err != nil {
		return Presence{}, &presenceError{key, err}
	}
	if k := presenceKey(p.Zone, p.Sandbox); k != key {
		return Presence{}, &presenceError{key, fmt.Errorf("it names %s", k)}
	}
	return p, nil
}
