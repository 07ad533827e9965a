package command

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
)

// workerLeave is how long a worker may take to go when its input has ended: it ends its commands first.
const workerLeave = 20 * time.Second

// errNotThere says that the far shell has not found the program.
var errNotThere = fmt.Errorf("%w: it is not there", errNoWorker)

// workerLine is one process of the prefix with a worker at its far end.
type workerLine struct {
	line   *line
	direct *harnesslib.Direct
	over   transport.Transport
	log    lastWords
}

// openWorker starts a process of the prefix whose shell makes way for the worker. Errors: errNotThere, errNoWorker of
// one that does not run there, ErrUnreachable, the context's cause.
func openWorker(ctx context.Context, cfg *Config, path string, log *slog.Logger) (_ *workerLine, err error) {
	argv, _ := cfg.argv()
	l, err := startLine(cfg, argv)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", transport.ErrUnreachable, argv[0], err)
	}
	defer func() {
		if err != nil {
			l.kill()
		}
	}()
	found, none := rand.Text(), rand.Text()
	say := func(mark string) string { // in halves: a terminal's echo is not an answer
		return fmt.Sprintf(`printf '%%s%%s\n' '%s' '%s'`, mark[:len(mark)/2], mark[len(mark)/2:])
	}
	dir := ""
	if cfg.Dir != "" {
		dir = " --dir " + transport.Quote(cfg.Dir)
	}
	program := transport.Quote(path)
	_ = l.send(fmt.Sprintf("{ if command -v %s >/dev/null 2>&1; then %s; exec %s --stdio%s; fi; %s; exit 0; }\n", program, say(found), program, dir, say(none))) // who does not take it has ended, which shows
	out := &answer{want: []string{found + "\n", found + "\r\n", none + "\n", none + "\r\n"}}
	if err := l.await(ctx, cfg, out, nil); err != nil {
		return nil, err
	}
	if bytes.Contains(out.got, []byte(none)) {
		return nil, fmt.Errorf("%w: %s behind %s", errNotThere, path, cfg.Prefix[0])
	}
	_, rest, _ := bytes.Cut(out.got, []byte(found))
	if bytes.HasPrefix(rest, []byte("\r")) {
		return nil, fmt.Errorf("%w: %s gives its command a terminal, which changes bytes: leave out its option for one (-t)", transport.ErrUnreachable, cfg.Prefix[0])
	}
	w := &workerLine{line: l, log: lastWords{b: l.noise.got, over: make(chan struct{})}}
	l.pumps.Go(func() { w.log.take(l.errOut.pieces) })
	in := &workerOutput{line: l, rest: rest[1:]}
	greeting, err := in.greeting(ctx)
	if err != nil {
		return nil, w.notStarted(ctx, path, err)
	}
	w.direct, err = harnesslib.OpenDirect(greeting, in, l.stdin, log)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNoWorker, path, err)
	}
	w.over = over(w)
	return w, nil
}

// notStarted is the error of a worker that ended, or said nothing, instead of serving.
func (w *workerLine) notStarted(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select { // the end of its log says why, and comes with its own
	case <-w.log.over:
	case <-time.After(leaveLimit):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-w.line.exited:
	case <-time.After(leaveLimit):
	}
	return fmt.Errorf("%w: %s does not serve (%w): %s: %s", errNoWorker, path, err, w.state(), w.log.String())
}

// state is how the near process has ended.
func (w *workerLine) state() string {
	select {
	case <-w.line.exited:
		return w.line.state
	default:
		return "it runs"
	}
}

// close ends the worker, and waits until it is gone with all that it has started.
func (w *workerLine) close() {
	w.direct.Close() // closes the worker's input, and our end of its output when it has gone
	w.line.kill()
}

// workerOutput is what the worker writes.
type workerOutput struct {
	line *line
	rest []byte // of a piece that was longer than a Read's buffer
}

func (o *workerOutput) Read(b []byte) (int, error) {
	if len(o.rest) == 0 {
		piece, ok := <-o.line.out.pieces
		if !ok {
			return 0, io.EOF
		}
		o.rest = piece
	}
	n := copy(b, o.rest)
	o.rest = o.rest[n:]
	return n, nil
}

// Close waits until the worker has gone, which the end of its input asks of it, and makes it go when it does not. What
// it still writes has to be read meanwhile.
func (o *workerOutput) Close() error {
	limit := time.NewTimer(workerLeave)
	defer limit.Stop()
	select {
	case <-o.line.exited:
	case <-limit.C:
	}
	o.line.kill()
	return nil
}

// errGreeting says that no worker has named itself.
var errGreeting = errors.New("it prints something else than a worker's first line")

// greeting reads the worker's first line, byte by byte: what follows is not for us.
func (o *workerOutput) greeting(ctx context.Context) (string, error) {
	var line []byte
	for {
		if len(o.rest) == 0 {
			select {
			case piece, ok := <-o.line.out.pieces:
				if !ok {
					return "", io.ErrUnexpectedEOF
				}
				o.rest = piece
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		before, after, found := bytes.Cut(o.rest, []byte("\n"))
		line = append(line, before...)
		if len(line) > bus.MaxPipeGreeting {
			return "", errGreeting
		}
		if found {
			o.rest = after
			return string(line), nil
		}
		o.rest = nil
	}
}

// lastWords keeps the end of a worker's log, for an error.
type lastWords struct {
	over chan struct{} // closed when there is no more

	mu sync.Mutex // guards the field below
	b  []byte
}

// keptLog is how much of it is kept, in bytes.
const keptLog = 2 << 10

func (l *lastWords) take(pieces <-chan []byte) {
	defer close(l.over)
	for b := range pieces {
		l.mu.Lock()
		l.b = append(l.b, b...)
		l.b = l.b[max(0, len(l.b)-keptLog):]
		l.mu.Unlock()
	}
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(l.b)), "?")
}
