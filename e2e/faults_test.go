package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
)

// lines is a command whose output takes some 20 s, and that output.
func lines() (script, output string) {
	const n = 200
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; sleep 0.1; done", n), strings.TrimRight(b.String(), "\n")
}

// streaming runs a command that streams while something happens, and wants all of its output.
func streaming(t *testing.T, d desk, sandbox string, meanwhile func(t *testing.T)) {
	t.Helper()
	script, want := lines()
	began := filepath.Join("/tmp", fmt.Sprintf("began-%d", time.Now().UnixNano()))
	var r result
	var wg sync.WaitGroup
	wg.Go(func() { r = d.sandbus(t, "exec", "--sandbox", sandbox, "--", "sh", "-c", "touch "+began+"; "+script) })
	eventually(t, func() error {
		if r := d.sandbus(t, "exec", "--sandbox", sandbox, "--", "test", "-e", began); r.code != 0 {
			return errors.New("the command has not begun")
		}
		return nil
	})
	meanwhile(t)
	wg.Wait()
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, want, strings.TrimRight(r.stdout, "\n"))
}

// pause is how long a fault lasts.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// partition takes a sandbox from its network for 10 s. A command that streams loses nothing.
func partition(t *testing.T, p *project, d desk) {
	t.Helper()
	box, network := p.id(t, "box1"), p.name+"_sandboxes"
	streaming(t, d, "box1", func(t *testing.T) {
		must(t, "docker", "network", "disconnect", network, box)
		require.NotContains(t, addresses(t, box), network)
		pause(t, 10*time.Second)
		must(t, "docker", "network", "connect", network, box)
	})
	d.work(t, "--sandbox", "box1")
}

// rolling restarts the sandboxes' workers one after the other while harnesses want any of them: no request fails. A lease
// whose worker goes before the command came to it is no failure but a reason to take another: nothing has run.
func rolling(t *testing.T, p *project, d desk) {
	t.Helper()
	creds := filepath.Join(t.TempDir(), "harness.creds")
	require.NoError(t, os.WriteFile(creds, []byte(must(t, "docker", "exec", d.id, "cat", "/creds/harness.creds")), 0o600))
	hub, err := harnesslib.Connect(t.Context(), harnesslib.Config{
		URL: "nats://" + addresses(t, p.id(t, "hub"))[p.name+"_control"] + ":4222", Credentials: creds,
	})
	require.NoError(t, err)
	defer hub.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done, again, sandboxes atomic.Int64
	var served sync.Map
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				on, err := fast(t, hub)
				if errors.Is(err, harnesslib.ErrGone) && !errors.Is(err, harnesslib.ErrLost) {
					again.Add(1)
					continue
				}
				if _, seen := served.LoadOrStore(on, true); !seen {
					sandboxes.Add(1)
				}
				if err != nil {
					t.Errorf("a fast request after %d: %v", done.Load(), err)
					return
				}
				done.Add(1)
			}
		})
	}
	for _, box := range []string{"box1", "box2", "box3"} {
		before := done.Load()
		p.compose(t, "restart", "-t", "30", box)
		d.live(t, "--sandbox", box)
		require.Eventually(t, func() bool { return done.Load() > before+20 || t.Failed() }, patience, 50*time.Millisecond)
	}
	close(stop)
	wg.Wait()
	require.Greater(t, sandboxes.Load(), int64(1), "one sandbox served all")
	t.Logf("%d fast requests while three workers were restarted, none failed; %d leases ended before anything ran", done.Load(), again.Load())
}

// fast runs one command in the fast tier of any sandbox, under a lease.
func fast(t *testing.T, hub *harnesslib.Hub) (sandbox string, err error) {
	t.Helper()
	l, err := hub.Acquire(t.Context(), harnesslib.AcquireOptions{Wait: true})
	if err != nil {
		return "", fmt.Errorf("acquire: %w", err)
	}
	out, err := l.Sandbox().ScriptCommand("echo fast").Output(t.Context())
	if err == nil && string(out) != "fast\n" {
		err = fmt.Errorf("output %q", out)
	}
	if rerr := l.Release(t.Context()); err == nil && !errors.Is(rerr, harnesslib.ErrGone) { // it ran: that the worker went then is no matter
		err = rerr
	}
	return l.Sandbox().ID(), err
}

