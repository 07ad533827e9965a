package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// Tick is a moment of the clock by which processes start, in hundredths of a second since boot.
type Tick uint64

// Now is the present moment.
func Now() Tick {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // before everything
	}
	return Tick(time.Duration(ts.Nano()) / (10 * time.Millisecond)) // USER_HZ is 100 on every architecture that we build for
}

// NewTreeSince is what below a process has started at a moment or later: neither the process itself, nor what was there
// before, nor what that starts.
func NewTreeSince(root Process, since Tick) *Tree {
	t := &Tree{root: root, spare: true, since: since, known: map[Process]bool{}, others: map[Process]bool{}}
	t.Look()
	return t
}
