package bothsides

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd"
)

// The cases C01 to C50 of shared/cases that are about the exec engine, on real processes. A test's name begins with the
// number of its case.

// tier makes a command of a script on one of the two tiers.
type tier struct {
	name string
	cmd  func(p *place, script string) *harnesslib.Cmd
}

var tiers = []tier{
	{"fast", func(p *place, s string) *harnesslib.Cmd { return p.ScriptCommand(s) }},
	{"stream", func(p *place, s string) *harnesslib.Cmd { return p.Command("bash", "-c", s) }},
}

// onTiers runs a test on both tiers.
func onTiers(t *testing.T, test func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd)) {
	p := start(t, nil)
	for _, tier := range tiers {
		t.Run(tier.name, func(t *testing.T) {
			test(t, p, func(s string) *harnesslib.Cmd { return tier.cmd(p, s) })
		})
	}
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var ee *harnesslib.ExitError
	require.ErrorAs(t, err, &ee)
	require.Equal(t, harnesslib.Exited, ee.Outcome.Kind, "%v", err)
	return ee.Outcome.Code
}

// gone waits for the processes whose ids are in files to be dead.
func gone(t *testing.T, p *place, files ...string) {
	t.Helper()
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(p.dir, f))
		require.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		require.NoError(t, err)
		require.False(t, alive(pid), "process %d of %s", pid, f)
	}
}

// alive is false for zombies too.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return f[0] != "Z" && f[0] != "X"
}

// appears waits for a file to have content.
func appears(t *testing.T, p *place, file string) {
	t.Helper()
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(filepath.Join(p.dir, file))
		return len(b) > 0
	}, 20*time.Second, 2*time.Millisecond, file)
}

func TestC01HeldPipe(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		for _, script := range []string{"sleep 5 & echo hi", "setsid sleep 5 & echo hi", "(sleep 5 &) ; echo hi", "sleep 5 >&2 & echo hi"} {
			c := cmd(script)
			begin := time.Now()
			out, err := c.Output(t.Context())
			require.NoError(t, err)
			require.Equal(t, "hi\n", string(out))
			require.True(t, c.PipeHeld, script)
			require.Less(t, time.Since(begin), 3*time.Second, "long before the sleeper ends")
		}
		c := cmd("sleep 5 >/dev/null 2>&1 & echo hi")
		out, err := c.Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hi\n", string(out))
		require.False(t, c.PipeHeld)
	})
}

func TestC02LateOutput(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		prints := func(script, want, why string) {
			t.Helper()
			var out []byte
			for range 10 { // on a busy machine a sleep of 0.3 s can outlast the grace of 0.4 s, but not each time
				var err error
				out, err = cmd(script).Output(t.Context())
				require.NoError(t, err)
				if string(out) == want {
					return
				}
			}
			require.Equal(t, want, string(out), why)
		}
		prints("(sleep 0.3; echo late) & echo first", "first\nlate\n", "late, and within the grace")
		prints("(for i in 1 2 3 4 5; do sleep 0.2; echo $i; done) & echo first", "first\n1\n2\n3\n4\n5\n", "each chunk starts the grace anew")
		c := cmd("(for i in $(seq 200); do echo x; sleep 0.1; done) & echo first")
		begin := time.Now()
		_, err := c.Output(t.Context())
		require.NoError(t, err)
		require.True(t, c.PipeHeld)
		require.Less(t, time.Since(begin), 15*time.Second, "there is an absolute cap")
	})
}

func TestC03AbortReachesDaemons(t *testing.T) {
	p := start(t, nil)
	for name, script := range map[string]string{
		"setsid":      `setsid sh -c 'echo $$ >a; exec sleep 300' >/dev/null 2>&1 & echo $$ >b; sleep 300`,
		"double fork": `(setsid sh -c 'echo $$ >a; exec sleep 300' >/dev/null 2>&1 &) ; sleep 0.1; echo $$ >b; sleep 300`,
		"nohup":       `nohup sh -c 'trap "" TERM INT HUP; echo $$ >a; while :; do sleep 1; done' >/dev/null 2>&1 & echo $$ >b; sleep 300`,
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(filepath.Join(p.dir, "a"))
			_ = os.Remove(filepath.Join(p.dir, "b"))
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				appears(t, p, "a")
				appears(t, p, "b")
				cancel(errors.New("enough"))
			}()
			c := p.Command("sh", "-c", script)
			c.Grace = 200 * time.Millisecond
			require.ErrorIs(t, c.Run(ctx), harnesslib.ErrAborted)
			gone(t, p, "a", "b")
		})
	}
}

