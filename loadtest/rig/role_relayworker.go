package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sandbus/sandbus/gateway/plainrelay"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

type relayWorkerConfig struct {
	Name     string   `json:"name"`
	Relay    string   `json:"relay"`
	Token    string   `json:"token"`
	Sandbox  string   `json:"sandbox"`
	Dir      string   `json:"dir"`
	Slots    int      `json:"slots"`
	Echo     bool     `json:"echo"` // answer without running anything
	Profiles Profiles `json:"profiles"`
}

func relayWorkerRole(life context.Context, config json.RawMessage) (any, map[string]handler, func(), error) {
	cfg, err := decode[relayWorkerConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	stopProfiles, err := cfg.Profiles.start(cfg.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	serve := (&plainrelay.Worker{Relay: cfg.Relay, Token: cfg.Token, Sandbox: cfg.Sandbox, Dir: cfg.Dir, Slots: cfg.Slots}).Run
	if cfg.Echo {
		serve = cfg.echo
	}
	run, end := context.WithCancelCause(life)
	ended := make(chan error, 1)
	go func() { ended <- serve(run) }()
	return struct{}{}, nil, func() {
		end(errRigGone)
		if err := <-ended; err != nil {
			fmt.Fprintf(os.Stderr, "loadtest %s: %v\n", cfg.Name, err)
		}
		stopProfiles()
	}, nil
}

// relayChunk is what the contract allows in a chunk, in bytes.
const relayChunk = 32 << 10

// echo attaches as a worker that answers each command, whose text begins with a number, by that many bytes.
func (c *relayWorkerConfig) echo(ctx context.Context) error {
	conn, err := grpc.NewClient("passthrough:///"+c.Relay, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is left to be said
	stream, err := sandboxv1.NewSandboxWorkerClient(conn).Attach(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.Token))
	if err != nil {
		return err
	}
	frame := func(f *sandboxv1.WorkerFrame) error {
		if err := stream.Send(f); err != nil && !errors.Is(err, io.EOF) { // of which Recv tells the reason
			return err
		}
		return nil
	}
	if err := frame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Hello{Hello: &sandboxv1.Hello{
		SandboxId: c.Sandbox, CapacityMax: uint32(c.Slots), Trust: "untrusted",
	}}}); err != nil {
		return err
	}
	answer := make([]byte, relayChunk)
	for {
		f, err := stream.Recv()
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		e := f.GetExec()
		if e == nil {
			continue // an abort: there is nothing to end
		}
		n := 0
		_, _ = fmt.Sscan(e.GetCommand(), &n) // nothing is zero bytes
		for ; n > 0; n -= relayChunk {
			chunk := &sandboxv1.Chunk{ReqId: e.GetReqId(), Data: answer[:min(n, relayChunk)], Stream: sandboxv1.Stream_STREAM_STDOUT}
			if err := frame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_Chunk{Chunk: chunk}}); err != nil {
				return err
			}
		}
		if err := frame(&sandboxv1.WorkerFrame{Msg: &sandboxv1.WorkerFrame_End{End: &sandboxv1.End{ReqId: e.GetReqId()}}}); err != nil {
			return err
		}
	}
}
