package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const limit = 8 << 20

var exited = sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED

// eachShell runs a test on a pool of every shell of this machine, with both kinds of pipes.
func eachShell(t *testing.T, test func(t *testing.T, p *Pool, sh []string)) {
	t.Helper()
	for name, path := range testenv.Shells(t) {
		argv := []string{path}
		if name == "busybox" {
			argv = append(argv, "sh")
		}
		t.Run(name, func(t *testing.T) { test(t, newPool(t, path, false), argv) })
		t.Run(name+" with FIFOs", func(t *testing.T) { test(t, newPool(t, path, true), argv) })
	}
}

func newPool(t *testing.T, path string, fifo bool) *Pool {
	t.Helper()
	p, err := NewPool(Config{Path: path, Dir: t.TempDir(), Temp: t.TempDir(), Env: os.Environ(), forceFIFO: fifo})
	require.NoError(t, err)
	require.Equal(t, fifo, p.pipes.fifo, "this system has /proc")
	t.Cleanup(p.Close)
	return p
}

func run1(t *testing.T, p *Pool, script string) *sandbusv1.ShellRunResponse {
	t.Helper()
	resp, err := p.Run(t.Context(), Command{Script: script, Limit: limit})
	require.NoError(t, err)
	return resp
}

// TestMeansWhatDashCMeans compares status and output with a fresh shell of the same kind. Messages differ in the name
// that a shell gives to where the text came from, so standard error is compared by whether there is any.
func TestMeansWhatDashCMeans(t *testing.T) {
	scripts := []string{
		":", "true", "false", "exit 7", "exit 300", "echo a # c", "echo a\\", "echo 'x", "if", "cat <<'X'\n$HOME `x`\nX", "cat <<X\nunended",
		"set -e; false; echo no", "f() { return 3; }; f", "trap 'echo bye' EXIT; exit 4", "echo 'it!s' \"a!b\"", "printf '%s' '$HOME'",
		"exec 1>&2; echo x", "cd /; pwd", "nosuchcommand", "  echo   indented  ", "\n\necho late\n\n", "echo a; echo b >&2; exit 5",
		"yes | head -1", "cat", "cat /etc/hostname", "ls /nosuchfile", "echo $0 | sed 's,.*/,,'", "echo $#", "printf '\\000\\001\\377'", "(exit 9)",
		"sh -c 'exit 11'", "echo \"$(echo sub)\"", "x=1 sh -c 'echo $x'", "unset PATH; echo ok", "echo ''", "echo \"'\"", "false; true", "! true",
		"exec sh -c 'exit 3'", "head -c 100000 /dev/zero | tr '\\0' x", "alias printf=false; printf hi", "readonly x=1; echo $x", "kill -TERM $$ 2>/dev/null & wait; echo w",
	}
	eachShell(t, func(t *testing.T, p *Pool, sh []string) {
		for _, script := range scripts {
			if strings.Contains(script, "kill -TERM $$") {
				continue // names the shell itself: see TestKillOfTheShell
			}
			cmd := exec.CommandContext(t.Context(), sh[0], append(sh[1:len(sh):len(sh)], "-c", script)...)
			cmd.Dir = p.cfg.Dir
			var wantErr bytes.Buffer
			cmd.Stderr = &wantErr
			want, err := cmd.Output()
			var ee *exec.ExitError
			if err != nil {
				require.ErrorAs(t, err, &ee, script)
			}
			got := run1(t, p, script)
			require.Equal(t, exited, got.GetOutcome().GetKind(), script)
			require.EqualValues(t, cmd.ProcessState.ExitCode(), got.GetOutcome().GetCode(), "%q: %s", script, got.GetStderr())
			require.Equal(t, string(want), string(got.GetStdout()), script)
			require.Equal(t, wantErr.Len() > 0, len(got.GetStderr()) > 0, "%q: %q, %q", script, wantErr.String(), got.GetStderr())
		}
		require.Equal(t, "alive\n", string(run1(t, p, "echo alive").GetStdout()))
	})
}

