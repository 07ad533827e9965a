package shell

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// sess is an open session and what tests ask of it.
type sess struct {
	t   *testing.T
	all *Sessions
	key SessionKey
	dir string
}

func newSession(t *testing.T, path string, change func(*SessionsConfig)) *sess {
	t.Helper()
	cfg := SessionsConfig{Config: Config{Path: path, Dir: t.TempDir(), Env: os.Environ()}}
	if change != nil {
		change(&cfg)
	}
	all, err := NewSessions(cfg)
	require.NoError(t, err)
	t.Cleanup(all.CloseAll)
	key := SessionKey{"me", "s"}
	created, err := all.Open(key, "")
	require.NoError(t, err)
	require.True(t, created)
	return &sess{t, all, key, cfg.Dir}
}

// eachSession runs a test on a session of every shell of this machine, with both kinds of pipes.
func eachSession(t *testing.T, test func(t *testing.T, s *sess)) {
	t.Helper()
	for name, path := range testenv.Shells(t) {
		t.Run(name, func(t *testing.T) { test(t, newSession(t, path, nil)) })
		t.Run(name+" with FIFOs", func(t *testing.T) {
			test(t, newSession(t, path, func(c *SessionsConfig) { c.forceFIFO, c.Temp = true, t.TempDir() }))
		})
	}
}

func (s *sess) do(c Command) *Result {
	s.t.Helper()
	if c.Limit == 0 {
		c.Limit = limit
	}
	turn, err := s.all.Queue(s.key)
	require.NoError(s.t, err)
	res, err := turn.Run(s.t.Context(), c)
	require.NoError(s.t, err)
	return res
}

// ok runs a script that must exit with 0 on the shell that there is, and returns its output.
func (s *sess) ok(script string) string {
	s.t.Helper()
	res := s.do(Command{Script: script})
	s.exited(res, 0)
	require.False(s.t, res.Lost, script)
	return string(res.GetStdout())
}

func (s *sess) exited(res *Result, code int) {
	s.t.Helper()
	require.Equal(s.t, exited, res.GetOutcome().GetKind(), "%v", res)
	require.EqualValues(s.t, code, res.GetOutcome().GetCode(), "%v", res)
}

func TestSessionKeepsItsState(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		require.True(t, s.do(Command{Script: "A=1; export B=2; f() { echo \"f $1\"; }; cd /; set -f; umask 027; alias ll=pwd"}).Fresh)
		res := s.do(Command{Script: `echo "$A $B"; f x; pwd; echo *; umask; sh -c 'echo $B'`})
		require.Equal(t, "1 2\nf x\n/\n*\n0027\n2\n", string(res.GetStdout()))
		require.False(t, res.Fresh)
		require.Equal(t, "/", res.Dir)
		s.ok("sleep 300 & P=$!")
		require.Equal(t, "running\n", s.ok("kill -0 $P && echo running; kill $P; wait $P 2>/dev/null; :"), "its background jobs are its own")
		require.Equal(t, "0 1 2 3\n", s.ok("echo $(/bin/ls /proc/self/fd)"), "3 is the directory that ls reads")
	})
}

func TestSessionEnvironmentIsForOneCommand(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		s.ok("A=old; readonly R=1")
		res := s.do(Command{Script: `echo "$A|$N"; sh -c 'echo "$A|$N"'; KEPT=1`, Env: []string{"A=it's\n*", "N=\xff"}})
		s.exited(res, 0)
		require.Equal(t, "it's\n*|\xff\nit's\n*|\xff\n", string(res.GetStdout()))
		require.Equal(t, "old||1\n[]\n", s.ok(`echo "$A|$N|$KEPT"; sh -c 'echo "[$A$N]"'`))
		res = s.do(Command{Script: "echo ran", Env: []string{"R=2"}})
		require.NotEmpty(t, res.GetStderr(), "a readonly variable is said")
		require.False(t, res.Lost)
		var many []string
		for i := range 200 {
			many = append(many, fmt.Sprintf("V%d=%s", i, strings.Repeat("v", 1000)))
		}
		res = s.do(Command{Script: `echo ${#V0} ${#V199}`, Env: many})
		require.Equal(t, "1000 1000\n", string(res.GetStdout()))
		require.Equal(t, "0\n", s.ok("echo ${#V199}"))
	})
}