func TestC04ProcessSubstitution(t *testing.T) {
	testenv.Tool(t, "bash")
	onTiers(t, func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd) {
		out, err := cmd("exec > >(tee f) 2>&1; echo x").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x\n", string(out))
	})
}

func TestC05NoOutput(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		for _, script := range []string{"true", ":", "exec true", "sleep 0.01"} {
			out, err := cmd(script).Output(t.Context())
			require.NoError(t, err)
			require.Empty(t, out)
		}
	})
}

func TestC06TimeoutOfTheStubborn(t *testing.T) {
	onTiers(t, func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd) {
		for _, script := range []string{`trap "" TERM INT; echo $$ >a; sleep 300`, `trap "" TERM INT; sh -c 'echo $$ >a; sleep 300' & wait; wait; sleep 300`} {
			_ = os.Remove(filepath.Join(p.dir, "a"))
			c := cmd(script)
			c.Timeout = 300 * time.Millisecond
			begin := time.Now()
			err := c.Run(t.Context())
			require.ErrorIs(t, err, harnesslib.ErrTimedOut)
			require.Less(t, time.Since(begin), 10*time.Second)
			if !strings.HasPrefix(t.Name(), "TestC06TimeoutOfTheStubborn/fast") { // $$ is the shell there, which lives
				gone(t, p, "a")
			}
		}
	})
}

func TestC07TimeoutKeepsOutput(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		c := cmd("printf start; printf err >&2; sleep 300")
		c.Timeout = 300 * time.Millisecond
		out, err := c.Output(t.Context())
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee)
		require.Equal(t, "start", string(out))
		require.Equal(t, "err", string(ee.Stderr))
	})
}

// descriptors counts the open files of this process.
func descriptors(tb testing.TB) int {
	tb.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(tb, err)
	return len(list)
}

func TestC08FIFO(t *testing.T) {
	onTiers(t, func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd) {
		run := func() {
			c := cmd("rm -f fifo; mkfifo fifo; cat fifo | tr a b; echo never")
			c.Timeout = 200 * time.Millisecond
			require.ErrorIs(t, c.Run(t.Context()), harnesslib.ErrTimedOut)
		}
		run()
		before := descriptors(t)
		for range 5 {
			run()
		}
		require.Eventually(t, func() bool { return descriptors(t) <= before+2 }, 10*time.Second, 10*time.Millisecond, "descriptors: %d before", before)
	})
}

func TestC09ManyShortExecs(t *testing.T) {
	p := start(t, nil)
	const many, some = 10_000, 1000
	run := func(n int, cmd func() *harnesslib.Cmd) {
		var wg sync.WaitGroup
		work := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				for range work {
					if err := cmd().Run(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range n {
			work <- struct{}{}
		}
		close(work)
		wg.Wait()
	}
	stream := func() *harnesslib.Cmd { return p.Command("true") }
	held := func() *harnesslib.Cmd { return p.Command("sh", "-c", "sleep 0.01 & exit 0") }
	run(32, stream)
	before := descriptors(t)
	run(many, stream)
	run(some, held)
	for range many / 10 {
		_, err := p.ScriptCommand("true").Output(t.Context())
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return descriptors(t) <= before+8 }, 20*time.Second, 20*time.Millisecond, "descriptors: %d before", before)
	require.Eventually(t, func() bool { return zombies(t) == 0 }, 20*time.Second, 20*time.Millisecond, "zombies")
}

// zombies counts dead children that this process has not waited for.
func zombies(t *testing.T) (n int) {
	t.Helper()
	d, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range d {
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if f[0] == "Z" && f[1] == strconv.Itoa(os.Getpid()) {
			n++
		}
	}
	return n
}

func TestC10AbortAtAnyMoment(t *testing.T) {
	p := start(t, nil)
	id := func() string { return string(bus.NewOpID()) }
	t.Run("before the start", func(t *testing.T) {
		c := p.Command("touch", "ran")
		c.ID = id()
		require.NoError(t, p.Abort(t.Context(), c.ID))
		require.ErrorIs(t, c.Run(t.Context()), harnesslib.ErrAborted)
		require.NoFileExists(t, filepath.Join(p.dir, "ran"))
	})
	t.Run("at the start", func(t *testing.T) {
		for i := range 20 {
			c := p.Command("sleep", "300")
			c.ID = id()
			ended := make(chan error, 1)
			go func() { ended <- c.Run(t.Context()) }()
			time.Sleep(time.Duration(i) * 200 * time.Microsecond) //nolint:forbidigo // the moments are the test
			require.NoError(t, p.Abort(t.Context(), c.ID))
			require.NoError(t, p.Abort(t.Context(), c.ID), "twice")
			require.ErrorIs(t, <-ended, harnesslib.ErrAborted)
		}
	})
	t.Run("after the end", func(t *testing.T) {
		c := p.Command("true")
		require.NoError(t, c.Run(t.Context()))
		require.NoError(t, p.Abort(t.Context(), c.ID))
		again := p.AttachCommand(c.ID)
		require.NoError(t, again.Run(t.Context()))
		require.Equal(t, harnesslib.Exited, again.Outcome.Kind, "the outcome stays")
	})
}

// workerProcess starts a worker in a process of its own at a hub that listens. It returns what kills it.
func (n *network) workerProcess(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	return n.workerAt(t, url, n.token(t, bus.RoleSandbox, "box"))
}

func (n *network) workerAt(t *testing.T, url, token string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVar+"=1", "SANDBUS_URL="+url, "SANDBUS_TOKEN="+token,
		"SANDBUS_DIR="+n.dir, "SANDBUS_STATE_DIR="+n.state, "SANDBUS_LOG_LEVEL=warn")
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return cmd
}