// TestErrorMessagesAreThoseOfBash compares the text too, where both have it the same.
func TestErrorMessagesAreThoseOfBash(t *testing.T) {
	bash := testenv.Tool(t, "bash")
	p := newPool(t, bash, false)
	require.Equal(t, "bash: line 1: nosuchcommand: command not found\n", string(run1(t, p, "nosuchcommand").GetStderr()))
	require.Equal(t, "bash: line 3: nosuchcommand: command not found\n", string(run1(t, p, "\n\nnosuchcommand").GetStderr()))
	syntax := run1(t, p, "if")
	require.EqualValues(t, 2, syntax.GetOutcome().GetCode())
	require.Contains(t, string(syntax.GetStderr()), "syntax error: unexpected end of file")
}

func TestOneCommandDoesNotReachTheNext(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		probe := `pwd; echo "[$A]"; type f >/dev/null 2>&1 && echo f; case $- in *e*) echo e;; esac; trap; umask; echo ok`
		clean := string(run1(t, p, probe).GetStdout())
		require.Contains(t, clean, p.cfg.Dir)
		for _, script := range []string{
			"cd /; export A=1", "set -eu; set -f", "f() { :; }", "trap 'echo t' EXIT INT", "umask 077", "exec >/dev/null 2>&1", "exec 3>&- 4>&-",
			"exec 0<&- 1>&- 2>&-", "unset PATH", "alias echo=false", "echo() { :; }", "exit 3", "IFS=x", "PS1=x; PROMPT_COMMAND='echo p'", "readonly A=2",
			"__sandbus_script=x; __n=0; __t=/",
		} {
			for range 3 { // several shells of the pool
				run1(t, p, script)
			}
			for range 3 {
				require.Equal(t, clean, string(run1(t, p, probe).GetStdout()), script)
			}
		}
	})
}

// TestKilledScriptGoesNoFurther ends commands in the middle of scripts: nothing behind the command that was killed runs.
func TestKilledScriptGoesNoFurther(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 15 {
					resp, err := p.Run(t.Context(), Command{Script: "printf start; sleep 300; echo end", Timeout: 30 * time.Millisecond, Limit: 1000})
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, resp.GetOutcome().GetKind())
					assert.NotContains(t, string(resp.GetStdout()), "end")
				}
			})
		}
		wg.Wait()
	})
}

func TestCommandsHaveNoDescriptorsOfTheShell(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		for _, script := range []string{"ls /proc/self/fd", "ls /proc/self/fd; :"} {
			got := strings.Fields(string(run1(t, p, script).GetStdout()))
			require.Equal(t, []string{"0", "1", "2", "3"}, got, "3 is the directory that ls reads")
		}
	})
}

func TestVerbatim(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		var all strings.Builder
		for i := 1; i < 256; i++ {
			if i != '\'' {
				all.WriteByte(byte(i))
			}
		}
		for range 4 {
			got := run1(t, p, "printf %s '"+all.String()+"'")
			require.Equal(t, all.String(), string(got.GetStdout()))
		}
		long := strings.Repeat("# "+strings.Repeat("c", 1000)+"\n", 4000) // 4 MB
		require.Equal(t, "end\n", string(run1(t, p, long+"echo end").GetStdout()))
	})
}

func TestStdin(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		in := bytes.Repeat([]byte{0, 1, '\n', 255, '\''}, 300_000)
		for script, want := range map[string]string{"wc -c": "1500000", "head -c 2 | od -An -tx1": "00 01", "true": "", "cat >/dev/null; wc -c": "0"} {
			resp, err := p.Run(t.Context(), Command{Script: script, Stdin: in, HasStdin: true, Limit: limit})
			require.NoError(t, err)
			require.Equal(t, exited, resp.GetOutcome().GetKind())
			require.Zero(t, resp.GetOutcome().GetCode(), "%s: %s", script, resp.GetStderr())
			require.Equal(t, want, strings.TrimSpace(string(resp.GetStdout())))
		}
	})
}

