package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Journal is what the sandboxes' own files say, which no side can embellish: how often each op ran, and which files
// have whole contents.
type Journal struct {
	Ran   map[string]int  // by op: how many times its line is in a journal
	Files map[string]bool // by op of a write: whether its file is there, whole
}

// op is what is known of one operation.
type op struct {
	request  *Event
	outcomes []*Event
}

// Check returns what was violated; nothing means that the promise was kept.
func Check(events []Event, j Journal) []string {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	c := &checker{ops: map[string]*op{}, died: map[string]bool{}, journal: j}
	for i := range events {
		c.take(&events[i])
	}
	for _, id := range sorted(c.ops) {
		c.checkOp(id, c.ops[id])
	}
	for _, id := range sorted(j.Ran) {
		if c.ops[id] == nil {
			c.violated("op %s ran, and nobody had asked for it", id)
		}
	}
	c.checkLeases(events)
	return c.found
}

type checker struct {
	ops     map[string]*op
	died    map[string]bool // sides
	journal Journal
	found   []string
}

func (c *checker) violated(format string, v ...any) {
	c.found = append(c.found, fmt.Sprintf(format, v...))
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (c *checker) take(e *Event) {
	switch e.Kind {
	case Request:
		if c.ops[e.Op] != nil && c.ops[e.Op].request != nil {
			c.violated("op %s was asked for twice under one name", e.Op)
			return
		}
		if c.ops[e.Op] == nil {
			c.ops[e.Op] = &op{}
		} else {
			c.violated("op %s had an outcome before it was asked for", e.Op)
		}
		c.ops[e.Op].request = e
	case Outcome:
		if c.ops[e.Op] == nil {
			c.ops[e.Op] = &op{}
		}
		c.ops[e.Op].outcomes = append(c.ops[e.Op].outcomes, e)
	case Left:
		c.violated("left behind: %s", e.Detail)
	case Broken:
		c.violated("%s: %s", e.Side, e.Detail)
	case Died:
		c.died[e.Detail] = true
	case Fault, Granted, Ended, Probe:
	}
}

func (c *checker) checkOp(id string, o *op) {
	switch {
	case o.request == nil:
		c.violated("op %s has an outcome, and nobody had asked for it", id)
		return
	case len(o.outcomes) == 0 && c.died[o.request.Side]:
		if ran := c.journal.Ran[id]; ran > 1 {
			c.violated("op %s (%s) ran %d times", id, o.request.Verb, ran)
		}
		if whole, there := c.journal.Files[id]; there && !whole {
			c.violated("op %s: the file that it wrote is not whole", id)
		}
		return
	case len(o.outcomes) == 0:
		c.violated("op %s (%s) has no outcome", id, o.request.Verb)
		return
	case len(o.outcomes) > 1:
		c.violated("op %s (%s) has %d outcomes", id, o.request.Verb, len(o.outcomes))
		return
	}
	end := o.outcomes[0]
	switch o.request.Verb {
	case Write:
		c.checkWrite(id, end)
	case Read:
		if end.Result == Exited && end.Wrong {
			c.violated("op %s read something else than what is there", id)
		}
	case Fast, Exec, Detach:
		c.checkRun(id, o.request, end)
	}
}

// checkRun compares an outcome with how often the command ran in truth.
func (c *checker) checkRun(id string, request, end *Event) {
	ran := c.journal.Ran[id]
	if ran > 1 {
		c.violated("op %s (%s) ran %d times", id, request.Verb, ran)
	}
	switch end.Result {
	case Exited:
		if ran == 0 {
			c.violated("op %s (%s) is said to have exited, and did not run", id, request.Verb)
		}
		if end.Code != request.Want {
			c.violated("op %s (%s) is said to have exited with %d, it exits with %d", id, request.Verb, end.Code, request.Want)
		}
		if end.Lines < request.Lines && end.Omitted == 0 {
			c.violated("op %s (%s) exited, and %d of its %d lines arrived with nothing counted as lost", id, request.Verb, end.Lines, request.Lines)
		}
		if end.Lines > request.Lines {
			c.violated("op %s (%s) printed %d lines, %d arrived", id, request.Verb, request.Lines, end.Lines)
		}
	case Refused, StartFailed:
		if ran != 0 {
			c.violated("op %s (%s) is said to be %s, and ran", id, request.Verb, end.Result)
		}
	case Signalled, TimedOut, Aborted, OutputLimit, OOM, Lost: // may have come as far as its line in the journal, or not
	default:
		c.violated("op %s (%s) ended in %q, which is no outcome", id, request.Verb, end.Result)
	}
	if end.Wrong {
		c.violated("op %s (%s): a line of its output is not the one that follows", id, request.Verb)
	}
}

func (c *checker) checkWrite(id string, end *Event) {
	whole, there := c.journal.Files[id]
	if there && !whole {
		c.violated("op %s: the file that it wrote is not whole", id)
	}
	switch end.Result {
	case Exited:
		if !there {
			c.violated("op %s: the write is acknowledged, and the file is not there", id)
		}
	case Refused, StartFailed:
		if there {
			c.violated("op %s: the write is said to be %s, and the file is there", id, end.Result)
		}
	default: // lost, and its like: it may be there or not
	}
}

// checkLeases counts at each moment how many leases of one sandbox are held.
func (c *checker) checkLeases(events []Event) {
	held := map[string]map[string]string{} // by sandbox and lease: the side that holds it
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case Granted:
			if held[e.Sandbox] == nil {
				held[e.Sandbox] = map[string]string{}
			}
			if held[e.Sandbox][e.Lease] != "" {
				c.violated("lease %s of %s was granted twice", e.Lease, e.Sandbox)
			}
			held[e.Sandbox][e.Lease] = e.Side
			if n := len(held[e.Sandbox]); n > e.Slots {
				c.violated("%d leases of %s are held at once, it has %d slots", n, e.Sandbox, e.Slots)
			}
		case Ended:
			delete(held[e.Sandbox], e.Lease)
		case Died:
			for _, leases := range held {
				maps.DeleteFunc(leases, func(_, side string) bool { return side == e.Detail })
			}
		case Request, Outcome, Fault, Left, Broken, Probe:
		}
	}
}
