package conformance

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

var tierCases = []Case{
	{"declaration", declaration},
	{"fast tier", fastTier},
	{"streaming", streaming},
	{"order of outputs", orderOfOutputs},
	{"writer that fails", failingWriter},
	{"slow writer", slowWriter},
}

func declaration(t *T) {
	require.Equal(t, t.declared, transport.Declared(t.Transport))
	require.Equal(t, t.declared, transport.Declared(t.another()), "it differs from one transport to the next")
}

// fastTier looks whether the shells of several commands are one process, as those of a long-lived shell are; and where
// file operations are native, whether the process that reads is the same each time.
func fastTier(t *T) {
	const runs = 16
	pids := map[string]bool{}
	want := transport.TierFast
	if t.declared.FastTier == transport.FastNone {
		want = transport.TierStream
	}
	for range runs {
		res := t.script(`eval 'echo $''$'`) // not to be seen in the text, for which a shell of its own may be started
		require.Equal(t, want, res.Tier, "what served it")
		pids[strings.TrimSpace(string(res.Stdout))] = true
	}
	res := t.exec(transport.Command{Script: "echo x", Stdout: &bytes.Buffer{}})
	require.Contains(t, []transport.Tier{transport.TierFast, transport.TierStream}, res.Tier)
	if t.declared.FastTier == transport.FastNone {
		require.Len(t, pids, runs, "shells: without a fast tier each command has its own")
	} else {
		require.Less(t, len(pids), runs, "shells: with a fast tier some are the same")
	}
	readers := map[string]bool{}
	for range 2 {
		b, err := t.Files().ReadFile(t.ctx, "/proc/self/stat")
		require.NoError(t, err)
		pid, _, _ := strings.Cut(string(b), " ")
		readers[pid] = true
	}
	if t.declared.FastTier == transport.FastNative {
		require.Len(t, readers, 1, "native file operations are one process's")
	} else {
		require.Len(t, readers, 2, "file operations are native, which is not declared")
	}
}

// firstWriter says when the first output comes.
type firstWriter struct {
	once  sync.Once
	first chan struct{}

	mu  sync.Mutex // guards the field below
	got []byte
}

func (w *firstWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, b...)
	w.once.Do(func() { close(w.first) })
	return len(b), nil
}

// streaming lets a command end only when its first output has been seen, or was waited for long enough.
func streaming(t *T) {
	dir := t.dir()
	w := &firstWriter{first: make(chan struct{})}
	helper := t.another()
	limit := 30 * time.Second
	if !t.declared.Streams {
		limit = time.Second
	}
	seen := make(chan bool, 1)
	go func() {
		select {
		case <-w.first:
			seen <- true
		case <-time.After(limit):
			seen <- false
		}
		_ = helper.Files().WriteFile(t.ctx, dir+"/go", nil, 0o644) // without it the case runs into its limit
	}()
	res := t.exec(transport.Command{Script: "echo one; while [ ! -e " + dir + "/go ]; do sleep 0.05; done; echo two", Stdout: w, Stderr: &bytes.Buffer{}})
	require.Equal(t, t.declared.Streams, <-seen, "output came while the command ran")
	require.Equal(t, "one\ntwo\n", string(w.got))
	require.Empty(t, res.Stdout)
	require.Zero(t, t.code(res, "stream"))
}

func orderOfOutputs(t *T) {
	var out bytes.Buffer
	t.exec(transport.Command{Script: "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done", Stdout: &out, Stderr: &out})
	require.Equal(t, "o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n", out.String())
	var one, other bytes.Buffer
	t.exec(transport.Command{Script: "echo o; echo e >&2", Stdout: &one, Stderr: &other})
	require.Equal(t, []string{"o\n", "e\n"}, []string{one.String(), other.String()})
	one.Reset()
	t.exec(transport.Command{Script: "echo o; echo e >&2", Stdout: &one})
	require.Equal(t, "o\n", one.String())
}

type brokenWriter struct{}

var errWriter = errors.New("the writer is full")

func (brokenWriter) Write([]byte) (int, error) { return 0, errWriter }

func failingWriter(t *T) {
	_, err := t.Exec(t.ctx, transport.Command{Script: "echo x; sleep 300", Stdout: brokenWriter{}})
	require.ErrorIs(t, err, errWriter)
}

// slowly takes its time for the first pieces.
type slowly struct {
	bytes.Buffer

	slow int
}

func (w *slowly) Write(b []byte) (int, error) {
	if w.slow--; w.slow >= 0 {
		<-time.After(50 * time.Millisecond)
	}
	return w.Buffer.Write(b)
}

// slowWriter holds the command back, and loses nothing.
func slowWriter(t *T) {
	w := &slowly{slow: 10}
	res := t.exec(transport.Command{Script: "i=0; while [ $i -lt 20000 ]; do echo line $i of these; i=$((i+1)); done", Stdout: w})
	require.Zero(t, t.code(res, "slow"))
	lines := strings.Split(w.String(), "\n")
	require.Len(t, lines, 20001)
	require.Equal(t, "line 0 of these", lines[0])
	require.Equal(t, "line 19999 of these", lines[19999])
}
