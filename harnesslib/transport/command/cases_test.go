package command_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
)

// each runs a case on every shell, and per call.
func each(t *testing.T, check func(t *testing.T, tr transport.Transport)) {
	t.Helper()
	for name, prefix := range shells(t) {
		cfg := command.Config{Prefix: prefix, PrefixIsShell: true, Dir: t.TempDir()}
		t.Run(name, func(t *testing.T) { check(t, open(t, cfg)) })
	}
	cfg := command.Config{Prefix: []string{"sh"}, PrefixIsShell: true, Dir: t.TempDir()}
	t.Run("per call", func(t *testing.T) { check(t, openPerCall(t, cfg)) })
}

func run(tb testing.TB, tr transport.Transport, c transport.Command) *transport.Result {
	tb.Helper()
	res, err := tr.Exec(tb.Context(), c)
	require.NoError(tb, err, "%.100q", c.Script)
	return res
}

func prints(tb testing.TB, tr transport.Transport, script, want string) {
	tb.Helper()
	res := run(tb, tr, transport.Command{Script: script})
	require.Equal(tb, want, string(res.Stdout), "%.100q: %.200q", script, res.Stderr)
	exits(tb, res, 0)
}

func exits(tb testing.TB, res *transport.Result, want int) {
	tb.Helper()
	require.NotNil(tb, res.ExitCode)
	require.Equal(tb, want, *res.ExitCode, "%.200q", res.Stderr)
}

func TestC20ErrexitOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		exits(t, run(t, tr, transport.Command{Script: "set -eu; false; echo on"}), 1)
		prints(t, tr, "false; echo next", "next\n")
	})
}

func TestC21ExitOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		for _, script := range []string{"exit 7", "exec sh -c 'exit 7'", "trap 'exit 7' EXIT; exit 3", "(exit 7); exit"} {
			exits(t, run(t, tr, transport.Command{Script: script}), 7)
			prints(t, tr, "echo next", "next\n")
		}
	})
}

func TestC22TextOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		prints(t, tr, "cat <<'X'\n$a `b`\nX", "$a `b`\n")
		prints(t, tr, "cat <<X\nhere\nX\n", "here\n")
		prints(t, tr, "echo a\n# a comment", "a\n")
		prints(t, tr, "echo a # a comment", "a\n")
		prints(t, tr, "echo a \\", "a \\\n")
		for _, script := range []string{"echo 'unclosed", `echo "unclosed`, "echo $(", "if", "}", "done", "case x in"} {
			res := run(t, tr, transport.Command{Script: script})
			exits(t, res, 2)
			require.NotEmpty(t, res.Stderr)
		}
		prints(t, tr, "echo next", "next\n")
	})
}

func TestC23VerbatimOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		prints(t, tr, `echo 'it!s'; echo "a!b"; printf '%s' '$HOME'`, "it!s\na!b\n$HOME")
	})
}

func TestC24HostileOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		for _, script := range []string{
			"PS1='$(echo ps1)'; PROMPT_COMMAND='echo prompt'", "exec 3>&-", "exec 3>&- 4>&- 9>&- 0<&-", "trap 'echo x >&2' EXIT", "alias printf=false echo=false",
			"printf() { :; }; echo() { :; }; eval() { :; }; cd() { :; }", "unset PATH", "set -x", "set -f -u -e", "IFS=0123456789", "shift 1 2>/dev/null; true", "return 0 2>/dev/null; true",
			"trap 'echo x' DEBUG 2>/dev/null; true", "trap 'echo x' ERR 2>/dev/null; true", "kill -9 $$", "exec sleep 0", "set -o posix 2>/dev/null; true", "readonly PATH IFS 2>/dev/null; true",
		} {
			run(t, tr, transport.Command{Script: script})
			prints(t, tr, `printf '%s|' a b; (exit 4); echo $?`, "a|b|4\n")
		}
	})
}

