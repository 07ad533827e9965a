package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/internal/testenv"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
	"github.com/sandbus/sandbus/workerd"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	harnessToken = "harness-token-0123456789"
	otherToken   = "another-token-0123456789"
	workerToken  = "worker-token-0123456789"
	patience     = 60 * time.Second
)

const tokens = `# who may do what
harness ci ` + harnessToken + `
harness narrow ` + otherToken + ` other
sandbox plain ` + workerToken + `
sandbox taken ` + workerToken + `
`

// rig is a hub with a worker of the bus in sandbox "box", and gateways in front of it.
type rig struct {
	tb     testing.TB
	bus    *bustest.Bus
	dir    string // of box
	tokens string // the file
	hub    *harnesslib.Hub
}

func startRig(tb testing.TB) *rig {
	tb.Helper()
	testenv.Tool(tb, "bash")
	r := &rig{tb: tb, bus: bustest.Start(tb), dir: tb.TempDir(), tokens: filepath.Join(tb.TempDir(), "tokens")}
	require.NoError(tb, os.WriteFile(r.tokens, []byte(tokens), 0o600))
	r.worker("box")
	cred, err := r.bus.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "test"})
	require.NoError(tb, err)
	r.hub, err = harnesslib.Connect(tb.Context(), harnesslib.Config{URL: r.bus.URL(), Dial: r.bus.Dial, Token: cred.Token()})
	require.NoError(tb, err)
	tb.Cleanup(r.hub.Close)
	return r
}

// worker runs a worker of the bus for the length of the test.
func (r *rig) worker(id string) {
	r.tb.Helper()
	cred, err := r.bus.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: id})
	require.NoError(r.tb, err)
	ready := make(chan struct{})
	w, err := workerd.New(workerd.Config{
		URL: r.bus.URL(), Dial: r.bus.Dial, Credential: cred, Dir: r.dir, StopGrace: 100 * time.Millisecond, Logger: bustest.Logger(r.tb),
		OnReady: func() { close(ready) },
	})
	require.NoError(r.tb, err)
	ended := running(r.tb, w.Run)
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(r.tb, err, "worker")
	}
}

var errTestOver = errors.New("the test is over")

// running runs something for the length of the test; its end can be waited for.
func running(tb testing.TB, run func(context.Context) error) (ended chan error) {
	tb.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- run(ctx)
	}()
	tb.Cleanup(func() {
		cancel(errTestOver)
		<-done
	})
	return ended
}

// served is one gateway.
type served struct {
	addr string
	stop func() // ends it and waits
}

// gateway runs one for the length of the test. change, when not nil, adjusts it.
func (r *rig) gateway(change func(*gateway.Config)) served {
	r.tb.Helper()
	list, err := gateway.OpenTokens(r.tokens)
	require.NoError(r.tb, err)
	cred, err := r.bus.Credential(bus.Identity{Role: bus.RoleHarness, Zone: bus.DefaultZone, Name: "gateway"})
	require.NoError(r.tb, err)
	cfg := gateway.Config{
		Hub:    harnesslib.Config{URL: r.bus.URL(), Dial: r.bus.Dial, Token: cred.Token()},
		Tokens: list, Logger: bustest.Logger(r.tb), Grace: 200 * time.Millisecond,
		WorkerBus: func(id bus.SandboxID) (bus.Config, error) {
			cred, err := r.bus.Credential(bus.Identity{Role: bus.RoleSandbox, Zone: bus.DefaultZone, Name: string(id)})
			return bus.Config{URL: r.bus.URL(), Dial: r.bus.Dial, Credential: cred}, err
		},
	}
	if change != nil {
		change(&cfg)
	}
	g, err := gateway.New(cfg)
	require.NoError(r.tb, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.tb, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Serve(ctx, ln); err != nil {
			r.tb.Errorf("gateway: %v", err)
		}
	}()
	stop := func() {
		cancel(errTestOver)
		<-ended
	}
	r.tb.Cleanup(stop)
	return served{addr: ln.Addr().String(), stop: stop}
}

