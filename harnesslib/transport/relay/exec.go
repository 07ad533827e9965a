package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
)

// TierTrailer is the trailer in which "sandbus gateway" says which tier has served an Exec. Other relays send none.
const TierTrailer = "sandbus-tier"

// Refused is what an ExecError's message begins with when the gateway means that nothing ran.
const Refused = "refused: "

// collectedBytes is how much output a relay's worker keeps of a command that does not stream, in bytes.
const collectedBytes = transport.DefaultOutputLimit

// The causes with which a call ends that nobody answers.
var (
	errUnconfirmed = errors.New("the abort was not confirmed")
	errOver        = errors.New("the call is over")
)

// Exec runs a command. Errors: see the package transport.
func (t *Transport) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.calls.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errOver)
	defer context.AfterFunc(t.life, func() { cancel(transport.ErrClosed) })()
	res, err := t.exec(ctx, &c)
	if err != nil && errors.Is(context.Cause(ctx), transport.ErrClosed) {
		return res, fmt.Errorf("%w: %w", transport.ErrClosed, err)
	}
	return res, err
}

func (t *Transport) exec(ctx context.Context, c *transport.Command) (*transport.Result, error) {
	r, err := t.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := t.connect(ctx); err != nil {
		return nil, notRun(ctx, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, notRun(ctx, err)
	}
	// The call outlives ctx: the end of the command is waited for, also after an abort.
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(errOver)
	r.giveUp = cancel
	stream, err := t.client.Exec(t.authorize(call), &sandboxv1.ExecRequest{SandboxId: t.cfg.Sandbox, Exec: r.exec})
	if err != nil {
		return nil, r.failed(call, err)
	}
	defer r.leave()
	defer context.AfterFunc(ctx, func() { r.abort(call, false) })()
	if r.after > 0 { // the far side has this clock, too; ours is later
		late := time.AfterFunc(r.after+t.cfg.AbortWindow, func() { r.abort(call, true) })
		defer late.Stop()
	}
	return r.follow(ctx, call, stream)
}

// notRun is the error of a command that was not sent.
func notRun(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &transport.AbortError{Cause: context.Cause(ctx)}
	}
	return err
}

// running is one command on its way.
type running struct {
	t      *Transport
	c      *transport.Command
	exec   *sandboxv1.Exec
	after  time.Duration // the timeout that was sent; zero means none
	limit  int64         // bytes of each output; below zero means none
	giveUp context.CancelCauseFunc
	nonce  *cwdProbe

	mu     sync.Mutex // guards the fields below, up to the empty line
	left   bool       // the call is over
	asked  bool       // for the abort
	late   bool       // because of the timeout
	aborts sync.WaitGroup

	res    transport.Result
	outLen int64
	errLen int64
	over   bool  // an output was too long
	werr   error // of a writer
	any    bool  // something has come
}

// prepare makes the message.
func (t *Transport) prepare(ctx context.Context, c *transport.Command) (*running, error) {
	r := &running{t: t, c: c, limit: c.Limit(), after: c.Timeout}
	if r.after == 0 {
		r.after = max(0, t.cfg.Ceiling)
	}
	r.after = (r.after + time.Second - 1).Truncate(time.Second)
	var b strings.Builder
	if c.Dir != "" {
		r.nonce = newCwdProbe(c.Dir)
		b.WriteString(r.nonce.text())
	}
	if sameWriter(c.Stdout, c.Stderr) {
		b.WriteString("exec 2>&1\n")
	}
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		b.WriteString("export " + name + "=" + transport.Quote(value) + "\n")
	}
	b.WriteString(c.Script)
	stdin, err := readInput(ctx, c.Stdin, maxText-b.Len())
	if err != nil {
		return nil, notRun(ctx, err)
	}
	text, stdin := Fit(b.String(), stdin)
	if n := len(text) + len(stdin); n > maxText {
		return nil, fmt.Errorf("command: script and input have more than %d bytes, which is what a relay takes in one message", maxText)
	}
	r.exec = &sandboxv1.Exec{
		ReqId: rand.Uint64(), Command: text, Stdin: stdin, TimeoutS: uint32(r.after / time.Second), //nolint:gosec // G404: it names, and hides nothing
		Streaming: c.Streaming() || r.limit < 0 || r.limit > collectedBytes,
	}
	return r, nil
}

func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }() // of types that cannot be compared, as in os/exec: then they are not the same
	return a != nil && a == b
}