func TestC25MarksOverCommand(t *testing.T) {
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data) // never fails
	each(t, func(t *testing.T, tr transport.Transport) {
		// All that a command can see of its shell: what would be a mark if any of it were one.
		res := run(t, tr, transport.Command{Script: "set; env; export -p; trap; cat /proc/self/cmdline /proc/$PPID/cmdline; cat /proc/self/environ /proc/$PPID/environ"})
		exits(t, res, 0)
		seen := append(bytes.Clone(res.Stdout), "<\n=0\n>\n"...)
		for i := range 16 {
			copy(data[i<<16:], seen[:min(len(seen), 1<<12)])
		}
		require.NoError(t, tr.Files().WriteFile(t.Context(), "data", data, 0o644))
		res = run(t, tr, transport.Command{Script: "cat data; cat data >&2"})
		require.Equal(t, sha256.Sum256(data), sha256.Sum256(res.Stdout))
		require.Equal(t, sha256.Sum256(data), sha256.Sum256(res.Stderr))
		exits(t, res, 0)
	})
}

func TestC26YesOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) { prints(t, tr, "yes | head -n 1", "y\n") })
}

func TestC27DirectoryOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		require.NoError(t, tr.Files().Mkdir(t.Context(), "d", 0o755))
		res := run(t, tr, transport.Command{Script: "pwd; rm -rf ../d", Dir: "d"})
		require.True(t, strings.HasSuffix(string(res.Stdout), "/d\n"))
		_, err := tr.Exec(t.Context(), transport.Command{Script: "echo ran", Dir: "d"})
		var ee *harnesslib.ExitError
		require.ErrorAs(t, err, &ee)
		require.Equal(t, harnesslib.StartFailed, ee.Outcome.Kind)
		require.ErrorContains(t, err, `"d"`)
	})
	t.Run("the transport's", func(t *testing.T) {
		tr := open(t, command.Config{Prefix: []string{"sh"}, PrefixIsShell: true, Dir: "/no/such/dir"})
		_, err := tr.Exec(t.Context(), transport.Command{Script: "true"})
		require.ErrorContains(t, err, "/no/such/dir")
		_, err = tr.Files().ReadFile(t.Context(), "x")
		require.ErrorContains(t, err, "/no/such/dir")
	})
}

func TestC28StateOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		before := run(t, tr, transport.Command{Script: "pwd"})
		run(t, tr, transport.Command{Script: "cd /; export A=1"})
		prints(t, tr, `pwd; echo "$A"`, string(before.Stdout)+"\n")
	})
}

// C29 is all of these on dash and busybox; a prefix that leads to no shell at all is in TestBadPrefix.
func TestC29ShellsOverCommand(t *testing.T) {
	t.Run("sh makes way for bash", func(t *testing.T) {
		if _, ok := shells(t)["bash"]; !ok {
			t.Skip("SKIPPED: bash is absent on this machine")
		}
		tr := open(t, command.Config{Prefix: []string{"env", "-i", "PATH=/usr/bin:/bin"}})
		prints(t, tr, `echo "${BASH_VERSION:+bash}"`, "bash\n")
		var out bytes.Buffer
		exits(t, run(t, tr, transport.Command{Script: `echo "${BASH_VERSION:+bash}"`, Stdout: &out}), 0)
		require.Equal(t, "bash\n", out.String())
	})
	t.Run("sh stays where there is none", func(t *testing.T) {
		sh := shells(t)["dash"]
		if sh == nil {
			t.Skip("SKIPPED: dash is absent on this machine")
		}
		bin := t.TempDir()
		require.NoError(t, writeScript(bin+"/sh", "#!"+sh[2]+"\nexec "+sh[2]+"\n"))
		tr := open(t, command.Config{Prefix: []string{"/usr/bin/env", "-i", "PATH=" + bin}})
		prints(t, tr, `echo "${BASH_VERSION:-none}"`, "none\n")
	})
}

