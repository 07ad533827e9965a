// Package workload is what sessions do: mixes of operations, kept in files, and the files that the operations are about.
//
// A session's operations follow from the workload, the seed and the session's number alone, so that every arm does the
// same ones. Each operation knows what a right answer looks like: an answer that is not it is a failure.
package workload

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed mixes/*.json
var mixes embed.FS

// Kind is what an operation does.
type Kind string

// The kinds.
const (
	Read     Kind = "read"     // the whole of a file
	Write    Kind = "write"    // a file of the session's own, anew
	Edit     Kind = "edit"     // one replacement in a file of the session's own
	Ls       Kind = "ls"       // the names of a directory
	Stat     Kind = "stat"     // one file
	Find     Kind = "find"     // names below a directory by pattern
	Grep     Kind = "grep"     // lines below a directory by fixed text
	Exec     Kind = "exec"     // a command whose output is collected
	Stream   Kind = "stream"   // a command with long output
	Converge Kind = "converge" // git fetch of a ref, and a worktree for it
)

var kinds = []Kind{Read, Write, Edit, Ls, Stat, Find, Grep, Exec, Stream, Converge}

// Trees that a workload can be about.
const (
	TreeFiles      = "files"      // made for the run, with the sizes that the workload says
	TreeRepository = "repository" // the Go standard library's source
	TreeGit        = "git"        // a repository with refs, and a clone of it for each sandbox
)

// Part is one kind of operation in a mix.
type Part struct {
	Kind   Kind     `json:"kind"`
	Name   string   `json:"name,omitempty"` // under which it is recorded; empty means the kind
	Weight int      `json:"weight"`
	Bytes  int      `json:"bytes,omitempty"`   // of the file, or of the output
	Files  int      `json:"entries,omitempty"` // in the directory
	Refs   int      `json:"refs,omitempty"`
	Argv   []string `json:"argv,omitempty"` // of an exec; {file} stands for a file of Bytes bytes
}

// Duty is which share of its time a session has an operation at its sandbox, drawn for each session.
type Duty struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// Workload is an operation mix with think time.
type Workload struct {
	Name    string `json:"name"`
	About   string `json:"about"`
	Tree    string `json:"tree,omitempty"` // empty means TreeFiles
	Ops     []Part `json:"ops"`
	ThinkMS int    `json:"think_ms,omitempty"` // mean pause between operations; zero means none
	Duty    *Duty  `json:"duty,omitempty"`     // instead of ThinkMS: pauses so long that this is the duty
	BurstMS int    `json:"burst_ms,omitempty"` // all sessions ask every so often; zero means that each goes on by itself
}

// Think is the mean pause between operations that the workload itself says.
func (w *Workload) Think() time.Duration { return time.Duration(w.ThinkMS) * time.Millisecond }

// Burst is the time between bursts; zero when there are none.
func (w *Workload) Burst() time.Duration { return time.Duration(w.BurstMS) * time.Millisecond }

// Shipped are the names of the workloads that the rig has.
func Shipped() []string {
	entries, err := mixes.ReadDir("mixes")
	if err != nil {
		panic(err) // it is in the binary
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	return names
}

// Load finds a workload: the name of a shipped one, or the path of a file (with "/" or ".json" in it). Errors: there is
// none; it is not a workload, naming the field.
func Load(name string) (*Workload, error) {
	var b []byte
	var err error
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".json") {
		b, err = os.ReadFile(name)
	} else if b, err = mixes.ReadFile("mixes/" + name + ".json"); err != nil {
		return nil, fmt.Errorf("workload %q: want %s, or the path of a file", name, strings.Join(Shipped(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	w, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", name, err)
	}
	return w, nil
}

// Parse reads a workload. Errors name the field, its value and what would be right.
func Parse(b []byte) (*Workload, error) {
	var w Workload
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return nil, err
	}
	if w.Name == "" {
		return nil, fmt.Errorf("name: is empty")
	}
	if w.Tree == "" {
		w.Tree = TreeFiles
	}
	if !slices.Contains([]string{TreeFiles, TreeRepository, TreeGit}, w.Tree) {
		return nil, fmt.Errorf("tree %q: want files, repository or git", w.Tree)
	}
	if w.ThinkMS < 0 || w.BurstMS < 0 {
		return nil, fmt.Errorf("think_ms %d, burst_ms %d: want 0 or more", w.ThinkMS, w.BurstMS)
	}
	if d := w.Duty; d != nil && (d.Min <= 0 || d.Max < d.Min || d.Max > 1) {
		return nil, fmt.Errorf("duty %g to %g: want 0 < min <= max <= 1", d.Min, d.Max)
	}
	if w.Duty != nil && w.ThinkMS > 0 {
		return nil, fmt.Errorf("think_ms %d and duty: want one of them", w.ThinkMS)
	}
	if w.BurstMS > 0 && (w.Duty != nil || w.ThinkMS > 0) {
		return nil, fmt.Errorf("burst_ms %d: sessions of a burst do not think, want neither duty nor think_ms", w.BurstMS)
	}
	if len(w.Ops) == 0 {
		return nil, fmt.Errorf("ops: is empty")
	}
	for i := range w.Ops {
		if err := w.Ops[i].check(w.Tree); err != nil {
			return nil, fmt.Errorf("ops[%d]: %w", i, err)
		}
	}
	return &w, nil
}

// maxBytes bounds what one operation carries.
const maxBytes = 1 << 30

func (p *Part) check(tree string) error {
	if !slices.Contains(kinds, p.Kind) {
		return fmt.Errorf("kind %q: want one of %v", p.Kind, kinds)
	}
	if p.Name == "" {
		p.Name = string(p.Kind)
	}
	if p.Weight < 1 {
		return fmt.Errorf("weight %d: want 1 or more", p.Weight)
	}
	if p.Bytes < 0 || p.Bytes > maxBytes {
		return fmt.Errorf("bytes %d: want 0 to %d", p.Bytes, maxBytes)
	}
	if p.Files < 0 || p.Files > 100_000 {
		return fmt.Errorf("entries %d: want 0 to 100000", p.Files)
	}
	if (p.Kind == Exec) != (len(p.Argv) > 0) {
		return fmt.Errorf("argv %q: an exec has one, others have none", p.Argv)
	}
	if p.Kind == Stream && p.Bytes == 0 {
		return fmt.Errorf("bytes 0: a stream has some")
	}
	if (p.Kind == Converge) != (tree == TreeGit) {
		return fmt.Errorf("kind %s on tree %s: converge goes with git, and nothing else does", p.Kind, tree)
	}
	if p.Kind == Converge && (p.Refs < 1 || p.Refs > 1000) {
		return fmt.Errorf("refs %d: want 1 to 1000", p.Refs)
	}
	if p.Kind == Grep && tree != TreeRepository {
		return fmt.Errorf("kind grep on tree %s: want repository", tree)
	}
	if p.Kind == Find && tree == TreeFiles && p.Files < 1 {
		return fmt.Errorf("entries %d: find wants 1 or more", p.Files)
	}
	return nil
}

// Shared is what the sandboxes of a run have in common, with what a generator must know of it.
type Shared struct {
	Repository *Repository `json:"repository,omitempty"`
	Origin     string      `json:"origin,omitempty"` // the git repository that clones fetch from
}

// Prepare makes or finds what all sandboxes share, below dir. seed chooses from a repository.
func (w *Workload) Prepare(dir string, seed uint64) (*Shared, error) {
	switch w.Tree {
	case TreeRepository:
		root, err := goSource()
		if err != nil {
			return nil, err
		}
		r, err := indexRepository(root, seed)
		return &Shared{Repository: r}, err
	case TreeGit:
		origin := filepath.Join(dir, "origin.git")
		return &Shared{Origin: origin}, w.makeOrigin(origin)
	default:
		return &Shared{}, nil
	}
}

// Furnish makes the files of one sandbox in its directory, for that many sessions.
func (w *Workload) Furnish(dir string, shared *Shared, sessions int) error {
	for i := range sessions {
		if err := os.MkdirAll(own(dir, i), 0o755); err != nil {
			return err
		}
	}
	switch w.Tree {
	case TreeRepository:
		return nil // the sessions' own copies are written by the sessions
	case TreeGit:
		return clone(shared.Origin, filepath.Join(dir, "clone"))
	}
	for _, p := range w.Ops {
		var err error
		switch p.Kind {
		case Read, Exec:
			err = os.WriteFile(sized(dir, p.Bytes), Text(p.Bytes, 0), 0o644)
		case Stat:
			err = os.WriteFile(sized(dir, p.Bytes), Text(p.Bytes, 0), 0o644)
		case Ls:
			err = entries(listed(dir, p.Files), p.Files)
		case Find:
			err = tree(found(dir, p.Files), p.Files)
		default: // the rest needs no files, or its sessions' own
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func own(dir string, session int) string { return filepath.Join(dir, "sessions", fmt.Sprint(session)) }
func sized(dir string, n int) string     { return filepath.Join(dir, fmt.Sprintf("file-%d", n)) }
func listed(dir string, n int) string    { return filepath.Join(dir, fmt.Sprintf("entries-%d", n)) }
func found(dir string, n int) string     { return filepath.Join(dir, fmt.Sprintf("tree-%d", n)) }

func entries(dir string, n int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("entry%05d.go", i)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// perDirectory is how many files a directory of a tree has; each tenth is one that find looks for.
const perDirectory = 10

func tree(dir string, n int) error {
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("dir%04d", i/perDirectory))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		name := fmt.Sprintf("file%05d.go", i)
		if i%perDirectory == 0 {
			name = fmt.Sprintf("file%05d_test.go", i)
		}
		if err := os.WriteFile(filepath.Join(sub, name), nil, fs.FileMode(0o644)); err != nil {
			return err
		}
	}
	return nil
}

// Text is n bytes of lines that look like source text; mark makes texts differ that have different ones.
func Text(n, mark int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of text %d, about as long as one of a program\n", i, mark)
	}
	b.Truncate(n)
	if n > 0 {
		b.Bytes()[n-1] = '\n'
	}
	return b.Bytes()
}