func TestC11WorkerIsKilled(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	w := n.workerProcess(t, n.hub.URL())
	p := n.place(t, n.hub.URL())
	var ended [2]error
	var wg sync.WaitGroup
	wg.Go(func() {
		ended[0] = p.Command("sh", "-c", "setsid sh -c 'echo $$ >a; exec sleep 300' & echo $$ >b; sleep 300").Run(t.Context())
	})
	wg.Go(func() { _, ended[1] = p.ScriptCommand("sh -c 'echo $$ >c; exec sleep 300'; :").Output(t.Context()) })
	for _, f := range []string{"a", "b", "c"} {
		appears(t, p, f)
	}
	require.NoError(t, w.Process.Kill())
	_ = w.Wait()
	wg.Wait() // never a hang
	for _, err := range ended {
		require.ErrorIs(t, err, harnesslib.ErrLost)
	}
	n.workerProcess(t, n.hub.URL())
	require.Eventually(t, func() bool { return p.Command("true").Run(t.Context()) == nil }, 60*time.Second, 100*time.Millisecond)
	gone(t, p, "a", "b", "c")
}

func TestC12Signals(t *testing.T) {
	p := start(t, nil)
	for script, want := range map[string]harnesslib.Outcome{
		"kill -9 $$":                  {Kind: harnesslib.Signalled, Signal: "KILL"},
		"kill -TERM $$":               {Kind: harnesslib.Signalled, Signal: "TERM"},
		"kill -SEGV $$":               {Kind: harnesslib.Signalled, Signal: "SEGV"},
		"exit 300":                    {Kind: harnesslib.Exited, Code: 44},
		"exit 137":                    {Kind: harnesslib.Exited, Code: 137},
		"exit 255":                    {Kind: harnesslib.Exited, Code: 255},
		"sh -c 'kill -9 $$'; exit $?": {Kind: harnesslib.Exited, Code: 137},
	} {
		c := p.Command("sh", "-c", script)
		err := c.Run(t.Context())
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee, script)
		require.Equal(t, want, ee.Outcome, script)
	}
	c := p.Command("sh", "-c", "trap 'echo got; exit 5' USR1; echo ready >r; while :; do sleep 0.05; done")
	go func() {
		appears(t, p, "r")
		if err := p.Signal(t.Context(), c.ID, "SIGUSR1"); err != nil {
			t.Error(err)
		}
	}()
	c.ID = string(bus.NewOpID())
	out, err := c.Output(t.Context())
	require.Equal(t, 5, exitCode(t, err))
	require.Equal(t, "got\n", string(out))
	require.ErrorContains(t, p.Signal(t.Context(), c.ID, "NOSUCH"), "want a name such as TERM")
	require.ErrorContains(t, p.Signal(t.Context(), c.ID, "TERM"), "has ended")
	require.ErrorIs(t, p.Signal(t.Context(), "nosuchexec", "TERM"), harnesslib.ErrUnknownExec)
}

func TestC13NotStarted(t *testing.T) {
	onTiers(t, func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd) {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, "plain"), []byte("x"), 0o644))
		require.Equal(t, 127, exitCode(t, cmd("no-such-program").Run(t.Context())))
		require.Equal(t, 126, exitCode(t, cmd("./plain").Run(t.Context())))
	})
	p := start(t, nil)
	c := p.Command("no-such-program")
	require.Error(t, c.Run(t.Context()))
	require.Equal(t, harnesslib.StartFailed, c.Outcome.Kind)
	require.Equal(t, "exec", c.Outcome.Stage)
	require.Equal(t, syscall.ENOENT, c.Outcome.Errno)
}