func TestSessionDirectoryOfOneCommand(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "it's/b"), 0o700))
		d := filepath.Join(s.dir, "it's")
		res := s.do(Command{Script: "pwd", Dir: d})
		require.Equal(t, d+"\n", string(res.GetStdout()))
		require.Equal(t, s.dir, res.Dir)
		require.Equal(t, s.dir+"\n", s.ok("pwd"), "it is back")
		res = s.do(Command{Script: "cd b", Dir: d})
		require.Equal(t, d+"/b", res.Dir, "a command's own cd stays")
		res = s.do(Command{Script: "pwd", Dir: filepath.Join(s.dir, "nowhere")})
		require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, res.GetOutcome().GetKind())
		require.Equal(t, "cwd", res.GetOutcome().GetStage())
		require.Contains(t, res.GetOutcome().GetMessage(), "nowhere")
		require.False(t, res.Lost)
		require.Equal(t, d+"/b\n", s.ok("pwd"))
	})
}

// TestC20SetEInASession: there set -e ends the shell, as it would end bash -c, and the result says so.
func TestC20SetEInASession(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, sh []string) {
		script := "set -euo pipefail; false; echo no"
		if !strings.HasSuffix(sh[0], "bash") {
			script = "set -eu; false; echo no"
		}
		for range 3 {
			res := run1(t, p, script)
			require.EqualValues(t, 1, res.GetOutcome().GetCode())
			require.Empty(t, res.GetStdout())
		}
		for range 3 {
			require.Equal(t, "on\n", string(run1(t, p, "false; echo ${undefined}on").GetStdout()))
		}
		s := newSession(t, p.cfg.Path, nil)
		res := s.do(Command{Script: script})
		s.exited(res, 1)
		require.True(t, res.Lost)
		require.Equal(t, "on\n", s.ok("false; echo ${undefined}on"))
		s.ok("set -e; echo kept")
		res = s.do(Command{Script: "false; echo no"})
		s.exited(res, 1)
		require.Empty(t, res.GetStdout())
		require.True(t, res.Lost)
	})
}

// TestC21ExitInASession has each way in which a command ends its session's shell.
func TestC21ExitInASession(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		require.NoError(t, os.Mkdir(filepath.Join(s.dir, "d"), 0o700))
		signalled := sandbusv1.OutcomeKind_OUTCOME_KIND_SIGNALLED
		for script, want := range map[string]*sandbusv1.Outcome{
			"cd d; echo a; exit 7":                                {Kind: exited, Code: 7},
			"cd d; echo a; exec sh -c 'exit 8'":                   {Kind: exited, Code: 8},
			"cd d; echo a; exit 137":                              {Kind: exited, Code: 137},
			"cd d; echo a; kill -9 $$":                            {Kind: signalled, Signal: "KILL"},
			"cd d; echo a; exit":                                  {Kind: exited, Code: 0},
			"cd d; echo a; sleep 5 & exit 9":                      {Kind: exited, Code: 9},
			"cd d; echo a; trap 'exit 11' EXIT; exit 10":          {Kind: exited, Code: 11},
			"cd d; echo a; exec sh -c 'sleep 0.1; kill -TERM $$'": {Kind: signalled, Signal: "TERM"},
		} {
			s.ok("V=1; cd " + s.dir)
			res := s.do(Command{Script: script})
			require.Equal(t, want.String(), res.GetOutcome().String(), script)
			require.Equal(t, "a\n", string(res.GetStdout()))
			require.True(t, res.Lost, script)
			res = s.do(Command{Script: "echo next $V; pwd"})
			require.Equal(t, "next\n"+s.dir+"\n", string(res.GetStdout()), "a new shell, in the directory that was known last")
			require.True(t, res.Fresh)
		}
	})
}

var asC22 = []string{
	"cat <<'X'\n$HOME `x`\nX", "echo a # comment", "echo a\\", "echo 'unclosed", "if", "echo \"$(echo", "cat <<X\nunended", "for", ")", "}", "{ echo x",
	"\n\n\n", "#", "echo a;;", "fi", "echo x &&", "break", "continue 3", "echo x\n# comment",
}

