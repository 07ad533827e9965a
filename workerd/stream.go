package workerd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/execs"
	"github.com/sandbus/sandbus/workerd/proc"
)

// The bounds of a streaming exec's request.
const (
	maxStopLimit    = 1 << 30
	maxHeadTail     = 64 << 20 // it is held in memory
	defaultSpool    = 256 << 20
	maxSpool        = 16 << 30
	minMemory       = 1 << 20
	maxCommandShown = 256
	coalesceFor     = 2 * time.Millisecond // how long a small chunk behind another one waits for company
	coalesceUpTo    = bus.ChunkBytes / 2
	noLimit         = -1
)

// startExec serves exec.start. The op is the exec's id, and the name of the stream to the one who started it.
func (w *Worker) startExec(req *bus.Request) {
	var m sandbusv1.ExecStartRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	spec, err := w.spec(req, &m)
	if err != nil {
		req.Fail(err)
		return
	}
	out, err := req.Outgoing(m.GetWindow())
	if err != nil {
		req.Fail(err)
		return
	}
	if cause := req.Fenced(); cause != nil { // in this moment
		req.Fail(cause)
		return
	}
	if errors.Is(context.Cause(ctx), bus.ErrAborted) { // before it came
		req.EndStream(out, &sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}})
		return
	}
	e, _, err := w.execs.Start(spec)
	if err != nil {
		req.EndStream(out, &sandbusv1.StreamEnd{Error: bus.ToWire(execError(err))})
		return
	}
	v := &view{worker: w, req: req, exec: e, out: out, follow: !m.GetDetach(), input: m.GetStdin()}
	if !m.GetDetach() {
		v.own(ctx)
	}
	v.serve(ctx)
}

// execError gives an error of the manager its code.
func execError(err error) error {
	code := sandbusv1.Code_CODE_INTERNAL
	switch {
	case errors.Is(err, execs.ErrConflict):
		code = sandbusv1.Code_CODE_CONFLICT
	case errors.Is(err, execs.ErrBusy):
		code = sandbusv1.Code_CODE_BUSY
	case errors.Is(err, execs.ErrStopping):
		code = sandbusv1.Code_CODE_DRAINING
	case errors.Is(err, execs.ErrEnded), errors.Is(err, execs.ErrNoTerminal):
		code = sandbusv1.Code_CODE_CONFLICT
	}
	return bus.Errorf(code, "%v", err)
}

// attachExec serves exec.attach.
func (w *Worker) attachExec(req *bus.Request) {
	var m sandbusv1.ExecAttachRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	e, err := w.findExec(bus.OpID(m.GetExecId()))
	if err == nil && e.Owner() != "" && e.Owner() != string(req.Harness) {
		err = bus.Errorf(sandbusv1.Code_CODE_PERMISSION, "exec %s: it was started under a lease of harness %s, whose alone its output is", e.ID(), e.Owner())
	}
	if err == nil && m.GetOffset() < 0 {
		err = invalid("offset %d: want 0 or more", m.GetOffset())
	}
	if err == nil {
		err = checkWindow(m.GetWindow())
	}
	if err != nil {
		req.Fail(err)
		return
	}
	out, err := req.Outgoing(m.GetWindow())
	if err != nil {
		req.Fail(err)
		return
	}
	v := &view{worker: w, req: req, exec: e, out: out, offset: m.GetOffset(), follow: !m.GetNoFollow(), input: m.GetStdin(), attached: true}
	v.serve(ctx)
}

func (w *Worker) findExec(id bus.OpID) (*execs.Exec, error) {
	e, ok := w.execs.Get(string(id))
	if !ok {
		return nil, bus.Errorf(sandbusv1.Code_CODE_NOT_FOUND,
			"exec %.63s: this worker does not know it; those that have ended are kept for 10 minutes, at most 64", id)
	}
	return e, nil
}

func (w *Worker) listExecs(*sandbusv1.ExecListRequest) (*sandbusv1.ExecListResponse, error) {
	return &sandbusv1.ExecListResponse{Execs: w.execs.List()}, nil
}

func (w *Worker) signalExec(id bus.OpID, req *sandbusv1.SignalRequest) (*sandbusv1.SignalResponse, error) {
	e, err := w.findExec(id)
	if err != nil {
		return nil, err
	}
	sig, err := proc.ParseSignal(req.GetSignal())
	if err != nil {
		return nil, invalid("%v", err)
	}
	if err := e.Signal(sig); err != nil {
		return nil, execError(fmt.Errorf("exec %s: %w", id, err))
	}
	return &sandbusv1.SignalResponse{}, nil
}