// readInput reads a whole input, one byte more than the bound at most.
func readInput(ctx context.Context, in io.Reader, bound int) ([]byte, error) {
	if in == nil {
		return nil, nil
	}
	type result struct {
		b   []byte
		err error
	}
	got := make(chan result, 1)
	go func() { // a read that blocks is not waited for: the seam says so
		b, err := io.ReadAll(io.LimitReader(in, int64(max(0, bound))+1))
		got <- result{b, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			return nil, fmt.Errorf("standard input: %w", r.err)
		}
		return r.b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// abort asks for the end, once, and gives the call up when that is not confirmed in time.
func (r *running) abort(call context.Context, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left || r.asked {
		return
	}
	r.asked, r.late = true, late
	r.aborts.Go(func() {
		limit, cancel := context.WithTimeout(call, r.t.cfg.AbortWindow)
		defer cancel()
		_, _ = r.t.client.Abort(r.t.authorize(limit), // what counts is the command's own end
			&sandboxv1.AbortRequest{SandboxId: r.t.cfg.Sandbox, ReqId: r.exec.GetReqId()})
		<-limit.Done()
		r.giveUp(errUnconfirmed) // does nothing when the call is over
	})
}

// leave waits for an abort that is under way.
func (r *running) leave() {
	r.giveUp(errOver)
	r.mu.Lock()
	r.left = true
	r.mu.Unlock()
	r.aborts.Wait()
}

// wasLate says whether the timeout was ours.
func (r *running) wasLate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.late
}

// follow takes events until the last one.
func (r *running) follow(ctx, call context.Context, stream grpc.ServerStreamingClient[sandboxv1.ExecEvent]) (*transport.Result, error) {
	var last *sandboxv1.ExecEvent
	for last == nil {
		ev, err := stream.Recv()
		switch {
		case err != nil:
			return r.result(), r.failed(call, err)
		case ev.GetChunk() != nil:
			r.any = true
			r.take(call, ev.GetChunk())
		case ev.GetEnd() != nil || ev.GetError() != nil:
			last = ev
		}
	}
	if r.nonce != nil {
		r.output(r.nonce.rest(), true)
	}
	_, _ = stream.Recv() // the trailer comes with the end of the stream
	r.res.Tier = transport.TierStream
	if tier := stream.Trailer().Get(TierTrailer); len(tier) == 1 && tier[0] == string(transport.TierFast) {
		r.res.Tier = transport.TierFast
	}
	return r.ended(ctx, last)
}

// take passes output on.
func (r *running) take(call context.Context, c *sandboxv1.Chunk) {
	if r.over || r.werr != nil {
		return
	}
	data, isErr := c.GetData(), c.GetStream() == sandboxv1.Stream_STREAM_STDERR
	if isErr && r.nonce != nil {
		data = r.nonce.filter(data)
	}
	r.output(data, isErr)
	if r.over || r.werr != nil {
		r.abort(call, false)
	}
}

func (r *running) output(data []byte, isErr bool) {
	have := &r.outLen
	collected, w := &r.res.Stdout, r.c.Stdout
	if isErr {
		have, collected, w = &r.errLen, &r.res.Stderr, r.c.Stderr
	}
	if room := r.limit - *have; r.limit >= 0 && int64(len(data)) > room {
		data, r.over = data[:room], true
	}
	*have += int64(len(data))
	switch {
	case len(data) == 0:
	case r.c.Streaming():
		if w != nil {
			_, r.werr = w.Write(data)
		}
	default:
		*collected = append(*collected, data...)
	}
	if r.over && !r.c.Streaming() {
		*collected = append(*collected, transport.TruncatedMarker...)
	}
}

// result is what came, of a command that has no exit code.
func (r *running) result() *transport.Result {
	r.res.Truncated = r.over
	return &r.res
}

// ended says what a last event means.
func (r *running) ended(ctx context.Context, last *sandboxv1.ExecEvent) (*transport.Result, error) {
	res := r.result()
	if r.werr != nil {
		return res, r.werr
	}
	if r.over {
		return res, nil
	}
	if e := last.GetError(); e != nil {
		return res, r.execError(ctx, e.GetMessage())
	}
	end := last.GetEnd()
	code := int(end.GetExitCode())
	switch {
	case end.GetTruncated():
		res.Truncated = true
		if !r.c.Streaming() {
			res.Stdout = append(res.Stdout, transport.TruncatedMarker...)
		}
		return res, nil
	case code > 255:
		return res, fmt.Errorf("%w: the relay says exit code %d", transport.ErrLost, code)
	case code >= 0:
		if out := r.nonce.failed(code); out != nil {
			return nil, &harnesslib.ExitError{Outcome: *out}
		}
		res.ExitCode = &code
		return res, nil
	case r.wasLate():
		return res, &transport.TimeoutError{After: r.after}
	case ctx.Err() != nil:
		return res, &transport.AbortError{Cause: context.Cause(ctx)}
	}
	if code < -1 { // -1 is what relays send that do not name signals
		res.Signal = strings.TrimPrefix(unix.SignalName(unix.Signal(-code)), "SIG")
	}
	return res, nil
}

func (r *running) execError(ctx context.Context, message string) error {
	message = strings.ToValidUTF8(message[:min(len(message), 4096)], "\uFFFD")
	if text, ok := strings.CutPrefix(message, "timeout:"); ok {
		after := r.after
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			after = time.Duration(n) * time.Second
		}
		return &transport.TimeoutError{After: after}
	}
	switch {
	case ctx.Err() != nil:
		return &transport.AbortError{Cause: context.Cause(ctx)}
	case strings.HasPrefix(message, Refused) && !r.any:
		return fmt.Errorf("%w: the relay says: %s", transport.ErrUnreachable, strings.TrimPrefix(message, Refused))
	}
	return fmt.Errorf("%w: the relay says: %s", transport.ErrLost, message)
}