// TestC22Verbatim compares with a fresh shell what a session and the fast tier make of awkward text.
func TestC22Verbatim(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, sh []string) {
		s := newSession(t, p.cfg.Path, nil)
		s.ok("V=1")
		for _, script := range asC22 {
			code, stdout := fresh(t, sh, s.dir, script)
			res := run1(t, p, script)
			require.EqualValues(t, code, res.GetOutcome().GetCode(), "%q: %s", script, res.GetStderr())
			require.Equal(t, stdout, string(res.GetStdout()), script)
			in := s.do(Command{Script: script})
			s.exited(in, code)
			require.Equal(t, stdout, string(in.GetStdout()), script)
			require.False(t, in.Lost, script)
		}
		require.Equal(t, "1\n", s.ok("echo $V"), "the shell lives")
	})
}

func TestC23NoExpansionOfHistory(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		s := newSession(t, p.cfg.Path, nil)
		script := `echo 'it!s'; echo "a!b"; printf '%s' '$HOME'`
		want := "it!s\na!b\n$HOME"
		require.Equal(t, want, string(run1(t, p, script).GetStdout()))
		require.Equal(t, want, s.ok(script))
	})
}

// sabotage is what a command may do to the shell that it runs in.
var sabotage = []string{
	"PS1=x; PROMPT_COMMAND='echo p'; PS2=y; PS4=z", "exec 3>&-", "exec 3<&- 4>&- 5>&-", "exec 10>&- 11>&- 12>&- 13>&-", "exec 0<&- 1>&- 2>&-",
	"exec >/dev/null 2>&1", "trap 'echo t >/dev/null' EXIT", "trap : INT TERM HUP", "trap '' INT TERM URG", "trap - URG", "unset PATH", "IFS=x", "IFS=",
	"alias printf=false echo=false eval=false command=false builtin=false unset=false trap=false cd=false", "set -f", "set -C", "set -a",
	"printf() { return 9; }; echo() { return 9; }; read() { return 9; }; cd() { return 9; }", "command() { return 9; }", "set -- a b c", "set -u", "cd /tmp",
	"unset HOME PWD OLDPWD IFS", "PATH=/nowhere", "unset __sandbus_s __sandbus_in __sandbus_script", "umask 777", "ulimit -c 0", "set -x", "set -v", "set -n",
	"readonly A=1 IFS", "readonly __sandbus_script=5", "readonly PWD", "shift 99", ". /nosuchfile", "set -e",
}

var sabotageOfBash = []string{
	"trap 'echo d >/dev/null' DEBUG; trap 'echo e >/dev/null' ERR; trap 'echo r >/dev/null' RETURN", "shopt -s expand_aliases; alias printf=false builtin=false",
	"eval() { return 9; }; unset() { return 9; }; trap() { return 9; }", "builtin() { return 9; }", "builtin() { return 0; }", "set -o posix", "set -eE; set -T",
	"enable -n printf", "shopt -s nullglob failglob dotglob extdebug", "LC_ALL=xx", "exec {x}>&-; true", "set -o pipefail", "BASH_ENV=/x; LINENO=77; RANDOM=1; SECONDS=1",
	"declare -i __sandbus_s", "declare -n ref=__sandbus_in; ref=1",
}

// TestC24Sabotage has commands change what ours is built of. Whatever they do, their status is true, and a session
// either goes on as they left it or is said to be lost.
func TestC24Sabotage(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, sh []string) {
		scripts := sabotage
		if strings.HasSuffix(sh[0], "bash") {
			scripts = append(slices.Clone(sabotage), sabotageOfBash...)
		}
		for _, script := range scripts {
			t.Run(script, func(t *testing.T) {
				code, _ := fresh(t, sh, p.cfg.Dir, script)
				require.EqualValues(t, code, run1(t, p, script).GetOutcome().GetCode())
				require.Equal(t, "ok\n", string(run1(t, p, "echo ok").GetStdout()), "the fast tier is unaffected")
				s := newSession(t, p.cfg.Path, nil)
				s.t = t
				s.ok("V=1")
				res := s.do(Command{Script: script})
				if res.GetOutcome().GetKind() == sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT && strings.HasSuffix(sh[0], "busybox") {
					require.Contains(t, script, "exec 10>&-", "it complains without end about what was closed")
				} else {
					s.exited(res, code)
				}
				for _, n := range []int{0, 2 * inlineText} { // both ways of a text
					for _, dir := range []string{"", "/"} {
						lost := res.Lost
						res = s.do(Command{Script: "echo out$V; (exit 5) #" + strings.Repeat("x", n), Env: []string{"E=1"}, Dir: dir})
						s.exited(res, 5)
						require.False(t, lost && !res.Fresh, "a shell that was lost is not used again")
						switch {
						case res.Fresh:
							require.Equal(t, "out\n", string(res.GetStdout()), "%s", res.GetStderr())
						case !strings.Contains(script, "echo() ") && !strings.Contains(script, "echo=false"):
							require.Equal(t, "out1\n", string(res.GetStdout()), "%s", res.GetStderr())
						}
						if res.Fresh {
							return
						}
					}
				}
			})
		}
	})
}

