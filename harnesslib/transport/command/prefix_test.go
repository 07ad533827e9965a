package command_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
)

func writeScript(name, text string) error {
	syscall.ForkLock.RLock() // no child may hold it open for writing when it is run
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, []byte(text), 0o755)
}

// wrapper is a prefix that is a script of its own: $* is the shell's command line.
func wrapper(tb testing.TB, text string) []string {
	tb.Helper()
	name := tb.TempDir() + "/prefix"
	require.NoError(tb, writeScript(name, text))
	return []string{"sh", name}
}

// TestBadPrefix: what leads to no shell is a clear error, which names what it said; nothing hangs.
func TestBadPrefix(t *testing.T) {
	for name, c := range map[string]struct {
		prefix []string
		want   string
	}{
		"no such program":       {[]string{"/no/such/program"}, "no such file"},
		"no such container":     {wrapper(t, "echo 'Error: No such container: box' >&2; exit 1"), "No such container: box"},
		"speaks on stdout":      {wrapper(t, "echo 'usage: prefix'; exit 2"), "exit status 2: usage: prefix"},
		"succeeds and does not": {[]string{"true"}, "leads to no shell"},
		"no shell in it":        {[]string{"env", "-i", "PATH=/nowhere"}, "leads to no shell"},
		"needs a terminal":      {wrapper(t, "[ -t 0 ] || { echo 'the input device is not a TTY' >&2; exit 1; }"), "not a TTY"},
		"gives a terminal":      {wrapper(t, `exec "$@" 3>&1 | sed -u 's/$/\r/'`), "terminal"},
		"never answers":         {wrapper(t, "exec sleep 300"), "no answer of a shell within"},
		"talks for ever":        {wrapper(t, "exec yes"), "prints more than"},
		"killed":                {wrapper(t, "kill -9 $$"), "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := command.Config{Prefix: c.prefix, StartTimeout: 10 * time.Second}
			if name == "never answers" {
				cfg.StartTimeout = 100 * time.Millisecond
			}
			for _, tr := range []transport.Transport{open(t, cfg), openPerCall(t, cfg)} {
				_, err := tr.Exec(t.Context(), transport.Command{Script: "true"})
				require.ErrorIs(t, err, transport.ErrUnreachable)
				require.ErrorContains(t, err, c.want)
				_, err = tr.Files().ReadFile(t.Context(), "/etc/passwd")
				require.ErrorIs(t, err, transport.ErrUnreachable)
				require.NoError(t, tr.Close())
			}
		})
	}
	for _, cfg := range []command.Config{{}, {Prefix: []string{""}}, {Prefix: []string{"sh"}, PrefixIsShell: true, Shell: []string{"sh"}}, {Prefix: []string{"sh"}, StartTimeout: -1}} {
		_, err := command.New(cfg)
		require.Error(t, err)
	}
}

// TestBanner: what is printed before the shell answers is not the command's.
func TestBanner(t *testing.T) {
	cfg := command.Config{Prefix: wrapper(t, "echo Welcome; echo 'You have mail.' >&2; printf 'no newline'; exec \"$@\"")}
	for _, tr := range []transport.Transport{open(t, cfg), openPerCall(t, cfg)} {
		res := run(t, tr, transport.Command{Script: "echo out; echo err >&2"})
		require.Equal(t, "out\n", string(res.Stdout))
		require.Equal(t, "err\n", string(res.Stderr))
	}
}