// plainWorker attaches a "bash -c" worker as sandbox "plain", and returns when presence has it.
func (r *rig) plainWorker(addr string, change func(*plainrelay.Worker)) (sb *harnesslib.Sandbox, ended chan error) {
	r.tb.Helper()
	w := &plainrelay.Worker{Relay: addr, Token: workerToken, Sandbox: "plain", Dir: r.dir}
	if change != nil {
		change(w)
	}
	sb, err := r.hub.Sandbox("plain")
	require.NoError(r.tb, err)
	before, _ := sb.Info(r.tb.Context()) // of a worker that may be on its way out
	ended = running(r.tb, func(ctx context.Context) error {
		for {
			err := w.Run(ctx)
			if status.Code(err) != codes.AlreadyExists {
				return err
			}
			select { // as workers in the field do
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return nil
			}
		}
	})
	r.eventually(func() bool {
		p, err := sb.Info(r.tb.Context())
		return err == nil && p.Instance != before.Instance
	}, "the worker is in presence")
	return sb, ended
}

func (r *rig) eventually(f func() bool, what string) {
	r.tb.Helper()
	require.Eventually(r.tb, f, patience, 10*time.Millisecond, what)
}

// client is a plain client of the public contract.
type client struct {
	tb    testing.TB
	exec  sandboxv1.SandboxExecClient
	work  sandboxv1.SandboxWorkerClient
	token string
}

func dial(tb testing.TB, addr, token string) client {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return client{tb, sandboxv1.NewSandboxExecClient(conn), sandboxv1.NewSandboxWorkerClient(conn), token}
}

func (c client) ctx(ctx context.Context) context.Context {
	if c.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

// outcome is what a client has seen of a command.
type outcome struct {
	stdout, stderr bytes.Buffer
	chunks         int
	end            *sandboxv1.End
	failure        *sandboxv1.ExecError
	err            error // the stream's, when there was no last event
}

func (c client) start(ctx context.Context, sandbox string, e *sandboxv1.Exec) grpc.ServerStreamingClient[sandboxv1.ExecEvent] {
	c.tb.Helper()
	s, err := c.exec.Exec(c.ctx(ctx), &sandboxv1.ExecRequest{SandboxId: sandbox, Exec: e})
	require.NoError(c.tb, err)
	return s
}

func (c client) run(ctx context.Context, sandbox string, e *sandboxv1.Exec) *outcome {
	c.tb.Helper()
	return finish(c.start(ctx, sandbox, e))
}

// finish reads a stream to its end.
func finish(s grpc.ServerStreamingClient[sandboxv1.ExecEvent]) *outcome {
	o := &outcome{}
	for {
		ev, err := s.Recv()
		if err != nil {
			if o.end == nil && o.failure == nil {
				o.err = err
			}
			return o
		}
		switch {
		case ev.GetChunk() != nil:
			o.chunks++
			if ev.GetChunk().GetStream() == sandboxv1.Stream_STREAM_STDERR {
				o.stderr.Write(ev.GetChunk().GetData())
			} else {
				o.stdout.Write(ev.GetChunk().GetData())
			}
		case ev.GetEnd() != nil:
			o.end = ev.GetEnd()
		default:
			o.failure = ev.GetError()
		}
	}
}

// exited wants a command to have ended with an exit code.
func (o *outcome) exited(tb testing.TB, code int32) {
	tb.Helper()
	require.NoError(tb, o.err)
	require.Nil(tb, o.failure)
	require.NotNil(tb, o.end)
	require.False(tb, o.end.GetTruncated())
	require.Equal(tb, code, o.end.GetExitCode())
}

// lines counts how often a file of the sandbox was written to.
func (r *rig) lines(name string) int {
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return 0
	}
	return strings.Count(string(b), "\n")
}
