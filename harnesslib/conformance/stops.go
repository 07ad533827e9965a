package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
)

var stopCases = []Case{
	{"timeout", timeout},
	{"abort", abort},
	{"abort before the start", abortBeforeStart},
	{"output limit", outputLimit},
	{"output limit of a stream", outputLimitOfStream},
	{"stop by timeout", stopBy(stop{exec: "sleep 300", command: transport.Command{Timeout: 1500 * time.Millisecond}, silent: true})},
	{"stop by abort", stopBy(stop{exec: "sleep 300", abort: true, silent: true})},
	{"stop by limit", stopBy(stop{exec: "exec yes", command: transport.Command{OutputLimit: 1000}})},
	{"stop by limit of a stream", stopBy(stop{exec: "exec yes", command: transport.Command{OutputLimit: 1000, Stdout: io.Discard}})},
	{"close", closeTransport},
}

// both runs a check in the collected form and as a stream, where the output is what has come at the end.
func both(t *T, check func(form string, run func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error))) {
	check("collected", func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error) {
		res, err := t.Exec(ctx, c)
		if res == nil {
			return nil, nil, err
		}
		return res, res.Stdout, err
	})
	check("stream", func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error) {
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, io.Discard
		res, err := t.Exec(ctx, c)
		return res, out.Bytes(), err
	})
}

func timeout(t *T) {
	both(t, func(form string, run func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error)) {
		res, out, err := run(t.ctx, transport.Command{Script: "printf start; sleep 300; echo end", Timeout: time.Second})
		require.EqualError(t, err, "timeout:1", form)
		require.ErrorIs(t, err, harnesslib.ErrTimedOut, form)
		require.NotNil(t, res, form)
		require.Nil(t, res.ExitCode, form)
		require.Equal(t, "start", string(out), form)
		res, out, err = run(t.ctx, transport.Command{Script: "echo quick", Timeout: time.Hour})
		require.NoError(t, err, form)
		require.Equal(t, "quick\n", string(out), form)
		require.Zero(t, t.code(res, "quick"))
	})
}

var errEnough = errors.New("enough of it")

func abort(t *T) {
	dir := t.dir()
	both(t, func(form string, run func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error)) {
		ctx, cancel := context.WithCancelCause(t.ctx)
		defer cancel(nil)
		watched := t.whenThere(ctx, dir+"/"+form, func() { cancel(errEnough) })
		res, out, err := run(ctx, transport.Command{Script: "printf start; sleep 0.2; echo >" + dir + "/" + form + "; sleep 300"})
		cancel(nil)
		<-watched
		require.EqualError(t, err, "aborted", form)
		require.ErrorIs(t, err, harnesslib.ErrAborted, form)
		require.ErrorIs(t, err, errEnough, form)
		require.NotNil(t, res, form)
		require.Nil(t, res.ExitCode, form)
		require.Equal(t, "start", string(out), form)
		require.Equal(t, "next\n", string(t.script("echo next").Stdout), form)
	})
}

func abortBeforeStart(t *T) {
	dir := t.dir()
	ctx, cancel := context.WithCancelCause(t.ctx)
	cancel(errEnough)
	both(t, func(form string, run func(ctx context.Context, c transport.Command) (*transport.Result, []byte, error)) {
		_, _, err := run(ctx, transport.Command{Script: "echo >" + dir + "/ran"})
		require.EqualError(t, err, "aborted", form)
		require.ErrorIs(t, err, errEnough, form)
	})
	require.Equal(t, "no\n", string(t.script("[ -e "+dir+"/ran ] || echo no").Stdout), "it ran all the same")
}

func outputLimit(t *T) {
	for _, limit := range []int{1, 1000, 200_000} {
		zeros := func(n int) transport.Command {
			return transport.Command{Script: fmt.Sprintf("head -c %d /dev/zero", n), OutputLimit: int64(limit)}
		}
		res := t.exec(zeros(limit))
		require.False(t, res.Truncated)
		require.Zero(t, t.code(res, "at the limit"))
		require.Equal(t, string(bytes.Repeat([]byte{0}, limit)), string(res.Stdout))
		res = t.exec(zeros(limit + 1))
		require.True(t, res.Truncated, "one byte over %d", limit)
		require.Nil(t, res.ExitCode)
		require.Equal(t, string(bytes.Repeat([]byte{0}, limit))+transport.TruncatedMarker, string(res.Stdout))
	}
	res := t.script(fmt.Sprintf("head -c %d /dev/zero", transport.DefaultOutputLimit))
	require.Len(t, res.Stdout, transport.DefaultOutputLimit)
	require.Zero(t, t.code(res, "at the default limit"))
	res = t.script(fmt.Sprintf("head -c %d /dev/zero", transport.DefaultOutputLimit+1))
	require.Len(t, res.Stdout, transport.DefaultOutputLimit+len(transport.TruncatedMarker))
	require.True(t, bytes.HasSuffix(res.Stdout, []byte(transport.TruncatedMarker)))
	require.Nil(t, res.ExitCode)
	res = t.exec(transport.Command{Script: "yes >&2", OutputLimit: 1000})
	require.True(t, res.Truncated)
	require.Nil(t, res.ExitCode)
	require.True(t, bytes.HasSuffix(res.Stderr, []byte("\ny"+transport.TruncatedMarker)) || bytes.HasSuffix(res.Stderr, []byte("y\n"+transport.TruncatedMarker)))
}

