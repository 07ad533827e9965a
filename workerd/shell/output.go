package shell

import (
	"bytes"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// output keeps what a command prints, up to its limit.
type output struct {
	limit int64
	stop  chan sandbusv1.OutcomeKind // is told once when the limit is passed; must have room

	mu     sync.Mutex // guards the fields below
	stdout bytes.Buffer
	stderr bytes.Buffer
	over   bool
}

// take keeps a chunk of one of the buffers; it returns false when there is no room for more.
func (o *output) take(to *bytes.Buffer, b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	room := o.limit - int64(o.stdout.Len()+o.stderr.Len())
	if int64(len(b)) <= room {
		to.Write(b)
		return true
	}
	to.Write(b[:room])
	if !o.over {
		o.over = true
		o.stop <- sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT
	}
	return false
}

// outcome is that of the command: one that has ended by itself with output over the limit counts as ended by it.
func (o *output) outcome(end *sandbusv1.Outcome) *sandbusv1.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over && end.GetKind() == sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED {
		return &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_OUTPUT_LIMIT}
	}
	return end
}

// feed writes a text into a pipe and closes it, in a goroutine of its own; a close of the file that it returns ends
// that. A reader that stops early is not an error of the command.
func feed(w rawFD, text []byte, wg *sync.WaitGroup) (*os.File, error) {
	if err := unix.SetNonblock(int(w), true); err != nil { // so that a close ends a write
		w.close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(w), "|1")
	wg.Go(func() {
		_, _ = f.Write(text)
		closeAll(f)
	})
	return f, nil
}
