package history

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// good is a history in which all went right, with the journal that belongs to it. A test spoils a copy.
func good() ([]Event, Journal) {
	events := []Event{
		{Kind: Request, Op: "a", Verb: Fast, Want: 3},
		{Kind: Outcome, Op: "a", Result: Exited, Code: 3},
		{Kind: Request, Op: "b", Verb: Exec, Lines: 100},
		{Kind: Fault, Detail: "hub killed"},
		{Kind: Outcome, Op: "b", Result: Exited, Lines: 100},
		{Kind: Request, Op: "c", Verb: Exec, Lines: 100},
		{Kind: Outcome, Op: "c", Result: Lost, Lines: 7},
		{Kind: Request, Op: "d", Verb: Fast},
		{Kind: Outcome, Op: "d", Result: Refused},
		{Kind: Request, Op: "e", Verb: Write},
		{Kind: Outcome, Op: "e", Result: Exited},
		{Kind: Request, Op: "f", Verb: Read},
		{Kind: Outcome, Op: "f", Result: Exited},
		{Kind: Request, Op: "g", Verb: Exec, Lines: 100},
		{Kind: Outcome, Op: "g", Result: Exited, Lines: 60, Omitted: 4000},
		{Kind: Request, Op: "h", Verb: Exec, Lines: 100},
		{Kind: Outcome, Op: "h", Result: Aborted, Lines: 60},
		{Kind: Granted, Lease: "l1", Sandbox: "box", Slots: 2},
		{Kind: Granted, Lease: "l2", Sandbox: "box", Slots: 2},
		{Kind: Ended, Lease: "l1", Sandbox: "box"},
		{Kind: Granted, Lease: "l3", Sandbox: "box", Slots: 2},
	}
	for i := range events {
		events[i].At, events[i].Side = Now(), "h1"
	}
	return events, Journal{Ran: map[string]int{"a": 1, "b": 1, "c": 1, "g": 1, "h": 1}, Files: map[string]bool{"e": true}}
}

// TestCheckKnowsTheDead takes a side that was killed for what it is: it owes no outcome, and holds no lease.
func TestCheckKnowsTheDead(t *testing.T) {
	events, j := good()
	for i := range events {
		events[i].Side = "h2"
	}
	add := func(e Event) {
		e.At = Now()
		events = append(events, e)
	}
	add(Event{Side: "h1", Kind: Request, Op: "k", Verb: Exec, Lines: 5})
	add(Event{Side: "h1", Kind: Request, Op: "w", Verb: Write})
	require.NotEmpty(t, Check(events, j))
	add(Event{Side: "driver", Kind: Died, Detail: "h1"})
	require.Empty(t, Check(events, j))
	j.Ran["k"] = 2
	require.Equal(t, []string{"op k (exec) ran 2 times"}, Check(events, j))
	j.Ran["k"], j.Files["w"] = 1, false
	require.Equal(t, []string{"op w: the file that it wrote is not whole"}, Check(events, j))
	delete(j.Files, "w")
	add(Event{Side: "driver", Kind: Died, Detail: "h2"})
	for _, lease := range []string{"l4", "l5"} {
		add(Event{Side: "h3", Kind: Granted, Lease: lease, Sandbox: "box", Slots: 2})
	}
	require.Empty(t, Check(events, j))
	add(Event{Side: "h3", Kind: Granted, Lease: "l6", Sandbox: "box", Slots: 2})
	require.Len(t, Check(events, j), 1)
}

func TestCheckPasses(t *testing.T) {
	events, j := good()
	require.Empty(t, Check(events, j))
	delete(j.Ran, "c") // what is lost may not have run
	require.Empty(t, Check(events, j))
}

// outcome finds an op's outcome.
func outcome(events []Event, op string) *Event {
	for i := range events {
		if events[i].Kind == Outcome && events[i].Op == op {
			return &events[i]
		}
	}
	return nil
}