func (w *Worker) resizeExec(id bus.OpID, req *sandbusv1.ResizeRequest) (*sandbusv1.ResizeResponse, error) {
	e, err := w.findExec(id)
	if err != nil {
		return nil, err
	}
	size, err := terminalSize(req.GetSize())
	if err != nil {
		return nil, err
	}
	if err := e.Resize(size); err != nil {
		return nil, execError(fmt.Errorf("exec %s: %w", id, err))
	}
	return &sandbusv1.ResizeResponse{}, nil
}

// abortExec ends an exec that may have no stream any more, or one whose end waits behind much output.
func (w *Worker) abortExec(id bus.OpID) (state string, end *sandbusv1.StreamEnd) {
	e, ok := w.execs.Get(string(id))
	if !ok {
		return "", nil
	}
	if r := e.Result(); r != nil {
		return "ended", r
	}
	e.Abort()
	return "running", nil
}

// view is one reader of an exec.
type view struct {
	worker   *Worker
	req      *bus.Request
	exec     *execs.Exec
	out      *bus.Sender
	offset   int64
	follow   bool   // until the exec ends
	claim    uint64 // of the one who asked for the start: the exec ends with the last of them (see own)
	input    bool   // it brings input
	attached bool
	omitted  int64
}

// own makes the view the one whose absence ends the exec, in place of one that asked for the same start before. That one
// was told to end before this view's handler began, so it cannot claim the exec behind it.
func (v *view) own(ctx context.Context) {
	v.worker.claiming.Lock()
	defer v.worker.claiming.Unlock()
	if !errors.Is(context.Cause(ctx), bus.ErrReplaced) {
		v.claim = v.exec.Claim()
	}
}

// owner says whether the exec ends with this view.
func (v *view) owner() bool { return v.exec.Claimed(v.claim) }

// serve streams started, output and end.
func (v *view) serve(ctx context.Context) {
	if !v.attached {
		// An abort of the exec's own op ends the exec; one of a stream that is attached to it ends that stream.
		stop := context.AfterFunc(ctx, func() {
			cause := context.Cause(ctx)
			if errors.Is(cause, bus.ErrAborted) || errors.Is(cause, bus.ErrFenced) && !v.exec.Detached() {
				v.exec.Abort()
			}
		})
		defer stop()
	}
	reader := v.exec.Log.Read(v.offset, v.exec.Patient())
	defer reader.Close()
	select {
	case <-v.exec.Started():
	case <-v.exec.Done():
	}
	var err error
	if v.exec.PID() != 0 {
		err = v.start()
	}
	if v.input && err == nil {
		feeding, unfeed := context.WithCancelCause(ctx)
		fed := make(chan struct{})
		v.worker.feeders.Go(func() {
			defer close(fed)
			v.feed(feeding)
		})
		defer func() {
			unfeed(errEndOfView)
			if !errors.Is(context.Cause(ctx), bus.ErrReplaced) { // else it may sit in a write that only the exec's end ends
				<-fed
			}
		}()
		defer v.closeInput()
	}
	if err == nil {
		err = v.copy(ctx, reader)
	}
	v.finish(ctx, err)
}

var errEndOfView = errors.New("the stream of the exec has ended")

// closeInput lets a feeder go that sits in a write: the exec has ended, or its owner is gone.
func (v *view) closeInput() {
	if v.exec.Result() != nil || v.owner() {
		_ = v.exec.Input().Close() // it may be closed already
	}
}

func (v *view) start() error {
	m := &sandbusv1.ExecStarted{Pid: int64(v.exec.PID())}
	if v.input {
		m.StdinWindow = bus.DefaultWindow
	}
	body, err := pb.Marshal(m)
	if err != nil {
		return err
	}
	return v.out.Write(context.Background(), bus.FrameStarted, body)
}

// copy sends what the reader finds. Small chunks that follow one another closely leave together.
func (v *view) copy(ctx context.Context, r *execs.Reader) error {
	ctx, stop := v.patientWith(ctx)
	defer stop()
	var last time.Time
	for {
		if wait := coalesceFor - time.Since(last); wait > 0 && !last.IsZero() {
			v.gather(ctx, r, wait)
		}
		chunk := bus.NewChunk()
		p, err := r.Next(ctx, chunk.Bytes(), v.follow)
		if err != nil || p.End {
			return err
		}
		switch {
		case p.Gap > 0:
			v.omitted += p.Gap
			err = v.out.WriteGap(p.Gap)
		default:
			kind := bus.FrameStdout
			if p.Stream == execs.Stderr {
				kind = bus.FrameStderr
			}
			err = v.out.WriteChunk(ctx, kind, chunk, p.Bytes)
		}
		if err != nil {
			return err
		}
		last = time.Now()
	}
}