func TestC14OutOfMemory(t *testing.T) {
	p := start(t, nil)
	c := p.Command("true")
	c.MemoryLimit = 32 << 20
	err := c.Run(t.Context())
	testenv.Need(t, "cgroup", err == nil || !strings.Contains(err.Error(), "cannot make cgroups"))
	require.NoError(t, err)
	for _, script := range []string{"exec tail /dev/zero", "tail /dev/zero; exit $?"} {
		c = p.Command("sh", "-c", script)
		c.MemoryLimit = 32 << 20
		require.ErrorIs(t, c.Run(t.Context()), harnesslib.ErrOOM, script)
	}
	require.NoError(t, p.Command("true").Run(t.Context()), "the worker lives")
	c = p.Command("true")
	c.MemoryLimit = 5
	require.ErrorContains(t, c.Run(t.Context()), "memory limit 5")
}

func TestC15IdleTimeout(t *testing.T) {
	p := start(t, nil)
	c := p.Command("sh", "-c", "for i in 1 2 3 4; do echo $i; sleep 0.2; done; sleep 300")
	c.IdleTimeout = 500 * time.Millisecond
	c.Timeout = time.Minute
	out, err := c.Output(t.Context())
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	require.Equal(t, "idle", c.Outcome.Clock)
	require.Equal(t, "1\n2\n3\n4\n", string(out))
	c = p.Command("sh", "-c", "while :; do echo x; sleep 0.05; done")
	c.IdleTimeout = time.Minute
	c.Timeout = 300 * time.Millisecond
	_, err = c.Output(t.Context())
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	require.Equal(t, "total", c.Outcome.Clock)
}

// TestC16LongSilence is longer than every clock of the protocol but the minute without acks, which keep-alives prevent
// in the same way; an hour differs in nothing else.
func TestC16LongSilence(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		t.Parallel()
		out, err := cmd("sleep 23; echo woke").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "woke\n", string(out))
	})
}

func TestC17ContextEnds(t *testing.T) {
	p := start(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	go func() {
		appears(t, p, "a")
		cancel(why)
	}()
	err := p.Command("sh", "-c", "echo $$ >a; exec sleep 300").Run(ctx)
	require.ErrorIs(t, err, harnesslib.ErrAborted)
	require.ErrorIs(t, err, why)
	gone(t, p, "a")

	ctx, cancel = context.WithCancelCause(t.Context())
	c := p.Command("sh", "-c", "echo one; sleep 0.5; echo two")
	c.Detach = true
	require.NoError(t, c.Run(ctx))
	require.True(t, c.Running)
	cancel(why)
	a := p.AttachCommand(c.ID)
	out, err := a.Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", string(out))
	require.Equal(t, harnesslib.Exited, a.Outcome.Kind)
}

// TestC18Busy runs 100 commands, ten of which print as fast as they are read, and sees that what must not wait does not.
// How long it takes is a benchmark's business.
func TestC18Busy(t *testing.T) {
	p := start(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			c := p.Command("sleep", "300")
			if i < 10 {
				c = p.Command("cat", "/dev/zero")
				c.Stdout = io.Discard
			}
			if err := c.Run(ctx); !errors.Is(err, harnesslib.ErrAborted) {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool {
		list, err := p.Execs(t.Context())
		return err == nil && len(list) == 100
	}, 30*time.Second, 10*time.Millisecond)
	for range 20 {
		_, err := p.Execs(t.Context())
		require.NoError(t, err)
		victim := p.Command("sleep", "300")
		victim.ID = string(bus.NewOpID())
		ended := make(chan error, 1)
		go func() { ended <- victim.Run(t.Context()) }()
		require.NoError(t, p.Abort(t.Context(), victim.ID))
		require.ErrorIs(t, <-ended, harnesslib.ErrAborted)
	}
	cancel(errors.New("enough"))
	wg.Wait()
}

func TestC19KilledBackgroundJob(t *testing.T) {
	onTiers(t, func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd) {
		_, err := cmd("sleep 300 >/dev/null 2>&1 & echo $! >job").Output(t.Context())
		require.NoError(t, err)
		out, err := cmd("kill -9 $(cat job); echo killed").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "killed\n", string(out))
		out, err = cmd("echo fine").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "fine\n", string(out))
	})
}

func TestC33NoStdin(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		for _, script := range []string{"cat", "cat; :", "read x; echo $?", "sh", "head -c 1", "test -c /dev/stdin || test -e /dev/stdin"} {
			require.NoError(t, cmd(script).Run(t.Context()), script)
		}
	})
}

