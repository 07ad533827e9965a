package sandbus_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
)

// realHub is a hub in a process of its own, which can be killed and started anew on its port and state.
type realHub struct {
	dir  string
	port string
	url  string
	proc *exec.Cmd

	stdin io.Closer // ends it
}

func startRealHub(t *testing.T) *realHub {
	t.Helper()
	h := &realHub{dir: t.TempDir(), port: "0"}
	h.start(t)
	t.Cleanup(func() { // the one that runs then; the worker has ended by then
		_ = h.stdin.Close() // asks it to end
		_ = h.proc.Wait()   // says no more than the tests
	})
	u, err := url.Parse(h.url)
	require.NoError(t, err)
	h.port = u.Port()
	return h
}

func (h *realHub) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hubVar+"="+h.dir, hubPortVar+"="+h.port)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := bufio.NewScanner(stdout)
	h.proc, h.stdin = cmd, stdin
	require.True(t, line.Scan(), "the hub says nothing")
	h.url = line.Text()
}

func (h *realHub) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, h.proc.Process.Kill())
	_ = h.proc.Wait() // says that it was killed
}

func (h *realHub) token(t *testing.T, role bus.Role, name string) string {
	t.Helper()
	_, minter, found, err := hub.Find(h.dir)
	require.NoError(t, err)
	require.True(t, found)
	c, err := minter.Issue(bus.Identity{Role: role, Zone: bus.DefaultZone, Name: name})
	require.NoError(t, err)
	return c.Token()
}

// gated is a writer that stops at a byte until its gate is open, and sums up what comes.
type gated struct {
	at      int64
	reached chan struct{} // closed there
	gate    chan struct{}

	n   int64
	all io.Writer
}

func (g *gated) Write(b []byte) (int, error) {
	if g.n < g.at && g.n+int64(len(b)) >= g.at {
		close(g.reached)
		<-g.gate
	}
	g.n += int64(len(b))
	return g.all.Write(b)
}

// TestC48HubIsKilled kills the only hub for 5 s in the middle of a stream of 100 MB and of 50 fast requests. All three
// are processes of their own. Nothing is lost and nothing runs twice.
func TestC48HubIsKilled(t *testing.T) {
	h := startRealHub(t)
	n := &network{dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
	n.workerAt(t, h.url, h.token(t, bus.RoleSandbox, "box"))
	p := n.placeAt(t, h.url, h.token(t, bus.RoleHarness, "test"))

	const size = 100_000_000
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "data"), data, 0o600))
	want := sha256.Sum256(data)
	data = nil

	sum := sha256.New()
	w := &gated{at: 30_000_000, reached: make(chan struct{}), gate: make(chan struct{}), all: sum}
	stream := p.Command("cat", "data")
	stream.Stdout = w
	require.NoError(t, stream.Start(t.Context()))
	streamed := make(chan error, 1)
	go func() { streamed <- stream.Wait() }()

	<-w.reached
	const lanes, each = 5, 10
	var started atomic.Int32
	var wg sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		wg.Go(func() {
			for i := range each {
				started.Add(1)
				if errs[lane] = appendOp(t.Context(), p, fmt.Sprintf("op-%d-%d", lane, i)); errs[lane] != nil {
					return
				}
			}
		})
	}
	require.Eventually(t, func() bool { return started.Load() >= lanes*2 }, 60*time.Second, time.Millisecond)
	h.kill(t)
	close(w.gate)
	<-time.After(5 * time.Second) // the length of the outage is the case's
	h.start(t)

	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, <-streamed)
	require.EqualValues(t, size, w.n)
	require.Equal(t, want, [sha256.Size]byte(sum.Sum(nil)))
	require.Zero(t, stream.Omitted)
	var ops []string
	for lane := range lanes {
		for i := range each {
			ops = append(ops, fmt.Sprintf("op-%d-%d", lane, i))
		}
	}
	slices.Sort(ops)
	for _, file := range []string{"ran", "appended"} {
		b, err := os.ReadFile(filepath.Join(n.dir, file))
		require.NoError(t, err)
		got := strings.Fields(string(b))
		slices.Sort(got)
		require.Equal(t, ops, got, "%s: each once", file)
	}
}

// appendOp has a command append a line to the file "ran", and then the worker itself to "appended".
func appendOp(ctx context.Context, p *place, op string) error {
	out, err := p.ScriptCommand("echo " + op + " >>ran; sleep 0.1; echo " + op).Output(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if string(out) != op+"\n" {
		return fmt.Errorf("%s: the command printed %q", op, out)
	}
	return p.AppendFile(ctx, "appended", []byte(op+"\n"), 0o600)
}