// TestCluster kills each of three hubs during a stream.
func TestCluster(t *testing.T) {
	p := composed(t)
	p.compose(t, "--profile", "cluster", "up", "-d", "registrar-cluster", "cbox")
	d := p.desk(t, "harness-cluster")
	d.live(t, "--sandbox", "cbox") // the servers have chosen a leader, and presence is there
	d.work(t, "--sandbox", "cbox")
	nodes := map[string]string{}
	for _, n := range []string{"n1", "n2", "n3"} {
		nodes[n] = p.id(t, n)
	}
	eventually(t, func() error { return replicated(t, nodes) })
	for _, n := range []string{"n1", "n2", "n3"} {
		streaming(t, d, "cbox", func(t *testing.T) {
			must(t, "docker", "kill", "-s", "KILL", nodes[n])
			require.Error(t, replicated(t, nodes), "the check cannot fail")
			d.live(t, "--sandbox", "cbox")
		})
		must(t, "docker", "start", nodes[n])
		eventually(t, func() error { return replicated(t, nodes) })
		t.Logf("%s killed and back", n)
	}
	d.work(t, "--sandbox", "cbox")
}

// replicated says whether all hubs are healthy and the presence bucket is on all three.
func replicated(t *testing.T, nodes map[string]string) error {
	t.Helper()
	page := func(id, path string) (string, bool) {
		r := run(t.Context(), t, nil, "docker", "exec", id, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/"+path)
		return r.stdout, r.code == 0
	}
	found := false
	for n, id := range nodes {
		if _, ok := page(id, "healthz"); !ok {
			return fmt.Errorf("%s is not healthy", n)
		}
		text, ok := page(id, "jsz?accounts=true&streams=true")
		if !ok {
			return fmt.Errorf("%s does not say what it keeps", n)
		}
		var jsz struct {
			Accounts []struct {
				Streams []struct {
					Name    string `json:"name"`
					Cluster struct {
						Leader   string `json:"leader"`
						Replicas []struct {
							Current bool `json:"current"`
						} `json:"replicas"`
					} `json:"cluster"`
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		if err := json.Unmarshal([]byte(text), &jsz); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		for _, a := range jsz.Accounts {
			for _, s := range a.Streams {
				if !strings.HasPrefix(s.Cluster.Leader, n+"-") { // only a leader knows
					continue
				}
				current := 0
				for _, r := range s.Cluster.Replicas {
					if r.Current {
						current++
					}
				}
				if current != 2 {
					return fmt.Errorf("%s: %s has %d current replicas of 2", n, s.Name, current)
				}
				found = true
			}
		}
	}
	if !found {
		return errors.New("no hub leads the presence bucket")
	}
	return nil
}

// TestFullDisk fills the hub's disk: commands run on and sandboxes come, since presence is in memory; and all is there after
// a restart with room. What a hub says of a full disk is TestHubOnAFullDisk's.
func TestFullDisk(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.yaml")
	require.NoError(t, os.WriteFile(small, []byte("volumes:\n  hub-data:\n    driver_opts: {type: tmpfs, device: tmpfs, o: \"size=4m,uid=1000,gid=1000\"}\n"), 0o600))
	p := composed(t)
	p.tool = append(p.tool, "-f", "docker-compose.yaml", "-f", small)
	p.compose(t, "up", "-d", "registrar", "box1")
	d := p.desk(t, "harness")
	d.live(t, "--sandbox", "box1")
	hub := p.id(t, "hub")
	full := run(t.Context(), t, nil, "docker", "exec", hub, "sh", "-c", "while echo >>/data/more; do dd if=/dev/zero bs=4k >>/data/fill; done")
	require.Contains(t, full.stderr, "No space left")
	p.compose(t, "up", "-d", "--no-deps", "box2")
	d.live(t, "--sandbox", "box2") // presence is in memory: who comes now is known all the same
	d.work(t, "--sandbox", "box1")
	d.work(t, "--sandbox", "box2")
	must(t, "docker", "exec", hub, "rm", "/data/fill", "/data/more")
	must(t, "docker", "restart", "-t", "45", hub)
	d.live(t, "--sandbox", "box1")
	d.live(t, "--sandbox", "box2")
}
