package bus

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

const (
	// pipeHeader is what stands before each message on a pipe, in bytes: u32 length of what follows it | u16 length of
	// the subject | u16 length of the reply subject, big endian.
	pipeHeader = 8
	// pipeMessage bounds the payload of a message on a pipe, in bytes: the hub's usual bound.
	pipeMessage = 1 << 20
	// pipeSubjects bounds the two subjects of a message together, in bytes.
	pipeSubjects = 1 << 10
	// pipeQueue bounds what waits to be written, in bytes. Credit bounds each stream, so that it takes very many of them
	// to get there; what does not fit is lost as on the network, and recovered in the same way.
	pipeQueue = 64 << 20
)

// greetingWord begins the line by which a worker at the end of a pipe names itself.
const greetingWord = "sandbus-pipe/1"

// MaxPipeGreeting bounds that line, in bytes.
const MaxPipeGreeting = 512

// PipeGreeting is the line that a worker writes to its pipe, before the first message, when it serves.
func PipeGreeting(t Target) string {
	return fmt.Sprintf("%s %s %s %s\n", greetingWord, t.Zone, t.Sandbox, t.Instance)
}

// ParsePipeGreeting reads such a line, with or without its end. Errors: it is none.
func ParsePipeGreeting(line string) (Target, error) {
	f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
	if len(f) != 4 || f[0] != greetingWord || !isToken(f[1]) || !isToken(f[2]) || !isToken(f[3]) {
		return Target{}, fmt.Errorf("%w: its first line is %.80q, want %q and three names", errPipe, line, greetingWord)
	}
	return Target{Zone: Zone(f[1]), Sandbox: SandboxID(f[2]), Instance: InstanceID(f[3])}, nil
}

// PipeConfig says who speaks over a pair of pipes.
type PipeConfig struct {
	// Identity is who we are for the other end. There is no credential: who has the pipes is believed.
	Identity Identity
	// Logger gets connection events; nil discards them.
	Logger *slog.Logger
	// OnClosed is called once when the connection has ended without Close; nil means nobody.
	OnClosed func(error)
}

