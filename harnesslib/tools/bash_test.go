package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
)

func clean(pieces ...string) string {
	var t tail
	for _, p := range pieces {
		_, _ = t.Write([]byte(p))
	}
	return t.view().text
}

func TestClean(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{"plain\ttext\n", "plain\ttext"},
		{"\x1b[1;31mred\x1b[0m", "red"},
		{"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"},
		{"\x1bP1$r\x1b\\a\x1b(Bb\x1b=c\x1bMd", "abcd"},
		{"10%\r50%\r100%\ndone\n", "100%\ndone"},
		{"10%\r", "10%"},
		{"a\r\nb\r\n", "a\nb"},
		{"a\r\r\nb", "a\nb"},
		{"a\b\x00\x07b\x7f", "ab"},
		{"caf\xc3\xa9 \xff!", "café \uFFFD!"},
		{"\x1b[", ""},
		{"\x1b[12\nb", "\nb"},
		{"\x1b]open\nb", "\nb"},
		{"\n\na", "\n\na"},
		{"", ""},
	} {
		require.Equal(t, c.want, clean(c.raw), "%q", c.raw)
		var bytewise []string
		for i := range len(c.raw) {
			bytewise = append(bytewise, c.raw[i:i+1])
		}
		require.Equal(t, c.want, clean(bytewise...), "%q in single bytes", c.raw)
	}
}

func TestTail(t *testing.T) {
	long := strings.Repeat("é", 40_000) // 80,000 bytes
	for _, c := range []struct {
		name, raw string
		want      view
	}{
		{"exactly 2,000 lines", numbered(1, 2000), view{text: strings.TrimSuffix(numbered(1, 2000), "\n"), total: 2000, shown: 2000}},
		{"2,001 lines", numbered(1, 2001), view{text: strings.TrimSuffix(numbered(2, 2001), "\n"), total: 2001, shown: 2000}},
		{"50,000 lines", numbered(1, 50_000), view{text: strings.TrimSuffix(numbered(48_001, 50_000), "\n"), total: 50_000, shown: 2000}},
		{
			"bytes", strings.Repeat(strings.Repeat("x", 99)+"\n", 600),
			view{text: strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 99)+"\n", 512), "\n"), total: 600, shown: 512, byBytes: true},
		},
		{"one long last line", "a\n" + long, view{text: long[len(long)-51200:], total: 2, shown: 1, lastBytes: 51200, byBytes: true}},
		{"one long last line with a newline", long + "\n", view{text: long[len(long)-51200:], total: 1, shown: 1, lastBytes: 51200, byBytes: true}},
		{"cut at a rune boundary", "x" + long + "y", view{text: (long + "y")[len(long)+1-51199:], total: 1, shown: 1, lastBytes: 51199, byBytes: true}},
		{"a long line before the last", long + "\nb\n", view{text: "b", total: 2, shown: 1, byBytes: true}},
		{"a gigantic line", strings.Repeat("z", 5<<20), view{text: strings.Repeat("z", 51200), total: 1, shown: 1, lastBytes: 51200, byBytes: true}},
	} {
		var tl tail
		for i := 0; i < len(c.raw); i += 1000 {
			_, _ = tl.Write([]byte(c.raw[i:min(len(c.raw), i+1000)]))
		}
		require.Equal(t, c.want, tl.view(), c.name)
		require.LessOrEqual(t, cap(tl.line)+tl.size, 20*MaxBytes, c.name)
	}
}

func FuzzTail(f *testing.F) {
	f.Add([]byte("a\x1b[1mb\rc\r\n\xff"), 3)
	f.Fuzz(func(t *testing.T, raw []byte, at int) {
		var whole, parts tail
		_, _ = whole.Write(raw)
		at = max(0, min(at, len(raw)))
		_, _ = parts.Write(raw[:at])
		_, _ = parts.Write(raw[at:])
		require.Equal(t, whole.view(), parts.view())
		require.NotContains(t, whole.view().text, "\x1b")
		require.LessOrEqual(t, len(whole.view().text), MaxBytes)
	})
}