func TestC34Stdin(t *testing.T) {
	p := start(t, nil)
	in := bytes.Repeat([]byte("x"), 50<<20)
	c := p.Command("wc", "-c")
	c.Stdin = bytes.NewReader(in)
	out, err := c.Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "52428800", strings.TrimSpace(string(out)))
	c = p.Command("head", "-c", "10")
	c.Stdin = bytes.NewReader(in)
	out, err = c.Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, "xxxxxxxxxx", string(out))
	c = p.Command("true")
	c.Stdin = bytes.NewReader(in)
	require.NoError(t, c.Run(t.Context()))
}

func TestC35EndOfFile(t *testing.T) {
	p := start(t, nil)
	r, w := io.Pipe()
	c := p.Command("cat")
	c.Stdin = r
	var out lockedBuffer
	c.Stdout = &out
	require.NoError(t, c.Start(t.Context()))
	_, err := io.WriteString(w, "hello")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return out.String() == "hello" }, 10*time.Second, time.Millisecond)
	require.NoError(t, w.Close())
	require.NoError(t, c.Wait())
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestC36Large(t *testing.T) {
	p := start(t, nil)
	script := strings.Repeat("# "+strings.Repeat("c", 97)+"\n", 40_000) + "echo end"
	require.Greater(t, len(script), 3<<20)
	c := p.ScriptCommand(script)
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run(t.Context())
	require.ErrorContains(t, err, "one message holds", "a message has its bound; the error says so before anything is done")
	c = p.ScriptCommand(script[len(script)-900_000:])
	c.Stdout = &out
	require.NoError(t, c.Run(t.Context()), "larger than one argument")
	require.Equal(t, "end\n", out.String())

	err = p.Command("echo", strings.Repeat("x", 131_072)).Run(t.Context())
	require.ErrorContains(t, err, "131072 bytes, the system's bound is 131071")
	got, err := p.Command("printf", "%s", strings.Repeat("x", 131_071)).Output(t.Context())
	require.NoError(t, err)
	require.Len(t, got, 131_071)

	for _, tier := range tiers {
		c := tier.cmd(p, "env | grep -c ^V[0-9]")
		for i := range 200 {
			c.Env = append(c.Env, fmt.Sprintf("V%d=%s", i, strings.Repeat("v", 1000)))
		}
		got, err := c.Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "200\n", string(got))
	}
}

func TestC37KeystrokesInOrder(t *testing.T) {
	p := start(t, nil)
	r, w := io.Pipe()
	c := p.Command("sh", "-c", "stty raw -echo; echo ready; head -c 5000 | od -An -v -tx1 | tr -d ' \\n\\r'")
	c.Terminal = &harnesslib.Size{Cols: 120, Rows: 40}
	c.Stdin = r
	var out lockedBuffer
	c.Stdout = &out
	require.NoError(t, c.Start(t.Context()))
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "ready") }, 10*time.Second, time.Millisecond)
	var want strings.Builder
	for i := range 5000 {
		b := byte('a' + i%26)
		fmt.Fprintf(&want, "%02x", b)
		_, err := w.Write([]byte{b})
		require.NoError(t, err)
	}
	require.NoError(t, c.Wait())
	_, got, _ := strings.Cut(out.String(), "ready")
	require.Equal(t, want.String(), strings.TrimSpace(got))
	_ = w.Close()
}

func TestTerminal(t *testing.T) {
	p := start(t, nil)
	c := p.Command("bash", "--norc", "--noprofile", "--noediting") // without its editing nothing is lost that is typed ahead
	c.ID = string(bus.NewOpID())
	c.Terminal = &harnesslib.Size{Cols: 120, Rows: 40}
	r, w := io.Pipe()
	c.Stdin = r
	var out lockedBuffer
	c.Stdout = &out
	require.NoError(t, c.Start(t.Context()))
	expect := func(send, want string) {
		t.Helper()
		_, err := io.WriteString(w, send)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return strings.Contains(out.String(), want) }, 10*time.Second, time.Millisecond, "%q in %q", want, out.String())
	}
	expect("stty size\n", "40 120")
	require.NoError(t, p.Resize(t.Context(), c.ID, harnesslib.Size{Cols: 99, Rows: 33}))
	expect("stty size\n", "33 99")
	expect("echo h\u00e9llo $((40+1)) | cat\n", "h\u00e9llo 41")
	expect("cat -\n", "cat -\r\n")
	expect("ping\n", "ping\r\nping\r\n")
	expect("\x03", "^C")
	expect("tty >/dev/tty; echo status=$?\n", "status=0")

	second := p.AttachCommand(c.ID)
	var seen lockedBuffer
	second.Stdout = &seen
	second.Stdin = strings.NewReader("echo from $((40+2))\n")
	require.NoError(t, second.Start(t.Context()))
	require.Eventually(t, func() bool {
		return strings.Contains(seen.String(), "from 42") && strings.Contains(out.String(), "from 42")
	}, 10*time.Second, time.Millisecond)

	_, err := io.WriteString(w, "exit 7\n")
	require.NoError(t, err)
	require.Equal(t, 7, exitCode(t, c.Wait()))
	_ = w.Close()
	require.Equal(t, 7, exitCode(t, second.Wait()))
	require.ErrorContains(t, p.Resize(t.Context(), c.ID, harnesslib.Size{Cols: 0, Rows: 1}), "want 1 to 65535")
	plain := p.Command("true")
	require.NoError(t, plain.Run(t.Context()))
	require.ErrorContains(t, p.Resize(t.Context(), plain.ID, harnesslib.Size{Cols: 1, Rows: 1}), "no terminal")
}

