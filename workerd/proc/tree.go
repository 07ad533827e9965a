package proc

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is a process and everything below it. It remembers who was seen there: a process whose parent has died is found
// under another one. A Tree is for one goroutine.
type Tree struct {
	root   Process
	spare  bool
	mark   string
	since  Tick // who started earlier is left out, with all below
	known  map[Process]bool
	others map[Process]bool // have been looked at and do not carry the mark
	// environ is room for an environment.
	environ []byte
}

// NewTree is the tree of a process; spare leaves the root itself out. A mark that is not empty is a NAME=value: whoever
// has it in the environment that it was started with belongs to the tree too, wherever it is, such as a daemon that has
// left its parents and its session.
func NewTree(root Process, spare bool, mark string) *Tree {
	t := &Tree{root: root, spare: spare, mark: mark, known: map[Process]bool{}, others: map[Process]bool{}}
	if !spare {
		t.known[root] = true
	}
	t.Look()
	return t
}

// Look adds who is new and drops who is dead; it returns how many live.
func (t *Tree) Look() int {
	children := table()
	var todo []Process
	if t.root.PID > 0 {
		todo = append(todo, t.root)
	}
	for p := range t.known {
		if !p.Alive() {
			delete(t.known, p)
			continue
		}
		todo = append(todo, p)
	}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, c := range children[todo[0].PID] {
			if !t.known[c] && Tick(c.start) >= t.since {
				t.known[c] = true
				todo = append(todo, c)
			}
		}
	}
	if t.mark != "" {
		t.lookForMark(children)
	}
	return len(t.known)
}

// lookForMark adds those that carry the mark.
func (t *Tree) lookForMark(children map[int][]Process) {
	for _, list := range children {
		for _, p := range list {
			if t.known[p] || t.others[p] || p.PID == os.Getpid() {
				continue
			}
			if t.environ == nil {
				t.environ = make([]byte, environBytes)
			}
			if hasMark(p, t.mark, t.environ) {
				t.known[p] = true
			} else {
				t.others[p] = true
			}
		}
	}
}

// Marked is the tree of all that carry a mark.
func Marked(mark string) *Tree { return NewTree(Process{}, true, mark) }

// Signal sends a signal to all that live, parents before their children: a script must not go on to what stands behind a
// program that was killed. Where the root leads a process group, the group gets it in one call, which
// reaches what forks while the tree is walked.
func (t *Tree) Signal(sig unix.Signal) {
	group := !t.spare && t.root.PID > 0 && t.root.Alive() && unix.Kill(-t.root.PID, sig) == nil
	for _, p := range slices.SortedFunc(maps.Keys(t.known), byAge) {
		if group {
			if pg, err := unix.Getpgid(p.PID); err == nil && pg == t.root.PID {
				continue // has it already
			}
		}
		p.Signal(sig)
	}
}

// byAge orders the eldest first; those of one tick by their number.
func byAge(a, b Process) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.PID, b.PID)) }

// lookEvery is how often a dying tree is looked at.
const lookEvery = 5 * time.Millisecond

// Await looks until nobody lives (true), or until the time or ctx is over.
func (t *Tree) Await(ctx context.Context, limit time.Duration) bool {
	if t.Look() == 0 {
		return true
	}
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if t.Look() == 0 {
				return true
			}
		case <-ctx.Done():
			return false
		case <-end.C:
			return false
		}
	}
}

// End sends TERM, then, after the grace or the end of ctx, KILL until nobody lives.
func (t *Tree) End(ctx context.Context, grace time.Duration) {
	t.Signal(unix.SIGTERM)
	if t.Await(ctx, grace) {
		return
	}
	for { // a process may fork between the look and the signal
		t.Signal(unix.SIGKILL)
		if t.Await(context.WithoutCancel(ctx), 10*lookEvery) {
			return
		}
	}
}
