package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// refFile is the file of a ref that says which one it is.
const refFile = "REF"

// git runs git without the user's settings.
func git(dir string, stdin []byte, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), indexTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, out)
	}
	return nil
}

// makeOrigin makes a repository in which each ref has a history of its own, and a file that says its name.
func (w *Workload) makeOrigin(origin string) error {
	if err := git(".", nil, "init", "-q", "--bare", origin); err != nil {
		return err
	}
	var b bytes.Buffer
	for _, p := range w.Ops {
		for ref := range p.Refs {
			name := refName(ref)
			fmt.Fprintf(&b, "commit refs/heads/%s\ncommitter load <load@example.invalid> %d +0000\ndata 4\nref\n\n", name, 1_700_000_000+ref)
			files := map[string][]byte{refFile: []byte(name + "\n")}
			for i := range 20 {
				files[fmt.Sprintf("src/file%02d.go", i)] = Text(3600, ref*100+i)
			}
			for path, text := range files {
				fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", path, len(text), text)
			}
		}
	}
	return git(origin, b.Bytes(), "fast-import", "--quiet")
}

func refName(n int) string { return fmt.Sprintf("work-%03d", n) }

func clone(origin, dir string) error {
	return errors.Join(
		git(".", nil, "init", "-q", dir),
		git(dir, nil, "remote", "add", "origin", origin),
		git(dir, nil, "config", "gc.auto", "0"), // it would run beside the measured fetches
		git(dir, nil, "config", "maintenance.auto", "false"),
	)
}

// converge fetches a ref into a name of the session's own, makes a worktree of it, reads which ref it is, and takes both
// away again. All sessions of a sandbox share the clone. What changes its records is done under a lock: a fetch of git
// fails when it looks at a worktree that another process has only half made ("bad object worktrees/.../HEAD").
func (g *Generator) converge(p Part) Op {
	ref := refName(g.rng.IntN(p.Refs))
	mine := fmt.Sprintf("refs/sessions/%d", g.session)
	place := Quote(filepath.Join(g.own, "worktree"))
	lock := Quote(filepath.Join(g.dir, "clone", ".git", "converge.lock"))
	script := fmt.Sprintf("set -e; cd %s; "+
		"( flock 9; git fetch -q --no-tags --no-write-fetch-head origin +refs/heads/%s:%s; git worktree add -q -f --detach %s %s ) 9>%s; "+
		"cat %s/%s; "+
		"( flock 9; git worktree remove --force %s; git update-ref -d %s ) 9>%s",
		Quote(filepath.Join(g.dir, "clone")), ref, mine, place, mine, lock, place, refFile, place, mine, lock)
	return Op{Path: place, Script: script, Answer: len(ref) + 1, want: want{exact: true, text: ref + "\n"}}
}
