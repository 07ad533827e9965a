package execs

import (
	"time"

	"github.com/sandbus/sandbus/workerd/proc"
)

// Spec says what to run and how to end it. The zero value of each limit means none.
type Spec struct {
	ID          string   // of the exec, one subject token
	Fingerprint [32]byte // of the request's content
	Command     string   // for lists
	Proc        proc.Spec
	Script      string // runs on a fresh shell of its own instead of Proc.Argv
	Stdin       bool   // there will be input
	Terminal    *Size  // a terminal instead of pipes
	Timeout     time.Duration
	IdleTimeout time.Duration
	Limit       int64  // bytes of output; below zero means none
	HeadTail    bool   // at the limit the command runs on, and the middle of its output is left out
	Spool       bool   // the full output goes to a file too
	SpoolLimit  int64  // bytes of that file; must be above zero with Spool
	Detach      bool   // nobody's absence ends it
	Memory      int64  // bytes
	Lease       string // under which it was started: its end is the exec's, unless that is detached; empty means none
	Owner       string // who held the lease; empty without one
}

// Size is the size of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

const (
	// ringBytes is how much of an exec's output is kept: a quarter from its start, the rest from its end.
	ringBytes = 1 << 20
	headBytes = ringBytes / 4
	tailBytes = ringBytes - headBytes
)

// newLog makes the log that a spec needs.
func (s *Spec) newLog() *Log {
	if s.HeadTail {
		return NewLog(s.Limit-s.Limit/2, max(1, s.Limit/2))
	}
	return NewLog(headBytes, tailBytes)
}