func TestOutputLimit(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		for n, want := range map[int]sandbusv1.OutcomeKind{
			1000: exited, 1001: sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT, 5_000_000: sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT,
		} {
			resp, err := p.Run(t.Context(), Command{Script: fmt.Sprintf("head -c %d /dev/zero; sleep 0.05", n), Limit: 1000})
			require.NoError(t, err)
			require.Equal(t, want, resp.GetOutcome().GetKind(), "%d bytes", n)
			require.Len(t, resp.GetStdout(), 1000)
		}
	})
}

func TestTimeoutSparesTheShell(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		for _, script := range []string{"printf start; sleep 300", "printf start; while :; do :; done", `printf start; trap "" TERM INT; sleep 300; sleep 300`} {
			for timeout := 200 * time.Millisecond; ; timeout *= 2 { // a busy machine may not come as far as the first word
				resp, err := p.Run(t.Context(), Command{Script: script, Timeout: timeout, Limit: limit})
				require.NoError(t, err)
				require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, resp.GetOutcome().GetKind(), script)
				if string(resp.GetStdout()) == "start" {
					break
				}
				require.Empty(t, string(resp.GetStdout()))
				require.Less(t, timeout, 10*time.Second, "nothing was printed")
			}
		}
		require.Equal(t, 2, p.alive, "no shell had to be replaced")
		require.Equal(t, "ok\n", string(run1(t, p, "echo ok").GetStdout()))
	})
}

func TestAbort(t *testing.T) {
	p := newPool(t, testenv.Tool(t, "bash"), false)
	ctx, cancel := context.WithCancelCause(t.Context())
	marker := filepath.Join(p.cfg.Dir, "running")
	go func() {
		for {
			if _, err := os.Stat(marker); err == nil || t.Context().Err() != nil {
				break
			}
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // polls for what another process does
		}
		cancel(errors.New("enough"))
	}()
	resp, err := p.Run(ctx, Command{Script: "touch running; sleep 300", Limit: limit})
	require.NoError(t, err)
	require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED, resp.GetOutcome().GetKind())
}

// TestKillOfTheShell has a command kill the shell that runs it: that is how the command ended, and the pool has a
// shell again.
func TestKillOfTheShell(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		for range 3 {
			resp := run1(t, p, "kill -9 $$; sleep 1")
			require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED, resp.GetOutcome().GetKind())
			require.Equal(t, "KILL", resp.GetOutcome().GetSignal())
		}
		require.Equal(t, "ok\n", string(run1(t, p, "echo ok").GetStdout()))
	})
}

// TestC12SignalsAndCodes has a signal and the code that a shell makes of it: they are not the same.
func TestC12SignalsAndCodes(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, sh []string) {
		for range 2 {
			for script, code := range map[string]int{"exit 300": 44, "exit 137": 137, "sh -c 'exit 137'": 137, "sh -c 'kill -9 $$'; exit $?": 137} {
				out := run1(t, p, script).GetOutcome()
				require.Equal(t, exited, out.GetKind(), script)
				require.EqualValues(t, code, out.GetCode(), script)
			}
			scripts := map[string]string{"sh -c 'kill -9 $PPID'; :": "KILL", "sh -c 'kill -TERM $PPID'; :": "TERM", "kill -9 $$; sleep 1": "KILL"}
			if strings.HasSuffix(sh[0], "bash") {
				scripts["kill -9 $BASHPID"], scripts["kill -SEGV $BASHPID"] = "KILL", "SEGV"
			}
			for script, signal := range scripts {
				if !p.traces && !strings.Contains(script, "$$") {
					continue // this kernel does not tell
				}
				out := run1(t, p, script).GetOutcome()
				require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED, out.GetKind(), script)
				require.Equal(t, signal, out.GetSignal(), script)
			}
		}
	})
}