func TestC38NoControllingTerminal(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		out, err := cmd("read x </dev/tty || echo no terminal").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "no terminal\n", string(out))
	})
}

func TestC39AnyBytes(t *testing.T) {
	onTiers(t, func(t *testing.T, p *place, cmd func(string) *harnesslib.Cmd) {
		all := make([]byte, 0, 1<<16)
		for len(all) < 1<<16 {
			for i := range 256 {
				all = append(all, byte(i))
			}
		}
		random := make([]byte, 1<<20)
		_, _ = rand.Read(random)
		for name, data := range map[string][]byte{
			"all": all, "nul": make([]byte, 1000), "cr": []byte("10%\r20%\r30%"), "blank": []byte("\n\n\n"), "no newline": []byte("x"),
			"long line": bytes.Repeat([]byte("y"), 7<<20), "random": random,
		} {
			require.NoError(t, os.WriteFile(filepath.Join(p.dir, "data"), data, 0o600))
			out, err := cmd("cat data; :").Output(t.Context())
			require.NoError(t, err, name)
			require.True(t, bytes.Equal(data, out), "%s: %d bytes of %d", name, len(out), len(data))
		}
	})
}

// TestC40Runes splits runes over chunks: what arrives is bytes, and whoever wants text decodes what he has collected.
func TestC40Runes(t *testing.T) {
	p := start(t, nil)
	out, err := p.Command("sh", "-c", `for i in 1 2 3 4 5; do printf '\346'; sleep 0.02; printf '\227'; sleep 0.02; printf '\245'; done`).Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("\u65e5", 5), string(out))
	require.True(t, utf8.Valid(out))
	text := strings.Repeat("\u65e5\u672c", 100_000)
	c := p.Command("cat")
	c.Stdin = strings.NewReader(text)
	out, err = c.Output(t.Context())
	require.NoError(t, err)
	require.Equal(t, text, string(out))
}

func TestC41OutputOverTheLimit(t *testing.T) {
	p := start(t, nil)
	const limit = 8 << 20
	c := p.Command("sh", "-c", "echo $$ >a; exec head -c 104857600 /dev/zero")
	out, err := c.Output(t.Context())
	require.ErrorIs(t, err, harnesslib.ErrOutputLimit)
	require.Len(t, out, limit)
	gone(t, p, "a")

	c = p.Command("sh", "-c", "printf head; head -c 104857600 /dev/zero; printf tail")
	c.HeadTail, c.OutputLimit = true, limit
	out, err = c.Output(t.Context())
	require.NoError(t, err, "it runs on")
	require.Len(t, out, limit)
	require.EqualValues(t, 104857600+8-limit, c.Omitted)
	require.True(t, bytes.HasPrefix(out, []byte("head")))
	require.True(t, bytes.HasSuffix(out, []byte("tail")))
}

func TestC42ExactlyTheLimit(t *testing.T) {
	onTiers(t, func(t *testing.T, _ *place, cmd func(string) *harnesslib.Cmd) {
		out, err := cmd("head -c 8388608 /dev/zero; exit 3").Output(t.Context())
		require.Equal(t, 3, exitCode(t, err))
		require.Len(t, out, 8388608)
		c := cmd("head -c 8388609 /dev/zero; exit 3")
		out, err = c.Output(t.Context())
		require.ErrorIs(t, err, harnesslib.ErrOutputLimit)
		require.Len(t, out, 8388608)
		require.Zero(t, c.Outcome.Code)
	})
}

// stalling is a writer that stops once.
type stalling struct {
	n     int64
	after int64
	stop  time.Duration
	sum   bytes.Buffer
}