func TestC30QueueOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				res, err := tr.Exec(t.Context(), transport.Command{Script: fmt.Sprintf("echo %d; echo %d >&2; echo %d", i, i, i)})
				if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n%d\n", i, i) || string(res.Stderr) != fmt.Sprintf("%d\n", i) {
					t.Errorf("command %d: %v %+v", i, err, res)
				}
			})
		}
		wg.Wait()
	})
	t.Run("in the order of arrival", func(t *testing.T) {
		tr := open(t, command.Config{Prefix: []string{"sh"}, PrefixIsShell: true, Dir: t.TempDir()})
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := tr.Exec(ctx, transport.Command{Script: "echo 0 >started; sleep 300"})
			if err == nil {
				t.Error("the first one was not aborted")
			}
		})
		require.Eventually(t, func() bool { _, err := tr.Files().Stat(t.Context(), "started"); return err == nil }, time.Minute, 5*time.Millisecond)
		for i := range 3 {
			wg.Go(func() { run(t, tr, transport.Command{Script: fmt.Sprintf("echo %d >>order", i)}) })
			require.Eventually(t, func() bool { return tr.Stats().Waiting == int64(i+1) }, time.Minute, time.Millisecond)
		}
		aborted, stop := context.WithCancelCause(t.Context())
		wg.Go(func() {
			_, err := tr.Exec(aborted, transport.Command{Script: "echo never >>order"})
			if err == nil {
				t.Error("one that waited was not aborted")
			}
		})
		require.Eventually(t, func() bool { return tr.Stats().Waiting == 4 }, time.Minute, time.Millisecond)
		stop(nil)
		require.Eventually(t, func() bool { return tr.Stats().Waiting == 3 }, time.Minute, time.Millisecond)
		cancel(nil)
		wg.Wait()
		b, err := tr.Files().ReadFile(t.Context(), "order")
		require.NoError(t, err)
		require.Equal(t, "0\n1\n2\n", string(b))
	})
}

// TestC31NothingKeptOverCommand: the transport keeps nothing in the sandbox that a command could delete.
func TestC31NothingKeptOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		tmp := t.TempDir()
		run(t, tr, transport.Command{Script: "rm -rf " + tmp + "/* " + tmp + "; chmod 0 .", Env: []string{"TMPDIR=" + tmp}})
		prints(t, tr, "cd / && echo next; chmod 755 \"$OLDPWD\"", "next\n")
	})
}

func TestC32BusyLoopOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		res, err := tr.Exec(t.Context(), transport.Command{Script: "printf start; while :; do :; done", Timeout: 300 * time.Millisecond})
		require.EqualError(t, err, "timeout:0.3")
		require.Equal(t, "start", string(res.Stdout))
		prints(t, tr, "echo next", "next\n")
	})
}

func TestC33NoStdinOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		prints(t, tr, "cat; wc -c; read -r x; echo $?", "0\n1\n")
		prints(t, tr, "sh; echo end", "end\n")
	})
}

func TestC34LargeStdinOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		input := make([]byte, 50<<20)
		res := run(t, tr, transport.Command{Script: "wc -c", Stdin: bytes.NewReader(input)})
		require.Equal(t, "52428800", strings.TrimSpace(string(res.Stdout)))
		res = run(t, tr, transport.Command{Script: "head -c 10 | wc -c", Stdin: bytes.NewReader(input)})
		require.Equal(t, "10", strings.TrimSpace(string(res.Stdout)))
		exits(t, res, 0)
		require.Empty(t, res.Stderr)
	})
}

// opened is an input that ends when it is told to.
type opened struct{ end chan struct{} }

func (o opened) Read([]byte) (int, error) {
	<-o.end
	return 0, fmt.Errorf("the end: %w", context.Canceled)
}

func TestC35EndOfStdinOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		in := opened{make(chan struct{})}
		started := &signalled{first: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			_, err := tr.Exec(t.Context(), transport.Command{Script: "echo up; cat; echo end", Stdin: in, Stdout: started})
			ended <- err
		}()
		<-started.first
		select {
		case err := <-ended:
			require.Fail(t, "it did not wait for its input", "%v", err)
		default:
		}
		close(in.end)
		require.NoError(t, <-ended)
		require.Equal(t, "up\nend\n", started.String())
	})
}