// failed gives the error of a stream that ended without a last event its meaning.
func (r *running) failed(call context.Context, err error) error {
	if cause := context.Cause(call); errors.Is(cause, errUnconfirmed) {
		return fmt.Errorf("%w: %w within %s", transport.ErrLost, errUnconfirmed, r.t.cfg.AbortWindow)
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the relay's stream ended without saying how", transport.ErrLost)
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.NotFound, codes.InvalidArgument, codes.AlreadyExists, codes.Unimplemented,
		codes.FailedPrecondition:
		if !r.any {
			return fmt.Errorf("%w: relay %s: %w", transport.ErrUnreachable, r.t.cfg.Addr, err)
		}
	default:
	}
	return fmt.Errorf("%w: relay %s: %w", transport.ErrLost, r.t.cfg.Addr, err)
}

// cwdProbe finds out that a directory could not be entered: the shell text says so on stderr before anything else,
// behind a number that nobody can guess.
type cwdProbe struct {
	dir    string
	marker string
	held   []byte // the start of stderr, as long as it may be the marker
	passed bool
}

const errnoDigits = 3

func newCwdProbe(dir string) *cwdProbe {
	return &cwdProbe{dir: dir, marker: fmt.Sprintf("%016x%016x:", rand.Uint64(), rand.Uint64())} //nolint:gosec // G404: told apart from output, not kept from anybody
}

// text is what goes in front of the script.
func (p *cwdProbe) text() string {
	dir := transport.Quote(p.dir)
	fail := func(errno syscall.Errno) string {
		return fmt.Sprintf("{ printf '%s%0*d' >&2; exit 126; }", p.marker, errnoDigits, int(errno))
	}
	return "CDPATH= cd -- " + dir + " 2>/dev/null || if [ ! -e " + dir + " ]; then " + fail(syscall.ENOENT) +
		"; elif [ ! -d " + dir + " ]; then " + fail(syscall.ENOTDIR) + "; else " + fail(syscall.EACCES) + "; fi\n"
}

// filter holds back what may be the marker.
func (p *cwdProbe) filter(data []byte) []byte {
	if p.passed {
		return data
	}
	p.held = append(p.held, data...)
	n := min(len(p.held), len(p.marker))
	if string(p.held[:n]) == p.marker[:n] && len(p.held) <= len(p.marker)+errnoDigits {
		return nil
	}
	return p.rest()
}

// rest is what was held back and is no marker.
func (p *cwdProbe) rest() []byte {
	if p.passed || len(p.held) == len(p.marker)+errnoDigits {
		return nil
	}
	p.passed = true
	held := p.held
	p.held = nil
	return held
}

// failed is the outcome of a command whose directory could not be entered; nil for another one.
func (p *cwdProbe) failed(code int) *harnesslib.Outcome {
	if p == nil || code != 126 || p.passed {
		return nil
	}
	number, ok := strings.CutPrefix(string(p.held), p.marker)
	errno, err := strconv.Atoi(number)
	if !ok || err != nil {
		return nil
	}
	return &harnesslib.Outcome{
		Kind: harnesslib.StartFailed, Code: code, Stage: "cwd", Errno: syscall.Errno(errno),
		Message: fmt.Sprintf("working directory %.256q: %v", p.dir, syscall.Errno(errno)),
	}
}