func (s *stalling) Write(b []byte) (int, error) {
	if s.n < s.after && s.n+int64(len(b)) >= s.after {
		time.Sleep(s.stop) //nolint:forbidigo // the stall is the test
	}
	s.n += int64(len(b))
	return s.sum.Write(b)
}

func TestC43SlowReader(t *testing.T) {
	p := start(t, nil)
	var want strings.Builder
	for i := 1; i <= 2_000_000; i++ {
		want.WriteString(strconv.Itoa(i))
		want.WriteByte('\n')
	}
	c := p.Command("seq", "1", "2000000")
	w := &stalling{after: 1 << 20, stop: 10 * time.Second}
	c.Stdout = w
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	for range 20 { // others are unaffected
		out, err := p.Command("echo", "x").Output(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x\n", string(out))
	}
	require.NoError(t, <-ended)
	require.True(t, want.String() == w.sum.String(), "%d bytes of %d", w.sum.Len(), want.Len())
	require.Zero(t, c.Omitted)
}

func TestC44TwoReaders(t *testing.T) {
	p := start(t, nil)
	const size = 20 << 20
	c := p.Command("sh", "-c", "while ! [ -e go ]; do sleep 0.02; done; head -c 20971520 /dev/zero")
	c.ID, c.Detach = string(bus.NewOpID()), true
	require.NoError(t, c.Run(t.Context()))
	stopped := &stalling{after: 1, stop: 3 * time.Second}
	var good stalling
	slow, fast := p.AttachCommand(c.ID), p.AttachCommand(c.ID)
	slow.Stdout, fast.Stdout = stopped, &good
	var wg sync.WaitGroup
	for _, a := range []*harnesslib.Cmd{slow, fast} {
		require.NoError(t, a.Start(t.Context()))
		wg.Go(func() {
			if err := a.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "go"), nil, 0o600))
	wg.Wait()
	require.EqualValues(t, size, good.n)
	require.Zero(t, fast.Omitted)
	require.Positive(t, slow.Omitted, "it was overtaken")
	require.EqualValues(t, size, stopped.n+slow.Omitted, "and told how much it missed")
}

func TestC45MergedOrder(t *testing.T) {
	p := start(t, nil)
	script := "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done"
	out, err := p.Command("sh", "-c", script).CombinedOutput(t.Context())
	require.NoError(t, err)
	var want strings.Builder
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&want, "o%d\ne%d\n", i, i)
	}
	require.Equal(t, want.String(), string(out))
	var o, e bytes.Buffer
	c := p.Command("sh", "-c", script)
	c.Stdout, c.Stderr = &o, &e
	require.NoError(t, c.Run(t.Context()))
	require.Equal(t, 9, strings.Count(o.String(), "o"))
	require.Equal(t, 9, strings.Count(e.String(), "e"))
}

func TestC46LogReadAgain(t *testing.T) {
	p := start(t, nil)
	c := p.Command("sh", "-c", "seq 1 1000; seq 1 1000 >&2; seq 1000 2000")
	var first bytes.Buffer
	c.Stdout = &first
	require.NoError(t, c.Run(t.Context()))
	read := func(offset int64) (string, string) {
		a := p.AttachCommand(c.ID)
		a.Offset = offset
		var o, e bytes.Buffer
		a.Stdout, a.Stderr = &o, &e
		require.NoError(t, a.Run(t.Context()))
		require.Zero(t, a.Omitted)
		return o.String(), e.String()
	}
	allOut, allErr := read(0)
	require.Equal(t, first.String(), allOut)
	midOut, midErr := read(1000)
	require.Equal(t, len(allOut)+len(allErr)-1000, len(midOut)+len(midErr))
	for range 5 {
		o, e := read(0)
		require.Equal(t, allOut, o)
		require.Equal(t, allErr, e)
		o, e = read(1000)
		require.Equal(t, midOut, o)
		require.Equal(t, midErr, e)
	}
	o, e := read(1 << 40)
	require.Empty(t, o+e)
}

func TestC47FullDisk(t *testing.T) {
	testenv.Need(t, "root", os.Geteuid() == 0)
	small := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", small, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(small, syscall.MNT_DETACH)) })
	p := start(t, func(c *workerd.Config) { c.SpoolDir = small })
	c := p.Command("sh", "-c", "head -c 1000000 /dev/zero >"+small+"/f; echo status $?; rm "+small+"/f")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	require.NoError(t, c.Run(t.Context()))
	require.Contains(t, errs.String(), "No space left")
	require.Equal(t, "status 1\n", out.String())

	c = p.Command("sh", "-c", "head -c 1000000 /dev/zero; printf tail")
	c.Spool = true
	got, err := c.Output(t.Context())
	require.NoError(t, err)
	require.Len(t, got, 1000004)
	require.Contains(t, c.SpoolError, "no space left")
	require.Positive(t, c.SpoolOmitted)
	fi, err := os.Stat(c.SpoolPath)
	require.NoError(t, err)
	require.EqualValues(t, 1000004, fi.Size()+c.SpoolOmitted)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
}

