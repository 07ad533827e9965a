package rig

import (
	"context"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/loadtest/workload"
)

var armEcho = arm{
	name: "echo", about: "bare NATS requests with answers of the same size: the floor",
	open: func(_ context.Context, s *Site) (client, error) {
		cred, err := bus.ParseCredential(s.Token)
		if err != nil {
			return nil, err
		}
		c := &echoClient{}
		for _, p := range s.Sandboxes {
			echo, err := bustest.DialBare(s.URL, cred, p.ID, "echo")
			if err != nil {
				c.close()
				return nil, err
			}
			c.echo = append(c.echo, echo)
			flood, err := bustest.DialBare(s.URL, cred, p.ID, "flood")
			if err != nil {
				c.close()
				return nil, err
			}
			c.flood = append(c.flood, flood)
		}
		return c, nil
	},
}

// echoClient has two connections for each sandbox: one for requests, one for what streams.
type echoClient struct{ echo, flood []*bustest.Bare }

func (c *echoClient) session(_ context.Context, n int) (session, int, error) {
	n %= len(c.echo)
	echo, flood := c.echo[n], c.flood[n]
	return doer(func(ctx context.Context, o *workload.Op) error {
		if o.Kind == workload.Stream {
			return flood.Flood(ctx, int64(o.Answer))
		}
		return echoOnce(ctx, echo.Request, o)
	}), n, nil
}

func (c *echoClient) close() {
	for _, b := range append(c.echo, c.flood...) {
		b.Close()
	}
}

// maxEcho bounds an answer that is one message, in bytes.
const maxEcho = 1 << 20

// echoOnce makes one request that asks for an answer of the operation's size.
func echoOnce(ctx context.Context, request func(context.Context, []byte) ([]byte, error), o *workload.Op) error {
	if o.Answer > maxEcho-4096 {
		return unavailable("echo", o)
	}
	payload := append(echoSize(o.Answer), o.Data...)
	answer, err := request(ctx, payload)
	if err != nil {
		return err
	}
	if len(answer) != o.Answer {
		return &workload.WrongError{What: "the echo has another size than was asked for"}
	}
	return nil
}