// NewPipe is a connection over a pair of pipes to one other end, without a hub: what one end publishes the other
// receives, if it has subscribed to it. It carries requests, answers and streams; there is no presence, no header, and
// no second try: when a pipe ends the connection has ended for good. Close closes both, w first; a Close of r must end a
// Read that is under way, or what holds it has to end by itself.
func NewPipe(cfg PipeConfig, r io.ReadCloser, w io.WriteCloser) *Conn {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Conn{
		id: cfg.Identity, log: cfg.Logger, meter: new(Meter), url: "pipe", endLife: func(error) {},
		closed: make(chan struct{}), connected: make(chan struct{}), again: map[any]func(){},
	}
	close(c.connected)
	p := &pipe{r: r, w: w, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	p.over = func(err error) { c.onClosed(err, cfg.OnClosed) }
	c.pipe = p
	p.wg.Go(p.write)
	p.wg.Go(p.read)
	return c
}

// pipe is what a connection over pipes has in place of a NATS client.
type pipe struct {
	r     io.ReadCloser
	w     io.WriteCloser
	over  func(error)   // told, once, that the pipe has ended
	wake  chan struct{} // something is to be written
	ended chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	err     error      // why it has ended
	pending []byte     // messages that are to be written
	written []func()   // told when all that is pending now is written
	subs    []pipeSub
}

// pipeSub is a subscription of this end.
type pipeSub struct {
	subject string
	take    func(*nats.Msg) // must not block
}

func (p *pipe) end(err error) {
	p.mu.Lock()
	first := p.err == nil
	if first {
		p.err = err
		close(p.ended)
	}
	p.mu.Unlock()
	if first {
		p.over(err)
	}
}

// subscribe gets the messages of a subject for as long as the connection lives.
func (p *pipe) subscribe(subject string, take func(*nats.Msg)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = append(p.subs, pipeSub{subject, take})
}

// publish queues a message. Its errors are those of nats.go: the pipe has ended; too much waits.
func (p *pipe) publish(subject, reply string, payload []byte) error {
	if len(payload) > pipeMessage || len(subject)+len(reply) > pipeSubjects {
		return nats.ErrMaxPayload
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nats.ErrConnectionClosed
	}
	if len(p.pending) > pipeQueue {
		return nats.ErrReconnectBufExceeded
	}
	b := binary.BigEndian.AppendUint32(p.pending, uint32(pipeHeader-4+len(subject)+len(reply)+len(payload)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(subject)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(reply)))
	b = append(b, subject...)
	b = append(b, reply...)
	p.pending = append(b, payload...)
	p.wakeLocked()
	return nil
}

func (p *pipe) wakeLocked() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// flush returns when all that was published before is written. Errors: ErrClosed, the context's.
func (p *pipe) flush(ctx context.Context) error {
	done := make(chan struct{})
	p.mu.Lock()
	p.written = append(p.written, func() { close(done) })
	p.wakeLocked()
	p.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-p.ended:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keptBuffer is the largest buffer that is used again, in bytes: one burst must not be held for good.
const keptBuffer = 1 << 20

func (p *pipe) write() {
	var spare []byte
	for {
		select {
		case <-p.wake:
		case <-p.ended:
			return
		}
		p.mu.Lock()
		b, told := p.pending, p.written
		p.pending, p.written = spare[:0], nil
		p.mu.Unlock()
		if len(b) > 0 {
			if _, err := p.w.Write(b); err != nil {
				p.end(fmt.Errorf("write to the pipe: %w", err))
				return
			}
		}
		for _, tell := range told {
			tell()
		}
		if spare = b; cap(b) > keptBuffer {
			spare = nil
		}
	}
}

func (p *pipe) read() {
	r := bufio.NewReaderSize(p.r, 64<<10)
	for {
		m, err := readPipeMessage(r)
		if err != nil {
			p.end(err)
			return
		}
		p.mu.Lock()
		subs := p.subs // only grows
		p.mu.Unlock()
		for _, s := range subs {
			if subjectMatches(s.subject, m.Subject) {
				s.take(m)
			}
		}
	}
}

// errPipe says that what came over a pipe is no message.
var errPipe = errors.New("the other end of the pipe does not keep to the protocol")

// readPipeMessage reads one message. Errors: io.EOF between two messages, io.ErrUnexpectedEOF in one, errPipe, those of r.
func readPipeMessage(r io.Reader) (*nats.Msg, error) {
	var h [pipeHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n, subject, reply := int(binary.BigEndian.Uint32(h[:])), int(binary.BigEndian.Uint16(h[4:])), int(binary.BigEndian.Uint16(h[6:]))
	n -= pipeHeader - 4
	if n > pipeMessage+pipeSubjects || subject+reply > min(n, pipeSubjects) || subject == 0 {
		return nil, fmt.Errorf("%w: a message of %d bytes with subjects of %d and %d, want at most %d with %d for both", errPipe, n, subject, reply, pipeMessage, pipeSubjects)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return &nats.Msg{Subject: string(b[:subject]), Reply: string(b[subject : subject+reply]), Data: b[subject+reply:]}, nil
}

// subjectMatches says whether a subject is one of a pattern's, whose last token may be ">" and others "*".
func subjectMatches(pattern, subject string) bool {
	for {
		want, patterns, more := strings.Cut(pattern, ".")
		if want == ">" {
			return subject != ""
		}
		got, rest, others := strings.Cut(subject, ".")
		if got == "" || want != "*" && want != got || more != others {
			return false
		}
		if !more {
			return true
		}
		pattern, subject = patterns, rest
	}
}

// close writes what was published, and ends both pipes.
func (p *pipe) close() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	_ = p.flush(ctx) // the other end may be gone
	_ = p.w.Close()  // likewise
	_ = p.r.Close()
	p.end(ErrClosed)
	p.wg.Wait()
}