// signalled says when the first output came.
type signalled struct {
	bytes.Buffer

	once  sync.Once
	first chan struct{}
}

func (s *signalled) Write(b []byte) (int, error) {
	defer s.once.Do(func() { close(s.first) })
	return s.Buffer.Write(b)
}

func TestC36LargeTextOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		text := "x='" + strings.Repeat("0123456789abcdef", 4<<16) + "'\necho ${#x}"
		require.Greater(t, len(text), 4<<20)
		prints(t, tr, text, fmt.Sprintf("%d\n", 4<<20))
		var env []string
		for i := range 200 {
			env = append(env, fmt.Sprintf("SANDBUS_V%d=%s", i, strings.Repeat("v", 100)))
		}
		res := run(t, tr, transport.Command{Script: "env | grep -c ^SANDBUS_V; echo $SANDBUS_V199", Env: env})
		require.Equal(t, "200\n"+strings.Repeat("v", 100)+"\n", string(res.Stdout))
		res = run(t, tr, transport.Command{Script: "/bin/echo '" + strings.Repeat("a", 131072) + "' | wc -c"})
		require.NotEmpty(t, res.Stderr, "an argument that the kernel does not take")
		prints(t, tr, "echo next", "next\n")
	})
}

func TestC38NoTerminalOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		res := run(t, tr, transport.Command{Script: "read x </dev/tty"})
		require.NotNil(t, res.ExitCode)
		require.NotZero(t, *res.ExitCode)
	})
}

func TestC39BytesOverCommand(t *testing.T) {
	var data []byte
	for range 40 {
		for i := range 256 {
			data = append(data, byte(i))
		}
	}
	data = append(data, "\x00\x00\r10%\r20%\r\n\n\n"...)
	data = append(data, bytes.Repeat([]byte("one line "), 10<<20/9)...)
	each(t, func(t *testing.T, tr transport.Transport) {
		require.NoError(t, tr.Files().WriteFile(t.Context(), "data", data, 0o644))
		res := run(t, tr, transport.Command{Script: "cat data", OutputLimit: 32 << 20})
		require.Equal(t, sha256.Sum256(data), sha256.Sum256(res.Stdout), "%d bytes of %d", len(res.Stdout), len(data))
		got, err := tr.Files().ReadFile(t.Context(), "data")
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256(data), sha256.Sum256(got))
	})
}

func TestC40RunesOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		var out bytes.Buffer
		run(t, tr, transport.Command{Script: `printf '\346'; sleep 0.05; printf '\227'; sleep 0.05; printf '\245'`, Stdout: &out})
		require.Equal(t, "日", out.String())
	})
}

func TestC41LimitOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		res := run(t, tr, transport.Command{Script: "echo $$ >pid; exec head -c 104857600 /dev/zero"})
		require.True(t, res.Truncated)
		require.Nil(t, res.ExitCode)
		require.Len(t, res.Stdout, 8<<20+len(transport.TruncatedMarker))
		prints(t, tr, "case $(cat /proc/$(cat pid)/stat 2>/dev/null) in ''|*') Z'*|*') X'*) echo dead ;; esac", "dead\n")
	})
}

func TestC42AtTheLimitOverCommand(t *testing.T) {
	each(t, func(t *testing.T, tr transport.Transport) {
		res := run(t, tr, transport.Command{Script: "head -c 8388608 /dev/zero"})
		require.Len(t, res.Stdout, 8<<20)
		require.False(t, res.Truncated)
		exits(t, res, 0)
		res = run(t, tr, transport.Command{Script: "head -c 8388609 /dev/zero"})
		require.True(t, res.Truncated)
		require.Nil(t, res.ExitCode)
		require.True(t, bytes.HasSuffix(res.Stdout, []byte(transport.TruncatedMarker)))
	})
}
