package bustest

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandbus/sandbus/bus"
)

// Bare requests are what sandbus is measured against: nats.go's own request and subscription, through the same hub and
// with the same permissions, without anything of ours.

// Bare is a client that makes bare requests to one sandbox.
type Bare struct {
	nc      *nats.Conn
	subject string
}

func bareConnect(url string, cred bus.Credential, prefix string) (*nats.Conn, error) {
	return nats.Connect(url, nats.Token(cred.Token()), nats.CustomInboxPrefix(prefix), nats.Timeout(2*time.Second))
}

func bareSubject(sandbox, name string) string {
	return fmt.Sprintf("sbx.%s.%s.bare.%s", bus.DefaultZone, sandbox, name)
}

// ServeBare answers bare requests for a sandbox with what answer makes of them, until stop is called.
func ServeBare(url string, cred bus.Credential, name string, answer func([]byte) []byte) (stop func(), err error) {
	nc, err := bareConnect(url, cred, "_I."+string(bus.DefaultZone)+"."+cred.Identity().Name)
	if err != nil {
		return nil, err
	}
	if _, err := nc.Subscribe(bareSubject(cred.Identity().Name, name), func(m *nats.Msg) {
		_ = m.Respond(answer(m.Data)) // a request without an answer fails the measurement
	}); err != nil {
		nc.Close()
		return nil, err
	}
	return nc.Close, nc.Flush()
}

// DialBare connects a harness for bare requests to a name that ServeBare serves.
func DialBare(url string, cred bus.Credential, sandbox, name string) (*Bare, error) {
	nc, err := bareConnect(url, cred, fmt.Sprintf("rep.%s.%s.%s.bare", bus.DefaultZone, sandbox, cred.Identity().Name))
	if err != nil {
		return nil, err
	}
	return &Bare{nc: nc, subject: bareSubject(sandbox, name)}, nil
}

// Request makes one bare request.
func (b *Bare) Request(ctx context.Context, payload []byte) ([]byte, error) {
	m, err := b.nc.RequestWithContext(ctx, b.subject, payload)
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// Close ends the connection.
func (b *Bare) Close() { b.nc.Close() }

// FloodChunk is the size of the messages of a flood, in bytes.
const FloodChunk = 64 << 10

// ServeFlood answers each request, a number of bytes, by that many bytes in bare messages on the reply subject: what
// publish and subscribe can do without numbers, acks and credit.
func ServeFlood(url string, cred bus.Credential) (stop func(), err error) {
	nc, err := bareConnect(url, cred, "_I."+string(bus.DefaultZone)+"."+cred.Identity().Name)
	if err != nil {
		return nil, err
	}
	chunk := make([]byte, FloodChunk)
	if _, err := nc.Subscribe(bareSubject(cred.Identity().Name, "flood"), func(m *nats.Msg) {
		n := 0
		_, _ = fmt.Sscan(string(m.Data), &n) // zero bytes end at once
		for ; n > 0; n -= len(chunk) {
			if nc.Publish(m.Reply, chunk[:min(n, len(chunk))]) != nil {
				return // the measurement fails by its deadline
			}
		}
	}); err != nil {
		nc.Close()
		return nil, err
	}
	return nc.Close, nc.Flush()
}

// Flood asks for n bytes and returns when they have come.
func (b *Bare) Flood(ctx context.Context, n int64) error {
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection lives on
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	if err := b.nc.PublishRequest(b.subject, inbox, fmt.Append(nil, n)); err != nil {
		return err
	}
	for n > 0 {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("%d bytes are missing: %w", n, err)
		}
		n -= int64(len(m.Data))
	}
	return nil
}