// TestCheckFinds spoils a good history in each way that matters, and wants to be told of just that.
func TestCheckFinds(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*[]Event, *Journal)
		want  string
	}{
		"no outcome": {func(e *[]Event, _ *Journal) {
			outcome(*e, "a").Kind = Fault
		}, "op a (fast) has no outcome"},
		"two outcomes": {func(e *[]Event, _ *Journal) {
			*e = append(*e, *outcome(*e, "b"))
		}, "op b (exec) has 2 outcomes"},
		"an outcome of nothing": {func(e *[]Event, _ *Journal) {
			*e = append(*e, Event{At: Now(), Kind: Outcome, Op: "z", Result: Lost})
		}, "op z has an outcome, and nobody had asked for it"},
		"an outcome before its request": {func(e *[]Event, _ *Journal) {
			outcome(*e, "a").At = 1
		}, "op a had an outcome before it was asked for"},
		"one name for two": {func(e *[]Event, _ *Journal) {
			*e = append(*e, Event{At: Now(), Kind: Request, Op: "a", Verb: Fast})
		}, "op a was asked for twice"},
		"run twice": {func(_ *[]Event, j *Journal) {
			j.Ran["b"] = 2
		}, "op b (exec) ran 2 times"},
		"lost, and run twice": {func(_ *[]Event, j *Journal) {
			j.Ran["c"] = 2
		}, "op c (exec) ran 2 times"},
		"exited, and not run": {func(_ *[]Event, j *Journal) {
			delete(j.Ran, "a")
		}, "op a (fast) is said to have exited, and did not run"},
		"refused, and run": {func(_ *[]Event, j *Journal) {
			j.Ran["d"] = 1
		}, "op d (fast) is said to be refused, and ran"},
		"run, and not asked for": {func(_ *[]Event, j *Journal) {
			j.Ran["y"] = 1
		}, "op y ran, and nobody had asked for it"},
		"an invented exit code": {func(e *[]Event, _ *Journal) {
			outcome(*e, "a").Code = 0
		}, "exited with 0, it exits with 3"},
		"lost output": {func(e *[]Event, _ *Journal) {
			outcome(*e, "b").Lines = 99
		}, "99 of its 100 lines arrived"},
		"output twice": {func(e *[]Event, _ *Journal) {
			outcome(*e, "b").Lines = 101
		}, "100 lines, 101 arrived"},
		"output out of order": {func(e *[]Event, _ *Journal) {
			outcome(*e, "b").Wrong = true
		}, "a line of its output is not the one that follows"},
		"an outcome that is none": {func(e *[]Event, _ *Journal) {
			outcome(*e, "b").Result = "fine"
		}, `"fine", which is no outcome`},
		"an acknowledged write that is gone": {func(_ *[]Event, j *Journal) {
			delete(j.Files, "e")
		}, "the write is acknowledged, and the file is not there"},
		"half a write": {func(_ *[]Event, j *Journal) {
			j.Files["e"] = false
		}, "the file that it wrote is not whole"},
		"a wrong read": {func(e *[]Event, _ *Journal) {
			outcome(*e, "f").Wrong = true
		}, "op f read something else"},
		"a lease too many": {func(e *[]Event, _ *Journal) {
			*e = append(*e, Event{At: Now(), Kind: Granted, Lease: "l4", Sandbox: "box", Slots: 2})
		}, "3 leases of box are held at once, it has 2 slots"},
		"a lease granted twice": {func(e *[]Event, _ *Journal) {
			*e = append(*e, Event{At: Now(), Kind: Granted, Lease: "l2", Sandbox: "box", Slots: 2})
		}, "lease l2 of box was granted twice"},
		"something left behind": {func(e *[]Event, _ *Journal) {
			*e = append(*e, Event{At: Now(), Kind: Left, Detail: "process 17"})
		}, "left behind: process 17"},
		"what a side has seen": {func(e *[]Event, _ *Journal) {
			*e = append(*e, Event{At: Now(), Side: "h1", Kind: Broken, Detail: "a goroutine too many"})
		}, "h1: a goroutine too many"},
	} {
		t.Run(name, func(t *testing.T) {
			events, j := good()
			c.spoil(&events, &j)
			found := Check(events, j)
			require.NotEmpty(t, found)
			require.Contains(t, strings.Join(found, "\n"), c.want)
		})
	}
}

func TestLoad(t *testing.T) {
	var b bytes.Buffer
	r := NewRecorder("h1", &b)
	r.Add(Event{Kind: Request, Op: "a", Verb: Fast})
	r.Add(Event{Kind: Outcome, Op: "a", Result: Exited})
	require.NoError(t, r.Err())
	name := filepath.Join(t.TempDir(), "h1.jsonl")
	require.NoError(t, os.WriteFile(name, append(b.Bytes(), `{"at":17,"si`...), 0o600)) // killed while it wrote
	events, err := Load(name)
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, "h1", events[0].Side)
	require.Less(t, events[0].At, events[1].At)

	require.NoError(t, os.WriteFile(name, append([]byte("{\"at\":17,\n"), b.Bytes()...), 0o600))
	_, err = Load(name)
	require.Error(t, err, "a broken line that is not the last")
}