func TestC25BytesOfAnyKind(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		s := newSession(t, p.cfg.Path, nil)
		data := make([]byte, 1<<20)
		_, _ = rand.Read(data)
		for i, mark := range []string{"< 0 AAAAAAAAAAAAA\n", "> AAAAAAAAAAAAA\n", "0 AAAAAAAAAAAAA\n", lastWord} {
			copy(data[i*1000:], mark)
		}
		require.NoError(t, os.WriteFile(filepath.Join(p.cfg.Dir, "data"), data, 0o600))
		script := "cat " + filepath.Join(p.cfg.Dir, "data")
		require.Equal(t, sha256.Sum256(data), sha256.Sum256(run1(t, p, script).GetStdout()))
		require.Equal(t, sha256.Sum256(data), sha256.Sum256([]byte(s.ok(script))))
		res := s.do(Command{Script: "cat; echo e >&2", Stdin: data, HasStdin: true})
		require.Equal(t, sha256.Sum256(data), sha256.Sum256(res.GetStdout()))
		require.Equal(t, "e\n", string(res.GetStderr()))
	})
}

func TestC26NoPipefail(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		res := run1(t, p, "yes | head -1")
		require.Equal(t, exited, res.GetOutcome().GetKind())
		require.Zero(t, res.GetOutcome().GetCode())
		require.Equal(t, "y\n", newSession(t, p.cfg.Path, nil).ok("yes | head -1"))
	})
}

func TestC27DirectoryThatIsGone(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		s.ok("V=1; mkdir d; cd d; rm -rf ../d")
		res := s.do(Command{Script: "pwd; echo $V"})
		s.exited(res, 0)
		require.Equal(t, "/\n1\n", string(res.GetStdout()))
		require.Equal(t, filepath.Join(s.dir, "d"), res.Gone)
		require.Equal(t, "/", res.Dir)
		require.False(t, res.Fresh)
		require.Empty(t, s.do(Command{Script: ":"}).Gone, "it is said once")
		s.ok("cd " + s.dir + "; mkdir 'x (deleted)'; cd 'x (deleted)'")
		require.Empty(t, s.do(Command{Script: ":"}).Gone, "a name is no proof")
		s.ok("cd .. && mkdir e && cd e")
		res = s.do(Command{Script: "rm -rf ../e; exit 3"})
		require.True(t, res.Lost)
		res = s.do(Command{Script: "pwd"})
		require.Equal(t, "/\n", string(res.GetStdout()), "nor can a new shell go there")
		require.Equal(t, filepath.Join(s.dir, "e"), res.Gone)
	})
}

func TestC28OneFastExecDoesNotReachTheNext(t *testing.T) {
	eachShell(t, func(t *testing.T, p *Pool, _ []string) {
		for range 3 {
			run1(t, p, "cd /; export A=1")
			require.Equal(t, p.cfg.Dir+"\n\n", string(run1(t, p, "pwd; echo $A").GetStdout()))
		}
	})
}