// printing is a shell whose command prints and ends so.
func printing(text string, err error) fakeShell {
	return func(_ context.Context, c Command) error {
		_, werr := io.WriteString(c.Output, text)
		return errors.Join(werr, err)
	}
}

func exit(o harnesslib.Outcome) error { return &harnesslib.ExitError{Outcome: o} }

func TestBashEndings(t *testing.T) {
	half := 0.5
	for _, c := range []struct {
		name, prints string
		err          error
		timeout      *float64
		want         string
	}{
		{"output", "hello\n", nil, nil, "hello"},
		{"no output", "", nil, nil, "(no output)"},
		{"only what is cleaned away", "\x1b[0m", nil, nil, "(no output)"},
		{"exit code", "oops\n", exit(harnesslib.Outcome{Kind: harnesslib.Exited, Code: 3}), nil, "oops\n\nCommand exited with code 3"},
		{"exit code without output", "", exit(harnesslib.Outcome{Kind: harnesslib.Exited, Code: 1}), nil, "Command exited with code 1"},
		{"signal", "x", exit(harnesslib.Outcome{Kind: harnesslib.Signalled, Signal: "KILL"}), nil, "x\n\nCommand killed by signal KILL"},
		{"timeout", "x", exit(harnesslib.Outcome{Kind: harnesslib.TimedOut}), &half, "x\n\nCommand timed out after 0.5 seconds"},
		{"abort", "x", exit(harnesslib.Outcome{Kind: harnesslib.Aborted}), nil, "x\n\nCommand aborted"},
		{"not started", "", exit(harnesslib.Outcome{Kind: harnesslib.StartFailed, Message: "no such directory: /x"}), nil, "Command did not start: no such directory: /x"},
		{"out of memory", "", exit(harnesslib.Outcome{Kind: harnesslib.OOM}), nil, "Command killed: out of memory"},
		{"lost", "x", fmt.Errorf("%w: gone", harnesslib.ErrLost), nil, "x\n\nCommand lost: nobody knows whether it ran to its end"},
		{"nobody there", "", harnesslib.ErrUnreachable, nil, "Command not run: sandbox does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := New(Config{Shell: printing(c.prints, c.err)}).Bash(t.Context(), BashParams{Command: "x", Timeout: c.timeout})
			if c.err == nil {
				require.NoError(t, err)
				require.Equal(t, c.want, r.Text)
				return
			}
			be, ok := errors.AsType[*BashError](err)
			require.True(t, ok)
			require.Contains(t, err.Error(), c.want)
			require.True(t, strings.HasPrefix(err.Error(), c.want))
			require.ErrorIs(t, be, c.err)
		})
	}
}

func TestBashRefusals(t *testing.T) {
	tools := New(Config{Shell: printing("", nil)})
	for _, s := range []float64{0, -1, math.NaN(), math.Inf(1), 604801, 1e300} {
		_, err := tools.Bash(t.Context(), BashParams{Command: "x", Timeout: &s})
		require.ErrorContains(t, err, "the unit is seconds")
	}
	_, err := tools.Bash(t.Context(), BashParams{Command: " \n"})
	require.ErrorContains(t, err, "the command is empty")
	_, err = New(Config{}).Bash(t.Context(), BashParams{Command: "x"})
	require.ErrorContains(t, err, "has no such tool")
}

func TestBashPassesOn(t *testing.T) {
	var got Command
	seconds := 2.5
	tools := New(Config{Dir: "/w", Env: []string{"A=b"}, Shell: fakeShell(func(_ context.Context, c Command) error {
		got = c
		return nil
	})})
	_, err := tools.Bash(t.Context(), BashParams{Command: "a 'b'\n# c", Timeout: &seconds})
	require.NoError(t, err)
	got.Output = nil
	require.Equal(t, Command{Script: "a 'b'\n# c", Dir: "/w", Env: []string{"A=b"}, Timeout: 2500 * time.Millisecond}, got)
}

