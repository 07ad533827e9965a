package plainrelay

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// collecting is an output that is looked at afterwards.
func collecting() *output {
	return &output{exec: &sandboxv1.Exec{}, cancel: func(error) {}}
}

// pipe returns both ends of one, which the test closes.
func pipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	r, w, err := os.Pipe()
	require.NoError(tb, err)
	tb.Cleanup(func() { _, _ = r.Close(), w.Close() }) // may be closed already
	return r, w
}

// TestLateReader: a reader that comes to read when the grace is long over, as under load, takes what the command wrote.
func TestLateReader(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 4<<10) // as much as a pipe holds: two chunks
	for name, hold := range map[string]bool{"at its end": false, "held": true} {
		t.Run(name, func(t *testing.T) {
			r, w := pipe(t)
			_, err := w.Write(want)
			require.NoError(t, err)
			if !hold {
				require.NoError(t, w.Close())
			}
			h := &held{quiet: -time.Hour, atMost: -time.Hour}
			h.exited(r)
			out := collecting()
			out.copy(r, h)
			require.Len(t, out.buf, len(want))
			require.True(t, bytes.Equal(want, out.buf))
		})
	}
}

// TestHolderGivenUp: a process that goes on writing into its command's output is given up in the end.
func TestHolderGivenUp(t *testing.T) {
	r, w := pipe(t)
	h := &held{quiet: time.Hour, atMost: time.Millisecond}
	h.exited(r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := w.Write([]byte("chatter\n")); err != nil { // the reader has closed
				return
			}
		}
	}()
	collecting().copy(r, h)
	require.NoError(t, r.Close())
	<-done
}

// TestRunInto: what comes behind the exit within the grace counts, and a silent holder does not keep the end.
func TestRunInto(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pid := t.TempDir() + "/pid"
	cmd := exec.CommandContext(ctx, "bash", "-c", "setsid sleep 300 & echo $! >"+pid+"; head -c 300000 /dev/zero; echo err >&2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = heldFor
	out, errs := collecting(), collecting()
	require.NoError(t, runInto(cmd, out, errs))
	require.NoError(t, ctx.Err(), "the sleep was waited for")
	require.Len(t, out.buf, 300000)
	require.Equal(t, "err\n", string(errs.buf))
	b, err := os.ReadFile(pid)
	require.NoError(t, err)
	holder, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(holder, syscall.SIGKILL))
}
