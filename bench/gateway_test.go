package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
)

const (
	relayVar   = "BENCH_RELAY"
	relayToken = "bench-token-0123456789"
)

// gatewayProcess is a gateway on a free port of the loopback.
func gatewayProcess(ctx context.Context) error {
	tokens := filepath.Join(os.Getenv(dirVar), "tokens")
	if err := os.WriteFile(tokens, []byte("harness bench "+relayToken+"\n"), 0o600); err != nil {
		return err
	}
	list, err := gateway.OpenTokens(tokens)
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Config{
		Hub: harnesslib.Config{URL: os.Getenv(urlVar), Token: os.Getenv(credVar)}, Tokens: list, Grace: time.Millisecond,
	})
	if err != nil {
		return err
	}
	return listening(ctx, g.Serve)
}

// plainRelayProcess is a relay that knows no bus.
func plainRelayProcess(ctx context.Context) error {
	return listening(ctx, plainrelay.NewRelay(relayToken).Serve)
}

// plainWorkerProcess is a worker that runs a "bash -c" for each command, 4 at once.
func plainWorkerProcess(ctx context.Context) error {
	fmt.Println("attaching")
	return (&plainrelay.Worker{Relay: os.Getenv(relayVar), Token: relayToken, Sandbox: sandbox, Dir: os.Getenv(dirVar)}).Run(ctx)
}

func listening(ctx context.Context, serve func(context.Context, net.Listener) error) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return serve(ctx, ln)
}

// relayTo opens the sandbox at a relay, and waits until it is there.
func relayTo(b *testing.B, addr string) *relay.Transport {
	b.Helper()
	t, err := relay.New(relay.Config{Addr: addr, Sandbox: sandbox, Token: relayToken, FastTier: transport.FastShell})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, t.Close()) })
	require.Eventually(b, func() bool {
		_, err := t.Exec(b.Context(), transport.Command{Script: ":"})
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	return t
}

// BenchmarkGateway prints what a file operation of an existing harness costs through the gateway, against a relay whose
// worker runs a "bash -c" for each call: hub, worker, gateway, relay, its worker and the harness are six processes.
func BenchmarkGateway(b *testing.B) {
	r := startRig(b)
	r.file(b, "file", 3600)
	cred, _ := spawn(b, "gateway", urlVar+"="+r.url, credVar+"="+r.cred.Token(), dirVar+"="+b.TempDir())
	fast := relayTo(b, line(b, cred))
	lines, _ := spawn(b, "plain relay")
	addr := line(b, lines)
	spawn(b, "plain worker", relayVar+"="+addr, dirVar+"="+r.dir)
	plain := relayTo(b, addr)
	op := func(t transport.Transport, do func(context.Context, transport.Transport) error) func(context.Context) error {
		return func(ctx context.Context) error { return do(ctx, t) }
	}
	type operation struct {
		name   string
		do     func(context.Context, transport.Transport) error
		target float64 // at most
	}
	operations := []operation{
		{"test -r", func(ctx context.Context, t transport.Transport) error {
			res, err := t.Exec(ctx, transport.Command{Script: "test -r file"})
			if err == nil && (res.ExitCode == nil || *res.ExitCode != 0) {
				err = fmt.Errorf("%+v", res)
			}
			return err
		}, 0.5},
		{"read 3.6 kB", func(ctx context.Context, t transport.Transport) error {
			res, err := t.Exec(ctx, transport.Command{Script: "cat file"})
			if err == nil && len(res.Stdout) != 3600 {
				err = fmt.Errorf("%d bytes", len(res.Stdout))
			}
			return err
		}, 0.5},
		// No file operation: a warm shell's subshell. Both ways fork here, and the bus has a hop more.
		{"a shell loop", func(ctx context.Context, t transport.Transport) error {
			_, err := t.Exec(ctx, transport.Command{Script: "while read -r x; do :; done <file; echo $x"})
			return err
		}, 1.2},
	}
	for b.Loop() {
		for _, o := range operations {
			for _, rung := range []int{1, 4, 16, 64} {
				before, after := arm{"plain", op(plain, o.do)}, arm{"gateway", op(fast, o.do)}
				m := rungs(b, rung, before, after)
				name := fmt.Sprintf("%s by gateway / plain, c=%d", o.name, rung)
				report(b, name, ratio(m[1].p50, m[0].p50), true, o.target, fmt.Sprintf("p50 %v / %v, p95 %v / %v, %.0f/s / %.0f/s",
					m[1].p50, m[0].p50, m[1].p95, m[0].p95, m[1].rate, m[0].rate))
			}
		}
	}
}

// rung is what several operations in flight come to.
type rung struct {
	p50, p95 time.Duration
	rate     float64 // operations per second
}

// rungs runs arms in turn with several operations in flight, in short rounds.
func rungs(b *testing.B, inFlight int, arms ...arm) []rung {
	b.Helper()
	const rounds, each = 4, 500 * time.Millisecond
	all := make([][]time.Duration, len(arms))
	took := make([]time.Duration, len(arms))
	for round := range rounds + 1 {
		for i, a := range arms {
			begin := time.Now()
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range inFlight {
				wg.Go(func() {
					for time.Since(begin) < each {
						start := time.Now()
						if err := a.op(b.Context()); err != nil {
							b.Errorf("%s: %v", a.name, err)
							return
						}
						mu.Lock()
						if round > 0 { // the first warms up
							all[i] = append(all[i], time.Since(start))
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if round > 0 {
				took[i] += time.Since(begin)
			}
		}
	}
	out := make([]rung, len(arms))
	for i := range all {
		require.NotEmpty(b, all[i], arms[i].name)
		slices.Sort(all[i])
		n := len(all[i])
		out[i] = rung{all[i][n/2].Round(time.Microsecond), all[i][n*95/100].Round(time.Microsecond), float64(n) / took[i].Seconds()}
	}
	return out
}