func TestC30FirstInFirstOut(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		var wg sync.WaitGroup
		for i := range 20 {
			turn, err := s.all.Queue(s.key) // in this order
			require.NoError(t, err)
			wg.Go(func() {
				res, err := turn.Run(t.Context(), Command{Script: fmt.Sprintf("N=${N}%c; sleep 0.01; echo $N; echo e%d >&2", 'a'+i, i), Limit: limit})
				if err != nil || string(res.GetStdout()) != "abcdefghijklmnopqrst"[:i+1]+"\n" || string(res.GetStderr()) != fmt.Sprintf("e%d\n", i) {
					t.Error(i, res, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestSessionQueueIsBounded(t *testing.T) {
	s := newSession(t, testenv.Tool(t, "bash"), func(c *SessionsConfig) { c.Queue = 2 })
	first, err := s.all.Queue(s.key)
	require.NoError(t, err)
	second, err := s.all.Queue(s.key)
	require.NoError(t, err)
	third, err := s.all.Queue(s.key)
	require.NoError(t, err)
	_, err = s.all.Queue(s.key)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "2 wait")
	require.Equal(t, []SessionInfo{{Name: "s", Dir: s.dir, Busy: true, Queued: 2}}, withoutTimes(s.all.List("me")))
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err = second.Run(ctx, Command{Script: "echo no >>order", Limit: limit})
	require.ErrorIs(t, err, why, "an abort in the queue prevents the start")
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := third.Run(t.Context(), Command{Script: "echo 3 >>order", Limit: limit}); err != nil {
			t.Error(err)
		}
	})
	_, err = first.Run(t.Context(), Command{Script: "echo 1 >>order", Limit: limit})
	require.NoError(t, err)
	wg.Wait()
	order, err := os.ReadFile(filepath.Join(s.dir, "order"))
	require.NoError(t, err)
	require.Equal(t, "1\n3\n", string(order))
}

func withoutTimes(list []SessionInfo) []SessionInfo {
	for i := range list {
		list[i].Age, list[i].Idle = 0, 0
	}
	return list
}

func TestSessionsAreBoundedAndOwned(t *testing.T) {
	s := newSession(t, testenv.Tool(t, "bash"), func(c *SessionsConfig) { c.Bound = 2 })
	created, err := s.all.Open(s.key, "")
	require.NoError(t, err)
	require.False(t, created, "open already")
	_, err = s.all.Queue(SessionKey{"other", "s"})
	require.ErrorIs(t, err, ErrNoSession, "a session is its owner's")
	require.Empty(t, s.all.List("other"))
	_, err = s.all.Open(SessionKey{"other", "s"}, s.dir+"/nowhere")
	require.ErrorContains(t, err, "nowhere")
	_, err = s.all.Open(SessionKey{"other", "s"}, "")
	require.NoError(t, err)
	_, err = s.all.Open(SessionKey{"me", "t"}, "")
	require.ErrorIs(t, err, ErrSessions)
	require.ErrorContains(t, err, "the bound is 2")
	require.NoError(t, s.all.Close(SessionKey{"other", "s"}))
	require.ErrorIs(t, s.all.Close(SessionKey{"other", "s"}), ErrNoSession)
	_, err = s.all.Open(SessionKey{"me", "t"}, "")
	require.NoError(t, err)
	require.Len(t, s.all.List("me"), 2)
	s.all.CloseAll()
	s.all.CloseAll()
	_, err = s.all.Open(SessionKey{"me", "u"}, "")
	require.ErrorIs(t, err, ErrClosed)
}

func TestCloseEndsWhatASessionHas(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		s.ok("trap 'echo bye >bye' EXIT; sleep 300 & echo $! >pid")
		var wg sync.WaitGroup
		turn, err := s.all.Queue(s.key)
		require.NoError(t, err)
		wg.Go(func() {
			res, err := turn.Run(t.Context(), Command{Script: "echo >running; sleep 300", Limit: limit})
			if err != nil || res.GetOutcome().GetKind() != sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED {
				t.Error(res, err)
			}
		})
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(s.dir, "running"))
			return err == nil
		}, 10*time.Second, 5*time.Millisecond)
		next, err := s.all.Queue(s.key)
		require.NoError(t, err)
		require.NoError(t, s.all.Close(s.key))
		_, err = next.Run(t.Context(), Command{Script: ":", Limit: limit})
		require.ErrorIs(t, err, ErrNoSession)
		wg.Wait()
		pid, err := os.ReadFile(filepath.Join(s.dir, "pid"))
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		require.NoError(t, err)
		require.False(t, proc.Find(n).Alive(), "a zombie may wait for its new parent")
		require.FileExists(t, filepath.Join(s.dir, "bye"), "the EXIT trap runs")
	})
}