// TestC31TemporaryDirectoryIsRuined has commands take away what FIFOs need.
func TestC31TemporaryDirectoryIsRuined(t *testing.T) {
	for name, path := range testenv.Shells(t) {
		for _, fifo := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " FIFOs ", fifo), func(t *testing.T) {
				temp := filepath.Join(t.TempDir(), "tmp")
				require.NoError(t, os.Mkdir(temp, 0o700))
				cfg := Config{Path: path, Dir: t.TempDir(), Temp: temp, Env: append(os.Environ(), "TMPDIR="+temp), forceFIFO: fifo}
				p, err := NewPool(cfg)
				require.NoError(t, err)
				defer p.Close()
				s := newSession(t, path, func(c *SessionsConfig) { c.Config = cfg })
				s.ok("V=1")
				for _, script := range []string{"rm -rf $TMPDIR/*", "chmod 000 $TMPDIR", "chmod 700 $TMPDIR; rm -rf $TMPDIR", "mkdir -p $TMPDIR/sandbus-x"} {
					for range 3 {
						out := run1(t, p, script).GetOutcome()
						require.Equal(t, exited, out.GetKind(), "%s: %s", script, out)
					}
					for range 3 {
						require.Equal(t, "ok\n", string(run1(t, p, "echo ok").GetStdout()), script)
					}
					s.ok(script + "\n:") // rm may find a directory that is made anew meanwhile
					require.Equal(t, "1\n", s.ok("echo $V"), script)
				}
			})
		}
	}
}

func TestFIFOsArePrivateAndGone(t *testing.T) {
	temp := t.TempDir()
	p, err := NewPool(Config{Path: testenv.Tool(t, "bash"), Dir: temp, Temp: temp, Env: os.Environ(), forceFIFO: true})
	require.NoError(t, err)
	for range 10 {
		run1(t, p, "true")
	}
	entries, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	fi, err := entries[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, fi.Mode())
	left, err := os.ReadDir(filepath.Join(temp, entries[0].Name()))
	require.NoError(t, err)
	require.LessOrEqual(t, len(left), 2*3, "those of the commands that are prepared")
	p.Close()
	entries, err = os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestC33NoStdinIsEndOfFile(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		s := newSession(t, p.cfg.Path, nil)
		for _, tool := range []string{"cat", "rg x", "python3 -", "ssh -o BatchMode=yes -o ConnectTimeout=1 localhost true", "sh", "read x", "head"} {
			c := Command{Script: tool + "; :", Timeout: 20 * time.Second, Limit: limit}
			resp, err := p.Run(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, exited, resp.GetOutcome().GetKind(), "%s", tool)
			require.Equal(t, exited, s.do(c).GetOutcome().GetKind(), "%s", tool)
		}
	})
}

func TestC36LongScriptsAndManyVariables(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		s := newSession(t, p.cfg.Path, nil)
		long := "x='" + strings.Repeat("0123456789abcdef", 4<<20/16-2) + "'; echo ${#x}"
		want := fmt.Sprintln(4<<20 - 32)
		require.Equal(t, want, string(run1(t, p, long).GetStdout()))
		require.Equal(t, want, s.ok(long))
		c := Command{Script: "echo $V0$V199; sh -c 'echo $V0$V199'", Limit: limit}
		for i := range 200 {
			c.Env = append(c.Env, fmt.Sprintf("V%d=%d", i, i))
		}
		resp, err := p.Run(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, "0199\n0199\n", string(resp.GetStdout()))
		require.Equal(t, "0199\n0199\n", string(s.do(c).GetStdout()))
	})
}

func TestC38NoControllingTerminal(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		script := "(read x </dev/tty) 2>/dev/null && echo read; echo no"
		require.Equal(t, "no\n", string(run1(t, p, script).GetStdout()))
		require.Equal(t, "no\n", newSession(t, p.cfg.Path, nil).ok(script))
	})
}

