package shell

import (
	"bytes"
	"os"
	"sync"
	"sync/atomic"
	"time"

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
// that. A reader that stops early is not an error of the command. A FIFO is not written before its reader is there:
// whoever opens one that nobody writes any more would wait for ever. begun, when not nil, is set then.
func (p *pipes) feed(w rawFD, text []byte, begun *atomic.Bool, wg *sync.WaitGroup) (*os.File, error) {
	if err := unix.SetNonblock(int(w), true); err != nil { // so that a close ends a write
		w.close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(w), "|1")
	wg.Go(func() {
		if !p.fifo || hasReader(f) {
			if begun != nil {
				begun.Store(true)
			}
			_, _ = f.Write(text)
		}
		closeAll(f)
	})
	return f, nil
}

// hasReader waits until a FIFO is opened for reading (true) or closed here. There is nothing that would tell.
func hasReader(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	for {
		alone := false
		err := raw.Control(func(fd uintptr) {
			state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			_, perr := unix.Poll(state, 0)
			alone = perr != nil || state[0].Revents&unix.POLLERR != 0
		})
		if err != nil || !alone {
			return err == nil
		}
		<-time.After(200 * time.Microsecond) // less than a fork
	}
}