func TestSpool(t *testing.T) {
	spool := t.TempDir()
	p := start(t, func(c *workerd.Config) { c.SpoolDir = spool })
	c := p.Command("sh", "-c", "seq 1 300000; echo err >&2")
	c.Spool, c.HeadTail, c.OutputLimit = true, true, 1000
	_, err := c.Output(t.Context())
	require.NoError(t, err)
	full, err := p.ReadFile(t.Context(), c.SpoolPath)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(full), "1\n2\n"))
	require.Contains(t, string(full), "\n300000\n")
	require.Contains(t, string(full), "err\n")
	c = p.Command("seq", "1", "1000")
	c.Spool, c.SpoolLimit = true, 100
	_, err = c.Output(t.Context())
	require.NoError(t, err)
	full, err = p.ReadFile(t.Context(), c.SpoolPath)
	require.NoError(t, err)
	require.Len(t, full, 100)
	require.EqualValues(t, 3893-100, c.SpoolOmitted)
	require.Empty(t, c.SpoolError)
}

func TestC49AnotherHarnessAttaches(t *testing.T) {
	n := newNetwork(t)
	n.workerProcess(t, n.hub.URL())
	proxy := n.proxy(t)
	first := n.place(t, proxy.url)
	c := first.Command("sh", "-c", "for i in $(seq 1 40); do echo $i; sleep 0.05; done; exit 9")
	c.ID = string(bus.NewOpID())
	var some lockedBuffer
	c.Stdout = &some
	require.NoError(t, c.Start(t.Context()))
	require.Eventually(t, func() bool { return strings.Contains(some.String(), "3\n") }, 10*time.Second, time.Millisecond)
	proxy.cut() // the harness is gone, as far as anybody can see
	second := n.place(t, n.hub.URL())
	a := second.AttachCommand(c.ID)
	out, err := a.Output(t.Context())
	require.Equal(t, 9, exitCode(t, err))
	var want strings.Builder
	for i := 1; i <= 40; i++ {
		fmt.Fprintln(&want, i)
	}
	require.Equal(t, want.String(), string(out))
	proxy.mend()
	require.Equal(t, 9, exitCode(t, c.Wait()), "and when it comes back it has lost nothing")
	require.Equal(t, want.String(), some.String())
}

func TestC50OneRunForOneID(t *testing.T) {
	p := start(t, nil)
	id := string(bus.NewOpID())
	run := func(h *harnesslib.Hub, arg string) (string, error) {
		sb, err := h.Sandbox("box")
		require.NoError(t, err)
		c := sb.Command("sh", "-c", "echo run >>runs; sleep 0.3; echo "+arg+"; exit 4")
		c.ID = id
		out, err := c.Output(t.Context())
		return string(out), err
	}
	var wg sync.WaitGroup
	for range 4 { // at once, each from a connection of its own
		h := connect(t, p.bus)
		wg.Go(func() {
			out, err := run(h, "x")
			if errors.Is(err, bus.ErrReplaced) {
				return
			}
			var ee *harnesslib.ExitError
			if !errors.As(err, &ee) || ee.Outcome.Code != 4 || out != "x\n" {
				t.Error(out, err)
			}
		})
	}
	wg.Wait()
	for range 3 { // and after the end
		out, err := run(p.hub, "x")
		require.Equal(t, 4, exitCode(t, err))
		require.Equal(t, "x\n", out)
	}
	runs, err := os.ReadFile(filepath.Join(p.dir, "runs"))
	require.NoError(t, err)
	require.Equal(t, "run\n", string(runs), "one run")
	_, err = run(p.hub, "y")
	require.ErrorContains(t, err, "was used for another request")
}

func TestExecUsageAndTiming(t *testing.T) {
	p := start(t, nil)
	c := p.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done")
	_, err := c.Output(t.Context())
	require.NoError(t, err)
	require.Positive(t, c.Usage.User)
	require.Positive(t, c.Usage.MaxRSS)
	require.Positive(t, c.Timing.Run)
	require.Positive(t, c.Timing.FirstByte)
	require.GreaterOrEqual(t, c.Timing.Run, c.Usage.User/4)
	list, err := p.Execs(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, c.ID, list[0].ID)
	require.False(t, list[0].Running)
	require.EqualValues(t, 5, list[0].Output)
	require.Contains(t, list[0].Command, "while")
}
