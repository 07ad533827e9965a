package workload

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
)

// Op is one operation. Paths are absolute and mean the sandbox's.
type Op struct {
	Kind    Kind
	Name    string // under which it is recorded
	Path    string
	Data    []byte   // of a write
	Old     string   // of an edit
	New     string   // of an edit
	Pattern string   // of a find or a grep
	Argv    []string // of an exec or a stream
	Script  string   // of an exec or a converge: shell text, which may also stand for Argv
	Answer  int      // about how many bytes a right answer has: what a bare request is answered with
	want    want
}

// want is what a right answer looks like; a zero field is not looked at.
type want struct {
	size  int // bytes, exactly
	lines int // lines or entries, at least
	exact bool
	text  string // exactly, when exact is set
}

// WrongError says that an operation was answered, and wrongly.
type WrongError struct{ What string }

func (e *WrongError) Error() string { return "wrong answer: " + e.What }

func wrong(format string, args ...any) error { return &WrongError{fmt.Sprintf(format, args...)} }

// Check tells a wrong answer to an operation that answers with bytes.
func (o *Op) Check(answer []byte) error {
	if o.want.exact && string(answer) != o.want.text {
		return wrong("%s: the answer is %.80q, want %q", o.Name, answer, o.want.text)
	}
	if n := o.want.size; n > 0 && len(answer) != n {
		return wrong("%s %s: %d bytes, want %d", o.Name, o.Path, len(answer), n)
	}
	if n := o.want.lines; n > 0 {
		return o.CheckCount(bytes.Count(answer, []byte("\n")))
	}
	return nil
}

// CheckCount tells a wrong answer to an operation that answers with entries.
func (o *Op) CheckCount(n int) error {
	if n < o.want.lines {
		return wrong("%s %s: %d entries, want at least %d", o.Name, o.Path, n, o.want.lines)
	}
	return nil
}

// CheckSize tells a wrong answer to an operation that streams.
func (o *Op) CheckSize(n int64) error {
	if n != int64(o.want.size) {
		return wrong("%s: %d bytes, want %d", o.Name, n, o.want.size)
	}
	return nil
}

// Generator makes the operations of one session, without end. It is used by one goroutine.
type Generator struct {
	w       *Workload
	shared  *Shared
	dir     string // the sandbox's
	own     string // the session's
	session int
	rng     *rand.Rand
	total   int
	edits   map[string]int // of each of the session's own files
	turn    int
	base    string // of the session's own file
}

// Generator starts the operations of a session in a sandbox's directory.
func (w *Workload) Generator(shared *Shared, dir string, session int, seed uint64) *Generator {
	g := &Generator{
		w: w, shared: shared, dir: dir, own: own(dir, session), session: session,
		rng: rand.New(rand.NewPCG(seed, uint64(session))), edits: map[string]int{}, //nolint:gosec // G404: a load, not a secret
	}
	for _, p := range w.Ops {
		g.total += p.Weight
	}
	return g
}

// Duty is the session's share of time at its sandbox; zero when the workload has none.
func (g *Generator) Duty() float64 {
	if g.w.Duty == nil {
		return 0
	}
	return g.w.Duty.Min + g.rng.Float64()*(g.w.Duty.Max-g.w.Duty.Min)
}

// First are the operations that a session begins with, unmeasured, and that it repeats when an edit has failed: they
// write its own files.
func (g *Generator) First() []Op {
	var ops []Op
	clear(g.edits)
	for _, p := range g.w.Ops {
		if p.Kind == Edit {
			path, text := g.edited(p)
			ops = append(ops, Op{Kind: Write, Name: "prepare", Path: path, Data: text})
		}
	}
	return ops
}

// Next is the next operation.
func (g *Generator) Next() Op {
	n := g.rng.IntN(g.total)
	for _, p := range g.w.Ops {
		if n -= p.Weight; n < 0 {
			o := g.op(p)
			o.Kind, o.Name = p.Kind, p.Name
			return o
		}
	}
	panic("the weights do not add up")
}

func (g *Generator) op(p Part) Op {
	g.turn++
	switch p.Kind {
	case Read:
		path, size := g.file(p)
		return Op{Path: path, Answer: size, want: want{size: size}}
	case Stat:
		path, _ := g.file(p)
		return Op{Path: path, Answer: 60}
	case Write:
		data := Text(g.size(p), g.turn)
		return Op{Path: filepath.Join(g.own, "written.go"), Data: data, Answer: 60}
	case Edit:
		path, _ := g.edited(p)
		return g.edit(path)
	case Ls:
		dir, n := listed(g.dir, p.Files), p.Files
		if r := g.shared.Repository; r != nil {
			d := r.Dirs[g.rng.IntN(len(r.Dirs))]
			dir, n = d.Path, d.Entries
		}
		return Op{Path: dir, Answer: 40 * n, want: want{lines: n}}
	case Find:
		dir, n := found(g.dir, p.Files), (p.Files+perDirectory-1)/perDirectory
		if r := g.shared.Repository; r != nil {
			d := r.Dirs[g.rng.IntN(len(r.Dirs))]
			dir, n = d.Path, d.Tests
		}
		return Op{Path: dir, Pattern: "*_test.go", Answer: 60 * n, want: want{lines: n}}
	case Grep:
		f := g.shared.Repository.choose(g.rng)
		return Op{Path: filepath.Dir(f.Path), Pattern: f.Word, Answer: 200, want: want{lines: 1}}
	case Exec:
		return g.exec(p)
	case Stream:
		argv := []string{"head", "-c", fmt.Sprint(p.Bytes), "/dev/zero"}
		return Op{Argv: argv, Script: Quote(argv...), Answer: p.Bytes, want: want{size: p.Bytes}}
	case Converge:
		return g.converge(p)
	}
	panic("kind " + string(p.Kind) + " was not checked")
}

func (g *Generator) file(p Part) (path string, size int) {
	if r := g.shared.Repository; r != nil {
		f := r.choose(g.rng)
		return f.Path, f.Size
	}
	return sized(g.dir, p.Bytes), p.Bytes
}

func (g *Generator) size(p Part) int {
	if r := g.shared.Repository; r != nil && p.Bytes == 0 {
		return r.choose(g.rng).Size
	}
	return p.Bytes
}

// edited is the session's own file that its edits change, as it is before the first: its first line is what they turn
// over.
func (g *Generator) edited(p Part) (path string, text []byte) {
	if g.base == "" {
		text := Text(max(g.size(p), len(editLine(0))), g.session)
		g.base = editLine(0) + string(text[len(editLine(0)):])
	}
	return filepath.Join(g.own, "edited.go"), []byte(g.base)
}

func editLine(n int) string { return fmt.Sprintf("// edit %012d\n", n) }

func (g *Generator) edit(path string) Op {
	n := g.edits[path]
	g.edits[path]++
	return Op{Path: path, Old: editLine(n), New: editLine(n + 1), Answer: 60}
}

func (g *Generator) exec(p Part) Op {
	path, size := g.file(p)
	argv := make([]string, len(p.Argv))
	for i, a := range p.Argv {
		argv[i] = strings.ReplaceAll(a, "{file}", path)
	}
	o := Op{Path: path, Argv: argv, Script: Quote(argv...), Answer: 40}
	if argv[0] == "cat" {
		o.Answer, o.want.size = size, size
	}
	return o
}

// Quote makes shell text of words.
func Quote(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(out, " ")
}
