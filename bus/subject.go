package bus

import (
	"errors"
	"fmt"
	"strings"
)

// MaxSubject is the longest subject, in bytes. NATS closes the connection of a client that sends one of 4 KiB.
const MaxSubject = 256

// SubjectKind says which row of the grammar a subject belongs to.
type SubjectKind int

// The kinds of subjects; the comment shows each one's form.
const (
	SubjectRequest SubjectKind = iota + 1 // sbx.<zone>.<id>.<inst>.<verb>
	SubjectControl                        // sbx.<zone>.<id>.<inst>.op.<op>.<control>
	SubjectReply                          // rep.<zone>.<id>.<harness>.<conn>.<op>
	SubjectBeat                           // hb.<zone>.<id>
	SubjectEvent                          // evt.<zone>.<id>.<event>
	SubjectBeatNow                        // bc.<zone>
)

// Subject is a subject taken apart. Which fields are set depends on Kind.
type Subject struct {
	Kind     SubjectKind
	Zone     Zone
	Sandbox  SandboxID
	Instance InstanceID
	Harness  HarnessID
	Conn     ConnID
	Op       OpID
	Verb     string // of a request: one to three tokens, such as "fs.read"; the first is not "op"
	Control  string // of a control message: "abort", "ack", "in", …
	Event    string // of an event: "hello", "goodbye", …
}

// ErrSubject is a subject that is not of the grammar.
var ErrSubject = errors.New("not a sandbus subject")

// maxVerbTokens is how many tokens a verb has at most.
const maxVerbTokens = 3

// ParseSubject takes a subject apart. Errors wrap [ErrSubject].
func ParseSubject(s string) (Subject, error) {
	bad := func() (Subject, error) { return Subject{}, fmt.Errorf("%w: %.80q", ErrSubject, s) }
	if len(s) > MaxSubject {
		return bad()
	}
	t := strings.Split(s, ".")
	for _, tok := range t {
		if !isToken(tok) {
			return bad()
		}
	}
	switch {
	case t[0] == "sbx" && len(t) == 7 && t[4] == "op":
		return Subject{
			Kind: SubjectControl, Zone: Zone(t[1]), Sandbox: SandboxID(t[2]), Instance: InstanceID(t[3]),
			Op: OpID(t[5]), Control: t[6],
		}, nil
	case t[0] == "sbx" && len(t) >= 5 && len(t) <= 4+maxVerbTokens && t[4] != "op":
		return Subject{
			Kind: SubjectRequest, Zone: Zone(t[1]), Sandbox: SandboxID(t[2]), Instance: InstanceID(t[3]),
			Verb: strings.Join(t[4:], "."),
		}, nil
	case t[0] == "rep" && len(t) == 6:
		return Subject{
			Kind: SubjectReply, Zone: Zone(t[1]), Sandbox: SandboxID(t[2]), Harness: HarnessID(t[3]),
			Conn: ConnID(t[4]), Op: OpID(t[5]),
		}, nil
	case t[0] == "hb" && len(t) == 3:
		return Subject{Kind: SubjectBeat, Zone: Zone(t[1]), Sandbox: SandboxID(t[2])}, nil
	case t[0] == "evt" && len(t) == 4:
		return Subject{Kind: SubjectEvent, Zone: Zone(t[1]), Sandbox: SandboxID(t[2]), Event: t[3]}, nil
	case t[0] == "bc" && len(t) == 2:
		return Subject{Kind: SubjectBeatNow, Zone: Zone(t[1])}, nil
	}
	return bad()
}

// String prints the subject; [ParseSubject] of it gives the same value. It is empty for a Subject that has no valid
// form.
func (s Subject) String() string {
	var out string
	switch s.Kind {
	case SubjectRequest:
		out = join("sbx", string(s.Zone), string(s.Sandbox), string(s.Instance), s.Verb)
	case SubjectControl:
		out = join("sbx", string(s.Zone), string(s.Sandbox), string(s.Instance), "op", string(s.Op), s.Control)
	case SubjectReply:
		out = join("rep", string(s.Zone), string(s.Sandbox), string(s.Harness), string(s.Conn), string(s.Op))
	case SubjectBeat:
		out = join("hb", string(s.Zone), string(s.Sandbox))
	case SubjectEvent:
		out = join("evt", string(s.Zone), string(s.Sandbox), s.Event)
	case SubjectBeatNow:
		out = join("bc", string(s.Zone))
	}
	if p, err := ParseSubject(out); err != nil || p != s {
		return ""
	}
	return out
}

func join(tokens ...string) string { return strings.Join(tokens, ".") }

// Target is one worker instance: where requests go.
type Target struct {
	Zone     Zone
	Sandbox  SandboxID
	Instance InstanceID
}

func (t Target) String() string { return join(string(t.Zone), string(t.Sandbox), string(t.Instance)) }

// prefix is the subject of all that goes to the instance, with a dot behind.
func (t Target) prefix() string { return "sbx." + t.String() + "." }
