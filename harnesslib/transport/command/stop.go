package command

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

const (
	// stopWindow is how long the far side may take to say that all is dead: the start of one more process of the prefix is
	// in it, and the grace between TERM and KILL, about 2 s.
	stopWindow = 30 * time.Second
)

// stopper ends a command before its time, once.
type stopper struct {
	kill func() error // nil when the far side said that nothing of it is alive
	done chan error   // what kill returned

	mu      sync.Mutex // guards the fields below
	reason  error      // why; nil while it is not stopped
	disarms bool       // it has ended by itself
	running sync.WaitGroup
}

func newStopper(kill func() error) *stopper { return &stopper{kill: kill, done: make(chan error, 1)} }

// fire stops the command for a reason; the first one counts.
func (s *stopper) fire(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != nil || s.disarms {
		return
	}
	s.reason = reason
	s.running.Go(func() { s.done <- s.kill() })
}

// disarm says that the command has ended; reasons that come now do not count.
func (s *stopper) disarm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disarms = true
}

func (s *stopper) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// killer is shell text that ends what descends from a process or carries a mark in its environment. Processes once found
// stay in K, so that one whose parent died is not lost. TERM comes first; what has not gone by then is stopped before it
// is killed, so that it cannot fork meanwhile. The process itself comes last. Its exit status is 0 when nothing is left.
const killer = `__find() {
T= D=
for d in /proc/[0-9]*; do
{ read -r l <"$d/stat"; } 2>/dev/null || continue
set -- ${l##*)}
case $1 in Z|X) ;; *) T="$T ${d#/proc/}:$2" ;; esac
done
for p in $(grep -l "$M" /proc/[0-9]*/environ 2>/dev/null); do p=${p#/proc/}; K="$K${p%/environ} "; done
n=1
while [ "$n" = 1 ]; do
n=0
for e in $T; do
p=${e%%:*}
case $K in *" $p "*) ;; *) case $K in *" ${e##*:} "*) K="$K$p "; n=1 ;; esac ;; esac
done
done
for e in $T; do
p=${e%%:*}
[ "$p" = "$P" ] && continue
case $K in *" $p "*) D="$D $p" ;; esac
done
}
__kill() {
P=$1 S=$2 M=$3 K=" $1 " i=0 alive=
[ -r /proc/self/stat ] || return 3
{ read -r l <"/proc/$P/stat"; } 2>/dev/null && { set -- ${l##*)}; [ "${20}" = "$S" ] && alive=1; }
[ -n "$alive" ] || K=" "
__find
[ -n "$D" ] && kill -TERM $D 2>/dev/null
while [ -n "$D" ] && [ "$i" -lt 8 ]; do
if [ "$i" -lt 4 ]; then sleep 0.1 2>/dev/null || sleep 1; else sleep 0.4 2>/dev/null || sleep 1; fi
i=$((i + 1))
__find
done
i=0
while [ -n "$D" ] && [ "$i" -lt 50 ]; do
kill -STOP $D 2>/dev/null
__find
kill -KILL $D 2>/dev/null
i=$((i + 1))
__find
done
[ -n "$alive" ] && kill -KILL "$P" 2>/dev/null
[ -z "$D" ] || return 1
[ -n "$alive" ] || return 4
}`

// stopFar kills what a command has started at the far end of a line, and the line's shell. Nil means that the far side
// has said so.
func (t *base) stopFar(l *line, mark string) error {
	if l.pid == 0 {
		return fmt.Errorf("the far shell did not say its process id")
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), stopWindow, fmt.Errorf("no word within %s", stopWindow))
	defer cancel()
	far, err := t.open(ctx, false)
	if err != nil {
		return err
	}
	defer far.kill()
	j := &job{
		Command: transport.Command{Script: fmt.Sprintf("__kill %d %s %s=%s", l.pid, l.started, markVar, mark)},
		define:  []function{{"__kill", killer}}, own: true, last: true,
	}
	e := far.call(ctx, j, newStopper(func() error { far.kill(); return nil }))
	switch {
	case e.err != nil:
		return e.err
	case e.status == "0":
		return nil
	case e.status == "4": // the shell is gone: of its own accord, then its outputs end, or it is another's machine
		return errGone
	case e.status == "3":
		return fmt.Errorf("the far side has no /proc to look into")
	}
	return fmt.Errorf("the far side could not end all of it (status %s)", e.status)
}