// patientWith is a context for output. An abort of the exec itself, or the worker's end, does not cut off what it has
// printed; a reader that is gone does.
func (v *view) patientWith(ctx context.Context) (_ context.Context, stop func()) {
	patient, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if v.attached || !errors.Is(cause, bus.ErrAborted) && !errors.Is(cause, bus.ErrStopping) {
			cancel(cause)
		}
	})
	return patient, func() {
		forget()
		cancel(nil)
	}
}

// gather waits for more output, but not for long.
func (v *view) gather(ctx context.Context, r *execs.Reader, wait time.Duration) {
	n, closed, changed := r.Ready()
	if n == 0 || n >= coalesceUpTo || closed {
		return // nothing to send yet: it will wait there; or enough
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	for {
		select {
		case <-changed:
			if n, closed, changed = r.Ready(); n >= coalesceUpTo || closed {
				return
			}
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// finish sends the end. Nobody is left to wait for the exec when its starter's stream has broken: then it ends, unless
// somebody else reads it or it was detached.
func (v *view) finish(ctx context.Context, err error) {
	if cause := v.req.Fenced(); cause != nil {
		v.req.Fail(cause) // whoever has lost the lease may not be there to acknowledge an end
		return
	}
	if err != nil {
		if v.owner() && !errors.Is(err, bus.ErrReplaced) && v.exec.Log.Readers() <= 1 {
			v.exec.Abort()
		}
		if !v.attached || !errors.Is(context.Cause(ctx), bus.ErrAborted) {
			v.worker.cfg.Logger.Warn("stream of an exec ended early", "exec", v.exec.ID(), "error", err)
			return
		}
	}
	end := &sandbusv1.StreamEnd{Running: true}
	if v.follow && err == nil {
		<-v.exec.Done() // the log is closed: it is a matter of moments
	}
	if r := v.exec.Result(); r != nil && err == nil {
		end, _ = pb.Clone(r).(*sandbusv1.StreamEnd)
	} else {
		end.StdoutBytes, end.StderrBytes = v.exec.Log.Totals()
	}
	end.OmittedBytes = v.omitted
	v.req.EndStream(v.out, end)
}

// feed copies the op's input to the command. A command that closes its input early is no error: the rest is taken and
// thrown away.
func (v *view) feed(ctx context.Context) {
	in := v.exec.Input()
	broken := false
	for {
		f, err := v.req.Incoming().Next(ctx)
		if err != nil {
			return
		}
		if f.Kind == bus.FrameEnd {
			if !v.attached || !v.exec.OnTerminal() {
				_ = in.Close() // it may be closed already
			}
			return
		}
		if f.Kind == bus.FrameData && !broken {
			_, err := in.Write(f.Body)
			broken = err != nil
		}
	}
}

// spec checks a request and says what it asks for.
func (w *Worker) spec(req *bus.Request, m *sandbusv1.ExecStartRequest) (s execs.Spec, err error) {
	s = execs.Spec{ID: string(req.Op), Stdin: m.GetStdin(), Spool: m.GetSpool(), Detach: m.GetDetach(), Memory: m.GetMemoryLimit()}
	if s.Lease = m.GetMeta().GetLease(); s.Lease != "" {
		s.Owner = string(req.Harness)
	}
	if s.ID == "" || m.GetMeta().GetOp() == "" {
		return s, invalid("an exec needs an op: it is the exec's id")
	}
	if s.Fingerprint, err = fingerprint(m); err != nil {
		return s, err
	}
	if err := w.specCommand(&s, m); err != nil {
		return s, err
	}
	env, err := checkEnv(m.GetEnv(), false)
	if err != nil {
		return s, err
	}
	s.Proc.Env = append(append([]string{}, w.env...), env...)
	if s.Proc.Dir, err = w.dir(bus.FromText(m.GetCwd(), m.GetCwdRaw())); err != nil {
		return s, err
	}
	if s.Proc.Dir == "" {
		s.Proc.Dir = w.cfg.Dir
	}
	if s.Timeout, err = checkTimeout("timeout", m.GetTimeoutMs(), maxTimeout); err != nil {
		return s, err
	}
	if s.IdleTimeout, err = checkTimeout("idle timeout", m.GetIdleTimeoutMs(), maxTimeout); err != nil {
		return s, err
	}
	if s.Proc.Grace, err = checkTimeout("grace", m.GetGraceMs(), maxGrace); err != nil {
		return s, err
	}
	if err := checkWindow(m.GetWindow()); err != nil {
		return s, err
	}
	s.Proc.Merge = m.GetMergeStderr()
	if m.GetTerminal() != nil {
		size, err := terminalSize(m.GetTerminal())
		if err != nil {
			return s, err
		}
		s.Terminal = &size
		if proc.Getenv(s.Proc.Env, "TERM") == "" {
			s.Proc.Env = append(s.Proc.Env, "TERM=xterm-256color")
		}
	}
	if n := s.Memory; n != 0 && n < minMemory {
		return s, invalid("memory limit %d: want at least %d bytes, or 0 for none", n, minMemory)
	}
	return s, specOutput(&s, m, w.cfg.MaxOutput)
}

func (w *Worker) specCommand(s *execs.Spec, m *sandbusv1.ExecStartRequest) error {
	argv := bus.FromTexts(m.GetArgv(), m.GetArgvRaw())
	script := bus.FromText(m.GetScript(), m.GetScriptRaw())
	if (len(argv) > 0) == (script != "") {
		return invalid("want either argv or a script that is not empty")
	}
	if script != "" {
		s.Script, s.Command = script, script
		if err := checkScript(script); err != nil {
			return err
		}
	} else {
		s.Proc.Argv, s.Command = argv, strings.Join(argv, " ")
	}
	if len(s.Command) > maxCommandShown {
		s.Command = s.Command[:maxCommandShown]
	}
	s.Command = strings.ToValidUTF8(s.Command, "\uFFFD")
	for i, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return invalid("argument %d has a NUL byte", i)
		}
		if len(a) > maxVariable {
			return invalid("argument %d has %d bytes, the system's bound is %d: pass it on standard input or in a file", i, len(a), maxVariable)
		}
	}
	return nil
}

// specOutput checks what is asked of the output; most, when not zero, is the operator's bound and all that one gets.
func specOutput(s *execs.Spec, m *sandbusv1.ExecStartRequest, most int64) error {
	s.HeadTail = m.GetOutputMode() == sandbusv1.OutputMode_OUTPUT_MODE_HEADTAIL
	bound := int64(maxStopLimit)
	if s.HeadTail {
		bound = maxHeadTail
	}
	s.Limit = m.GetOutputLimit()
	switch {
	case s.Limit == 0:
		s.Limit = defaultOutput
	case s.Limit == noLimit && !s.HeadTail:
	case s.Limit < 0 || s.Limit > bound:
		return invalid("output limit %d: want 1 to %d bytes, 0 for %d, or -1 for none (not with headtail)", s.Limit, bound, defaultOutput)
	}
	if most > 0 && (s.Limit < 0 || s.Limit > most) {
		s.Limit = most
	}
	s.SpoolLimit = m.GetSpoolLimit()
	if s.SpoolLimit < 0 || s.SpoolLimit > maxSpool {
		return invalid("spool limit %d: want 1 to %d bytes, or 0 for %d", s.SpoolLimit, int64(maxSpool), defaultSpool)
	}
	if s.SpoolLimit == 0 {
		s.SpoolLimit = defaultSpool
	}
	return nil
}

func checkWindow(n int64) error {
	if n != 0 && n != bus.ClampWindow(n) {
		return invalid("window %d: want %d to %d bytes, or 0 for %d", n, bus.MinWindow, bus.MaxWindow, bus.DefaultWindow)
	}
	return nil
}

func terminalSize(t *sandbusv1.Terminal) (execs.Size, error) {
	if t.GetCols() < 1 || t.GetCols() > 65535 || t.GetRows() < 1 || t.GetRows() > 65535 {
		return execs.Size{}, invalid("terminal of %d columns and %d rows: want 1 to 65535 of each", t.GetCols(), t.GetRows())
	}
	return execs.Size{Cols: uint16(t.GetCols()), Rows: uint16(t.GetRows())}, nil
}

// fingerprint is the content of a request apart from what may differ when it is sent again.
func fingerprint(m *sandbusv1.ExecStartRequest) ([32]byte, error) {
	c, _ := pb.Clone(m).(*sandbusv1.ExecStartRequest)
	c.Meta, c.Window = nil, 0
	b, err := pb.MarshalOptions{Deterministic: true}.Marshal(c)
	return sha256.Sum256(b), err
}
