package rig

import (
	"context"

	"github.com/sandbus/sandbus/loadtest/workload"
)

// nullClient answers in this process: each request goes to a goroutine and back, with an answer of the right size.
type nullClient struct {
	requests chan nullRequest
	done     chan struct{}
}

type nullRequest struct {
	size  int
	reply chan []byte
}

func openNull(context.Context, *Site) (client, error) {
	c := &nullClient{requests: make(chan nullRequest), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		var answer []byte
		for r := range c.requests {
			if len(answer) < r.size {
				answer = make([]byte, r.size)
			}
			r.reply <- answer[:r.size]
		}
	}()
	return c, nil
}

func (c *nullClient) session(_ context.Context, n int) (session, int, error) {
	reply := make(chan []byte, 1)
	return doer(func(ctx context.Context, o *workload.Op) error {
		select {
		case c.requests <- nullRequest{o.Answer, reply}:
			<-reply
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}), n, nil
}

func (c *nullClient) close() {
	close(c.requests)
	<-c.done
}