func TestQueueAndBusy(t *testing.T) {
	p, err := NewPool(Config{Path: testenv.Tool(t, "bash"), Dir: t.TempDir(), Env: os.Environ(), Max: 1, Queue: 2})
	require.NoError(t, err)
	defer p.Close()
	fifo := filepath.Join(p.cfg.Dir, "go")
	require.NoError(t, exec.CommandContext(t.Context(), "mkfifo", fifo).Run())
	var wg sync.WaitGroup
	run := func(script string) {
		wg.Go(func() {
			resp, err := p.Run(t.Context(), Command{Script: script, Limit: limit})
			if err != nil || resp.GetOutcome().GetCode() != 0 {
				t.Error(script, err, resp)
			}
		})
	}
	run("read x <go; echo 1 >>order")
	waiting := func(n int) {
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.waiting) == n && len(p.idle) == 0
		}, 10*time.Second, time.Millisecond)
	}
	waiting(0)
	run("echo 2 >>order")
	waiting(1)
	run("echo 3 >>order")
	waiting(2)
	_, err = p.Run(t.Context(), Command{Script: "echo 4 >>order", Limit: limit})
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, os.WriteFile(fifo, []byte("go\n"), 0o600))
	wg.Wait()
	order, err := os.ReadFile(filepath.Join(p.cfg.Dir, "order"))
	require.NoError(t, err)
	require.Equal(t, "1\n2\n3\n", string(order), "in order of arrival")
}

func TestBackgroundProcessDoesNotHoldTheAnswer(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		begin := time.Now()
		resp := run1(t, p, "sleep 3 & echo hi")
		require.Equal(t, "hi\n", string(resp.GetStdout()))
		require.True(t, resp.GetPipeHeld())
		require.Less(t, time.Since(begin), 2*time.Second)
		resp = run1(t, p, "(sleep 0.15; echo late; sleep 0.15; echo later; sleep 0.15; echo last) & echo first")
		require.Equal(t, "first\nlate\nlater\nlast\n", string(resp.GetStdout()), "each chunk starts the grace anew")
		require.False(t, resp.GetPipeHeld())
	})
}

func TestPlainWords(t *testing.T) {
	c := func(script string, env ...string) *Command { return &Command{Script: script, Env: env} }
	env := []string{"PATH=/usr/bin:/bin"}
	require.Equal(t, []string{"cat", "/etc/hostname"}, plainWords(c("  cat  /etc/hostname "), "/", env))
	require.Equal(t, []string{"ls", "--color=never", "-l"}, plainWords(c("ls --color=never -l"), "/", env))
	for _, script := range []string{
		"", " ", "echo x", "cat $HOME", "cat ~", "cat *", "cat a;b", "cat a\nb", "cat 'a'", "cat a#b", "A=1 cat", "nosuchprogram x", "./cat", "if cat",
		"cat {a,b}", "cat a|b", "time cat x", "cat <x", "cat x&", "cat a\\ b", "[ -f x ]", "cat !x",
	} {
		require.Nil(t, plainWords(c(script), "/", env), "%q", script)
	}
	require.Nil(t, plainWords(c("cat x", "PATH=/nowhere"), "/", env), "the command's own PATH counts")
}

// FuzzQuote has a real shell read back what quote made.
func FuzzQuote(f *testing.F) {
	dash, err := exec.LookPath("dash")
	if err != nil {
		f.Skip("SKIPPED: no dash")
	}
	p, err := NewPool(Config{Path: dash, Dir: "/", Env: os.Environ()})
	require.NoError(f, err)
	f.Cleanup(p.Close)
	f.Add("it's")
	f.Add("\x01\x7f\x80\x81\x88\xff\n\\")
	f.Fuzz(func(t *testing.T, s string) {
		if strings.IndexByte(s, 0) >= 0 {
			return
		}
		var b strings.Builder
		b.WriteString("printf %s ")
		quote(&b, s)
		require.Equal(t, s, string(run1(t, p, b.String()).GetStdout()))
	})
}