func TestSessionEndsForWantOfUse(t *testing.T) {
	s := newSession(t, testenv.Tool(t, "bash"), func(c *SessionsConfig) { c.Idle = 300 * time.Millisecond })
	require.Equal(t, "2\n", s.ok("sleep 0.6; echo 2"), "a command is use")
	require.Eventually(t, func() bool { return len(s.all.List("me")) == 0 }, 10*time.Second, 10*time.Millisecond)
	_, err := s.all.Queue(s.key)
	require.ErrorIs(t, err, ErrNoSession)
	require.ErrorContains(t, err, "300ms")
}

// TestC32TimeoutSparesTheSession has loops that run in the shell itself.
func TestC32TimeoutSparesTheSession(t *testing.T) {
	scripts := []string{
		"while :; do :; done", "f() { g; }; g() { while :; do :; done; }; while :; do f; done", "sleep 300", "sleep 300; while :; do :; done; echo no >>reached",
		"while :; do sleep 0.01; done", "while :; do\n:\ndone\necho no >>reached\necho no >>reached", "x=$(sleep 300; sleep 300); sleep 300", "yes >/dev/null | cat",
		"trap '' INT TERM; sleep 300; sleep 300", "(while :; do :; done)", "eval 'while :; do eval :; done'", "sh -c 'sleep 300 & sleep 300'; wait; sleep 300",
	}
	eachSession(t, func(t *testing.T, s *sess) {
		s.ok("V=kept; W() { echo f; }; sleep 300 & B=$!")
		for _, script := range scripts {
			begin := time.Now()
			res := s.do(Command{Script: "printf start; " + script, Timeout: 200 * time.Millisecond})
			require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, res.GetOutcome().GetKind(), script)
			require.Equal(t, "start", string(res.GetStdout()))
			require.False(t, res.Lost, script)
			require.Less(t, time.Since(begin), 3*time.Second)
			require.Equal(t, "kept f\n", s.ok("echo $V $(W)"), script)
		}
		require.NoFileExists(t, filepath.Join(s.dir, "reached"))
		require.Equal(t, "there\n", s.ok("kill -0 $B && echo there; kill $B"), "what an earlier command started is not the timed out one's")
	})
}

func TestShellThatDoesNotComeBackIsLost(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		s.ok("V=1")
		for _, script := range []string{"trap '' URG; while :; do :; done", "exec sleep 300", "kill -STOP $$"} {
			res := s.do(Command{Script: "printf start; " + script, Timeout: 200 * time.Millisecond})
			require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_TIMED_OUT, res.GetOutcome().GetKind(), script)
			require.True(t, res.Lost, script)
			require.Equal(t, "start", string(res.GetStdout()))
			res = s.do(Command{Script: "echo [$V]"})
			require.Equal(t, "[]\n", string(res.GetStdout()))
			require.True(t, res.Fresh)
		}
	})
}

func TestSessionOutputLimit(t *testing.T) {
	eachSession(t, func(t *testing.T, s *sess) {
		s.ok("V=1")
		res := s.do(Command{Script: "yes", Limit: 1000})
		require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT, res.GetOutcome().GetKind())
		require.Len(t, res.GetStdout(), 1000)
		require.Equal(t, "1\n", s.ok("echo $V"))
	})
}

func FuzzParseSaid(f *testing.F) {
	for _, seed := range []string{"> abc\n", "< 0 abc\n", "< 256 abc\n", "<", "\n", lastWord} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		m, ok := parseSaid(line)
		if ok && (m.nonce == "" || m.code < 0 || m.code > 255 || (!m.ended && m.code != 0)) {
			t.Fatalf("%q: %+v", line, m)
		}
	})
}

// fresh is what a shell of its own makes of a script.
func fresh(t *testing.T, sh []string, dir, script string) (code int, stdout string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), sh[0], append(sh[1:len(sh):len(sh)], "-c", script)...)
	cmd.Dir = dir
	out, _ := cmd.Output() // the code is in ProcessState
	return cmd.ProcessState.ExitCode(), string(out)
}