func TestBashSpill(t *testing.T) {
	for _, c := range []struct {
		name, prints string
		cfg          Config
		cut, kept    bool
		footer       string
	}{
		{"within", numbered(1, 2000), Config{}, false, false, ""},
		{"lines", "\x1b[1m" + numbered(1, 2001), Config{}, true, true, "\n\n[Showing lines 2-2001 of 2001. Full output: "},
		{"bytes", strings.Repeat(strings.Repeat("x", 99)+"\n", 600), Config{}, true, true, "\n\n[Showing lines 89-600 of 600 (50.0KB limit). Full output: "},
		{"one line", strings.Repeat("x", 60_000), Config{}, true, true, "\n\n[Showing the last 50.0KB of line 1, the last. Full output: "},
		{"progress is spilled and not cut", strings.Repeat("99%\r", 20_000) + "done", Config{}, false, true, ""},
		{"a last line without newline", numbered(1, 2000) + "x", Config{}, true, true, "[Showing lines 2-2001 of 2001. Full output: "},
		{"longer when it is cleaned", strings.Repeat("\xffa", 20_000), Config{}, true, true, "[Showing the last 50.0KB of line 1"},
		{"capped", numbered(1, 3000), Config{SpillBytes: 70}, true, true, ". The first 70B of the full output: "},
		{"not wanted", numbered(1, 3000), Config{SpillBytes: -1}, true, false, ". The full output was not kept]"},
		{"nowhere to keep it", numbered(1, 3000), Config{SpillDir: "/none"}, true, false, ". The full output could not be kept: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeFiles(nil)
			c.cfg.Shell = fakeShell(func(_ context.Context, cmd Command) error {
				for text := c.prints; text != ""; {
					n := min(len(text), 4000)
					_, err := io.WriteString(cmd.Output, text[:n])
					require.NoError(t, err)
					text = text[n:]
				}
				return nil
			})
			r, err := f.tools(c.cfg).Bash(t.Context(), BashParams{Command: "x"})
			require.NoError(t, err)
			require.Equal(t, c.cut, r.Cut)
			require.Equal(t, c.cut, strings.Contains(r.Text, "[Showing"))
			require.Contains(t, r.Text, c.footer)
			require.Equal(t, c.kept, r.FullOutput != "")
			if c.kept {
				want := c.prints
				if c.cfg.SpillBytes > 0 {
					want = want[:c.cfg.SpillBytes]
				}
				require.Equal(t, c.cfg.SpillBytes > 0, r.FullCapped)
				require.Equal(t, want, string(f.files[r.FullOutput]))
				require.Equal(t, fs.FileMode(0o600), f.modes[r.FullOutput])
				require.True(t, strings.HasPrefix(r.FullOutput, "/tmp/"))
			}
		})
	}
}

func TestBashUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		type update struct {
			at   time.Duration
			text string
		}
		var got []update
		wait := func(d time.Duration) { <-time.After(d) }
		tools := New(Config{Shell: fakeShell(func(_ context.Context, c Command) error {
			for i := range 25 {
				_, _ = fmt.Fprintf(c.Output, "%d\n", i) // an output takes all
				wait(10 * time.Millisecond)
			}
			wait(time.Second)
			_, _ = io.WriteString(c.Output, "last\n")
			_, _ = io.WriteString(c.Output, "never shown alone\n")
			return nil
		})})
		_, err := tools.Bash(t.Context(), BashParams{Command: "x", OnUpdate: func(text string) {
			got = append(got, update{time.Since(start), text[strings.LastIndexByte(text, '\n')+1:]})
		}})
		require.NoError(t, err)
		wait(time.Second)
		times := make([]time.Duration, 0, len(got))
		for i, u := range got {
			times = append(times, u.at)
			if i > 0 {
				require.GreaterOrEqual(t, u.at-got[i-1].at, updateEvery)
			}
		}
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 1250 * time.Millisecond}, times)
		require.Equal(t, "0", got[0].text)
		require.Equal(t, "24", got[3].text)
		require.Equal(t, "last", got[4].text)
	})
}