// TestTailLost: a prefix that loses the end of an output, or ends before it, is lost and never short.
func TestTailLost(t *testing.T) {
	for name, text := range map[string]string{
		"of stdout":        `"$@" | dd bs=1 count=40000 2>/dev/null`,
		"of stderr":        `{ "$@" 2>&1 >&3 | dd bs=1 count=40000 >&2 2>/dev/null; } 3>&1`,
		"dies":             `"$@" | { dd bs=1 count=40000 2>/dev/null; kill -9 $$; }`,
		"a success behind": `"$@" | dd bs=1 count=40000 2>/dev/null; exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := command.Config{Prefix: wrapper(t, text), Shell: []string{"sh"}}
			for _, tr := range []transport.Transport{open(t, cfg), openPerCall(t, cfg)} {
				res, err := tr.Exec(t.Context(), transport.Command{Script: "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"})
				require.ErrorIs(t, err, transport.ErrLost)
				require.NotNil(t, res, "what came is there")
				require.Nil(t, res.ExitCode)
				require.NotEmpty(t, res.Stdout)
			}
		})
	}
}

// TestDiesInTheMiddle: the far shell is killed while a command runs.
func TestDiesInTheMiddle(t *testing.T) {
	for name, prefix := range shells(t) {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			cfg := command.Config{Prefix: prefix, PrefixIsShell: true, Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))}
			tr := open(t, cfg)
			res := run(t, tr, transport.Command{Script: `eval 'echo $''$'`})
			shell := strings.TrimSpace(string(res.Stdout))
			before := tr.Stats()
			res, err := tr.Exec(t.Context(), transport.Command{Script: "echo ran >>ran; printf part; kill -9 -" + shell})
			require.ErrorIs(t, err, transport.ErrLost)
			require.Equal(t, "part", string(res.Stdout))
			require.Equal(t, before, tr.Stats(), "what may have run is not run again")
			res, err = tr.Exec(t.Context(), transport.Command{Script: "echo again", Repeatable: true})
			require.NoError(t, err)
			require.Equal(t, transport.TierFast, res.Tier, "the line is started anew")
			shell = strings.TrimSpace(string(run(t, tr, transport.Command{Script: `eval 'echo $''$'`}).Stdout))
			res, err = tr.Exec(t.Context(), transport.Command{Script: "[ -e once ] && echo second || { : >once; kill -9 -" + shell + "; }", Repeatable: true})
			require.NoError(t, err)
			require.Equal(t, "second\n", string(res.Stdout))
			require.Equal(t, transport.TierStream, res.Tier)
			require.Equal(t, int64(1), tr.Stats().Fallbacks)
			require.Contains(t, log.String(), "fallbacks=1")
			b, err := tr.Files().ReadFile(t.Context(), "ran")
			require.NoError(t, err)
			require.Equal(t, "ran\n", string(b))
		})
	}
}

// lockedBuffer is a buffer that several may write to.
type lockedBuffer struct {
	mu sync.Mutex // guards the field below
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestFilesFallBack: reads go on without the line, writes that may have been done do not, and all of it shows.
func TestFilesFallBack(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/f", []byte("content"), 0o644))
	// The line for files is the first process; it dies when it has answered and is asked for something.
	prefix := wrapper(t, `D=`+dir+`
echo >>"$D/starts"
[ -e "$D/die" ] || exec "$@"
rm "$D/die"
head -n 1 | "$@"`)
	tr := open(t, command.Config{Prefix: prefix, Shell: []string{"sh"}, Dir: dir})
	require.NoError(t, os.WriteFile(dir+"/die", nil, 0o644))
	b, err := tr.Files().ReadFile(t.Context(), "f")
	require.NoError(t, err)
	require.Equal(t, "content", string(b))
	require.Equal(t, int64(1), tr.Stats().Fallbacks)
	require.NoError(t, os.WriteFile(dir+"/die", nil, 0o644))
	require.ErrorIs(t, tr.Files().WriteFile(t.Context(), "g", []byte("x"), 0o644), transport.ErrLost)
	require.Equal(t, int64(1), tr.Stats().Fallbacks)
	require.NoError(t, tr.Files().WriteFile(t.Context(), "g", []byte("x"), 0o644))
}

// TestOneProcessForAll: a burst of file operations is served by one process, which also the prefix itself has counted.
func TestOneProcessForAll(t *testing.T) {
	dir := t.TempDir()
	tr := open(t, command.Config{Prefix: wrapper(t, `echo >>`+dir+`/starts; exec "$@"`), Dir: dir})
	require.Zero(t, tr.Stats().Processes, "nothing is started before it is needed")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				f, ctx := tr.Files(), t.Context()
				for _, err := range []error{
					f.WriteFile(ctx, "f", []byte("x"), 0o644), second(f.ReadFile(ctx, "f")), second(f.Stat(ctx, "f")), second(f.ReadDir(ctx, ".")), second(f.Hash(ctx, "f")),
				} {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(dir + "/starts")
	require.NoError(t, err)
	require.Equal(t, "\n", string(b), "processes for 200 operations")
	require.Equal(t, command.Stats{Processes: 1}, tr.Stats())
}

func second[T any](_ T, err error) error { return err }

// TestDeclarations pins what the ways of this package declare.
func TestDeclarations(t *testing.T) {
	cfg := command.Config{Prefix: []string{"sh"}, PrefixIsShell: true}
	require.Equal(t, declared, transport.Declared(open(t, cfg)))
	require.Equal(t, declaredPerCall, transport.Declared(openPerCall(t, cfg)))
	fast, stream := open(t, cfg), openPerCall(t, cfg)
	tiers := transport.Tiers{Fast: fast, Stream: stream}
	require.Equal(t, declared, transport.Declared(tiers))
	res := run(t, tiers, transport.Command{Script: "true"})
	require.Equal(t, transport.TierFast, res.Tier)
	res = run(t, tiers, transport.Command{Script: "true", Stdout: &bytes.Buffer{}})
	require.Equal(t, transport.TierStream, res.Tier)
	require.Equal(t, int64(1), stream.Stats().Processes)
	require.NoError(t, tiers.Close())
	_, err := stream.Exec(t.Context(), transport.Command{Script: "true"})
	require.ErrorIs(t, err, transport.ErrClosed)
	require.NoError(t, transport.Both(fast).Close())
}

// TestStopsAreConfirmed: where the far side cannot be told, a stop is lost and says so.
func TestStopsAreConfirmed(t *testing.T) {
	dir := t.TempDir()
	// From the second process on, this prefix is broken: so there is none that could stop anything.
	tr := open(t, command.Config{Prefix: wrapper(t, `[ -e `+dir+`/once ] && exit 1; : >`+dir+`/once; exec "$@"`), Shell: []string{"sh"}})
	res, err := tr.Exec(t.Context(), transport.Command{Script: "printf part; exec sleep 300", Timeout: 300 * time.Millisecond})
	require.ErrorIs(t, err, transport.ErrLost)
	require.ErrorIs(t, err, harnesslib.ErrTimedOut)
	require.Equal(t, "part", string(res.Stdout))
}