func outputLimitOfStream(t *T) {
	var out bytes.Buffer
	res := t.exec(transport.Command{Script: "yes", OutputLimit: 1000, Stdout: &out})
	require.True(t, res.Truncated)
	require.Nil(t, res.ExitCode)
	same(t, []byte(strings.Repeat("y\n", 500)), out.Bytes(), "up to the limit")
	out.Reset()
	res = t.exec(transport.Command{Script: fmt.Sprintf("head -c %d /dev/zero", transport.DefaultOutputLimit+1), Stdout: &out})
	require.False(t, res.Truncated, "a stream has no limit of itself")
	require.Zero(t, t.code(res, "stream"))
	require.Equal(t, transport.DefaultOutputLimit+1, out.Len())
}

// stop is a way to stop a command. Those that print nothing are stopped at the far side only by a transport that can
// tell it.
type stop struct {
	exec    string // what the command does until it is stopped
	command transport.Command
	abort   bool
	silent  bool
}

// stopBy looks whether what a stopped command has started is alive, as far as the declaration says.
func stopBy(s stop) func(t *T) {
	return func(t *T) {
		require.Equal(t, t.declared.StopMechanism, t.StopMechanism())
		if s.silent && t.declared.StopMechanism != transport.StopRemoteAbort || t.declared.StopMechanism == transport.StopLocalKill {
			return
		}
		dir := t.dir()
		ctx, cancel := context.WithCancelCause(t.ctx)
		watched := t.whenThere(ctx, dir+"/up", func() {
			if s.abort {
				cancel(errEnough)
			}
		})
		s.command.Script = strings.NewReplacer("DIR", dir, "EXEC", s.exec).Replace(
			"sh -c 'echo $$ >DIR/1; sleep 300; :' & sh -c 'echo $$ >DIR/2; while [ ! -s DIR/1 ]; do sleep 0.05; done; echo up >DIR/up; EXEC' ; wait")
		if s.abort { // these do not go by themselves
			s.command.Script = "trap '' TERM INT; " + s.command.Script
		}
		res, err := t.Exec(ctx, s.command)
		cancel(nil)
		<-watched
		if s.silent {
			require.Error(t, err)
			require.NotErrorIs(t, err, transport.ErrLost)
		} else {
			require.NoError(t, err)
			require.True(t, res.Truncated)
		}
		res = t.script(strings.ReplaceAll("[ -s DIR/2 ] || echo it did not run; for f in DIR/[12]; do read -r p <$f; "+
			"case $(cat /proc/$p/stat 2>/dev/null) in ''|*') Z'*|*') X'*) ;; *) echo alive $f; esac; done", "DIR", dir))
		require.Empty(t, string(res.Stdout))
	}
}

func closeTransport(t *T) {
	tr := t.another()
	_, err := tr.Exec(t.ctx, transport.Command{Script: "true"})
	require.NoError(t, err)
	running := make(chan error, 2)
	dir := t.dir()
	for _, c := range []transport.Command{{Script: "echo >" + dir + "/1; sleep 300"}, {Script: "echo >" + dir + "/2; sleep 300", Stdout: io.Discard}} {
		go func() {
			_, err := tr.Exec(t.ctx, c)
			running <- err
		}()
	}
	t.waitFor("the commands", func() bool {
		return string(t.script("ls "+dir).Stdout) == "1\n2\n"
	})
	closed := make(chan error, 3)
	for range cap(closed) {
		go func() { closed <- tr.Close() }()
	}
	for range cap(closed) {
		select {
		case err := <-closed:
			require.NoError(t, err)
		case <-t.ctx.Done():
			require.Fail(t, "Close hangs")
		}
	}
	for range cap(running) {
		select {
		case err := <-running:
			require.ErrorIs(t, err, transport.ErrClosed)
		case <-t.ctx.Done():
			require.Fail(t, "a command runs on behind Close")
		}
	}
	require.NoError(t, tr.Close())
	_, err = tr.Exec(t.ctx, transport.Command{Script: "true"})
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.Files().ReadFile(t.ctx, "/etc/passwd")
	require.ErrorIs(t, err, transport.ErrClosed)
}
