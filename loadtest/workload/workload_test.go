package workload

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

// local runs shell text on this machine.
func local(ctx context.Context, script string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}

func furnished(t *testing.T, w *Workload, sessions int) (dir string, shared *Shared) {
	t.Helper()
	shared, err := w.Prepare(t.TempDir(), 7)
	require.NoError(t, err)
	dir = t.TempDir()
	require.NoError(t, w.Furnish(dir, shared, sessions))
	return dir, shared
}

// TestShippedWorkloads does operations of every workload that the rig has, by a shell on this machine: their answers must
// be what the operations want.
func TestShippedWorkloads(t *testing.T) {
	for _, name := range Shipped() {
		t.Run(name, func(t *testing.T) {
			w, err := Load(name)
			require.NoError(t, err)
			require.Equal(t, name, w.Name)
			require.NotEmpty(t, w.About)
			if w.Tree == TreeGit {
				testenv.Tool(t, "git")
				testenv.Tool(t, "flock")
			}
			dir, shared := furnished(t, w, 1)
			g := w.Generator(shared, dir, 0, 7)
			for _, o := range g.First() {
				require.NoError(t, Shell(local).Do(t.Context(), &o))
			}
			for range 12 {
				o := g.Next()
				require.NoError(t, Shell(local).Do(t.Context(), &o), "%s %s", o.Name, o.Path)
				require.Positive(t, o.Answer, o.Name)
			}
		})
	}
}

func TestSeedMakesTheOperations(t *testing.T) {
	w, err := Load("agent")
	require.NoError(t, err)
	ops := func(session int, seed uint64) (list []string) {
		shared, err := w.Prepare(t.TempDir(), 7)
		require.NoError(t, err)
		g := w.Generator(shared, "/box", session, seed)
		d := g.Duty()
		require.GreaterOrEqual(t, d, 0.02)
		require.LessOrEqual(t, d, 0.08)
		for range 50 {
			o := g.Next()
			list = append(list, fmt.Sprintf("%v %s %s %s %d", d, o.Name, o.Path, o.Pattern, len(o.Data)))
		}
		return list
	}
	require.Equal(t, ops(3, 1), ops(3, 1))
	require.NotEqual(t, ops(3, 1), ops(4, 1))
	require.NotEqual(t, ops(3, 1), ops(3, 2))
}

func TestWrongAnswersAreFailures(t *testing.T) {
	w, err := Load("fileops")
	require.NoError(t, err)
	dir, shared := furnished(t, w, 1)
	require.NoError(t, os.WriteFile(sized(dir, 3600), []byte("short"), 0o600))
	require.NoError(t, os.RemoveAll(listed(dir, 40)))
	require.NoError(t, os.Mkdir(listed(dir, 40), 0o700))
	g := w.Generator(shared, dir, 0, 7)
	seen := map[Kind]bool{}
	for range 200 {
		o := g.Next()
		if o.Kind != Read && o.Kind != Ls {
			continue
		}
		seen[o.Kind] = true
		err := Shell(local).Do(t.Context(), &o)
		var wrong *WrongError
		require.ErrorAs(t, err, &wrong, o.Name)
		if len(seen) == 2 {
			return
		}
	}
	t.Fatal("no read or ls came")
}

// TestConvergeSeesItsOwnRef has several sessions converge at once on one clone.
func TestConvergeSeesItsOwnRef(t *testing.T) {
	testenv.Tool(t, "git")
	testenv.Tool(t, "flock")
	w, err := Load("converge")
	require.NoError(t, err)
	const sessions = 4
	dir, shared := furnished(t, w, sessions)
	errs := make([]error, sessions)
	var wg sync.WaitGroup
	for i := range sessions {
		g := w.Generator(shared, dir, i, 7)
		wg.Go(func() {
			for range 5 {
				o := g.Next()
				if errs[i] = Shell(local).Do(t.Context(), &o); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	o := w.Generator(shared, dir, 0, 7).Next()
	var wrong *WrongError
	require.ErrorAs(t, o.Check([]byte("work-999\n")), &wrong, "another session's ref")
}

func TestBadWorkloads(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{`, "unexpected EOF"},
		{`{"name":"x","ops":[{"kind":"read","weight":1}],"colour":1}`, "colour"},
		{`{"ops":[{"kind":"read","weight":1}]}`, "name: is empty"},
		{`{"name":"x"}`, "ops: is empty"},
		{`{"name":"x","tree":"oak","ops":[{"kind":"read","weight":1}]}`, `tree "oak"`},
		{`{"name":"x","ops":[{"kind":"dance","weight":1}]}`, `ops[0]: kind "dance"`},
		{`{"name":"x","ops":[{"kind":"read"}]}`, "weight 0"},
		{`{"name":"x","ops":[{"kind":"read","weight":1,"bytes":-1}]}`, "bytes -1"},
		{`{"name":"x","ops":[{"kind":"exec","weight":1}]}`, "argv"},
		{`{"name":"x","ops":[{"kind":"stream","weight":1}]}`, "bytes 0"},
		{`{"name":"x","ops":[{"kind":"converge","weight":1,"refs":2}]}`, "converge goes with git"},
		{`{"name":"x","tree":"git","ops":[{"kind":"converge","weight":1}]}`, "refs 0"},
		{`{"name":"x","ops":[{"kind":"grep","weight":1}]}`, "want repository"},
		{`{"name":"x","ops":[{"kind":"find","weight":1}]}`, "entries 0"},
		{`{"name":"x","duty":{"min":0,"max":1},"ops":[{"kind":"read","weight":1}]}`, "duty 0 to 1"},
		{`{"name":"x","think_ms":1,"duty":{"min":0.1,"max":1},"ops":[{"kind":"read","weight":1}]}`, "want one of them"},
		{`{"name":"x","think_ms":1,"burst_ms":5,"ops":[{"kind":"read","weight":1}]}`, "burst_ms 5"},
	} {
		_, err := Parse([]byte(c.text))
		require.ErrorContains(t, err, c.want, c.text)
	}
	_, err := Load("nothing")
	require.ErrorContains(t, err, "want agent, burst")
	_, err = Load(filepath.Join(t.TempDir(), "mix.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestQuote(t *testing.T) {
	for _, s := range []string{"", "a b", "it's", "$HOME", "`x`", "a\nb", "-n", `\`} {
		out, err := local(t.Context(), "printf %s "+Quote(s))
		require.NoError(t, err)
		require.Equal(t, s, string(out))
	}
}
