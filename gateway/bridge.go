package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
	sandboxv1 "github.com/sandbus/sandbus/schemas/sandbox/v1"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	defaultOutput = 8 << 20  // bytes of a shell.run that names no limit
	maxFastOutput = 32 << 20 // bytes: a shell.run's output is held in memory
	// maxText bounds command and input together, in bytes: they go to the worker in one message.
	maxText = maxMessage - 64<<10
)

func invalid(format string, args ...any) error {
	return bus.Errorf(sandbusv1.Code_CODE_INVALID, format, args...)
}

// serveShell serves shell.run: a sandbox/v1 worker has no shell of its own that is there already, and runs one.
func (w *worker) serveShell(ctx context.Context, m *sandbusv1.ShellRunRequest) (*sandbusv1.ShellRunResponse, error) {
	if m.GetSession() != "" {
		return nil, invalid("session %.63s: a sandbox/v1 worker has none", m.GetSession())
	}
	l := limits{timeout: milliseconds(m.GetTimeoutMs()), output: m.GetOutputLimit()}
	if l.output < 0 || l.output > maxFastOutput {
		return nil, invalid("output limit %d: want 1 to %d bytes, or 0 for %d", l.output, maxFastOutput, defaultOutput)
	}
	if l.output == 0 {
		l.output = defaultOutput
	}
	text, err := shellText(bus.FromText(m.GetScript(), m.GetScriptRaw()), bus.FromText(m.GetCwd(), m.GetCwdRaw()), m.GetEnv(), false)
	if err != nil {
		return nil, err
	}
	exec := &sandboxv1.Exec{TimeoutS: seconds(l.timeout)}
	exec.Command, exec.Stdin = relay.Fit(text, m.GetStdin())
	if err := checkText(exec); err != nil {
		return nil, err
	}
	x, err := w.enter(bus.OpID(m.GetMeta().GetOp()), contentOf(m))
	if err != nil {
		return nil, err
	}
	if err := x.start(exec); err != nil {
		return nil, err
	}
	defer x.over()
	resp := &sandbusv1.ShellRunResponse{}
	resp.Outcome, err = x.run(ctx, l, func(s sandboxv1.Stream, data []byte) error {
		if s == sandboxv1.Stream_STREAM_STDERR {
			resp.Stderr = append(resp.Stderr, data...)
		} else {
			resp.Stdout = append(resp.Stdout, data...)
		}
		return nil
	})
	return resp, err
}

// serveExec serves exec.start.
func (w *worker) serveExec(r *bus.Request) {
	var m sandbusv1.ExecStartRequest
	ctx, err := r.Decode(&m)
	if err != nil {
		r.Fail(err)
		return
	}
	exec, l, err := translate(&m)
	if err == nil && m.GetMeta().GetOp() == "" {
		err = invalid("an exec needs an op: it is the exec's id")
	}
	if err != nil {
		r.Fail(err)
		return
	}
	x, err := w.enter(r.Op, contentOf(&m))
	if err != nil {
		r.Fail(err)
		return
	}
	out, err := r.Outgoing(m.GetWindow())
	if err != nil {
		r.Fail(err)
		return
	}
	x.turn <- struct{}{} // a stream before this one has been ended, and leaves
	defer func() { <-x.turn }()
	if end := w.follow(ctx, r, out, x, exec, l); end != nil {
		r.EndStream(out, end)
	}
}

// follow runs an exec, or goes on with one that runs, and returns its end; nil when another stream goes on with it.
func (w *worker) follow(ctx context.Context, r *bus.Request, out *bus.Sender, x *remoteExec, exec *sandboxv1.Exec, l limits) *sandbusv1.StreamEnd {
	if x.end != nil || x.req != 0 { // it was asked for again: what was passed on is not kept
		err := startStream(out)
		if n := x.stdout + x.stderr; n > 0 && err == nil {
			err = out.WriteGap(n)
		}
		if err != nil || x.end != nil {
			return x.end
		}
	} else if end := w.begin(ctx, r, out, x, exec); end != nil {
		return end
	}
	outcome, err := x.run(ctx, l, func(s sandboxv1.Stream, data []byte) error {
		kind := bus.FrameStdout
		if s == sandboxv1.Stream_STREAM_STDERR {
			kind = bus.FrameStderr
		}
		// Output up to an abort is passed on; only a reader that is gone, or replaced, ends this.
		return out.Write(patient(ctx), kind, data)
	})
	if errors.Is(err, errLeft) || errors.Is(context.Cause(ctx), bus.ErrReplaced) {
		return nil
	}
	if err != nil { // the reader is gone, and nobody waits for the exec any more
		x.abort(causeCaller)
		outcome, _ = x.run(context.WithoutCancel(ctx), limits{output: -1}, func(sandboxv1.Stream, []byte) error { return nil }) // no error without a writer's
	}
	x.over()
	x.end = &sandbusv1.StreamEnd{Outcome: outcome, StdoutBytes: x.stdout, StderrBytes: x.stderr}
	return x.end
}

// patient is a context that an abort does not end: the stream itself ends with its reader.
func patient(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

func startStream(out *bus.Sender) error {
	body, err := proto.Marshal(&sandbusv1.ExecStarted{StdinWindow: bus.DefaultWindow})
	if err != nil {
		return err
	}
	return out.Write(context.Background(), bus.FrameStarted, body)
}

// begin takes the input and starts the exec. It returns an end when it did not start.
func (w *worker) begin(ctx context.Context, r *bus.Request, out *bus.Sender, x *remoteExec, exec *sandboxv1.Exec) *sandbusv1.StreamEnd {
	refused := func(err error) *sandbusv1.StreamEnd { return &sandbusv1.StreamEnd{Error: bus.ToWire(err)} }
	if err := startStream(out); err != nil {
		return refused(err)
	}
	if exec.Stdin != nil { // translate has left a mark
		stdin, err := input(ctx, r, maxText-len(exec.GetCommand()))
		if err != nil && errors.Is(context.Cause(ctx), bus.ErrAborted) {
			return &sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}}
		}
		if err != nil {
			return refused(err)
		}
		exec.Stdin = stdin
	}
	exec.Command, exec.Stdin = relay.Fit(exec.GetCommand(), exec.GetStdin())
	if err := ctx.Err(); err != nil {
		return &sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}}
	}
	if err := x.start(exec); err != nil {
		return refused(err)
	}
	return nil
}

// input takes the whole standard input.
func input(ctx context.Context, r *bus.Request, bound int) ([]byte, error) {
	var all []byte
	for {
		f, err := r.Incoming().Next(ctx)
		switch {
		case err != nil:
			return nil, err
		case f.Kind == bus.FrameEnd:
			return all, nil
		case f.Kind == bus.FrameData && len(all)+len(f.Body) > bound:
			return nil, bus.Errorf(sandbusv1.Code_CODE_TOO_LARGE,
				"the input has more than %d bytes: a sandbox/v1 worker gets it in one message; nothing ran", bound)
		case f.Kind == bus.FrameData:
			all = append(all, f.Body...)
		}
	}
}

// translate makes a request one of sandbox/v1. What such a worker cannot do is refused. A command that is to have input
// has a Stdin that is not nil.
func translate(m *sandbusv1.ExecStartRequest) (*sandboxv1.Exec, limits, error) {
	l := limits{timeout: milliseconds(m.GetTimeoutMs()), idle: milliseconds(m.GetIdleTimeoutMs()), output: m.GetOutputLimit()}
	if l.output == 0 {
		l.output = defaultOutput
	}
	for what, asked := range map[string]bool{
		"a terminal": m.GetTerminal() != nil, "detached execs": m.GetDetach(), "spool files": m.GetSpool(), "memory limits": m.GetMemoryLimit() != 0,
		"head and tail of output": m.GetOutputMode() == sandbusv1.OutputMode_OUTPUT_MODE_HEADTAIL, "a grace of the caller's": m.GetGraceMs() != 0,
	} {
		if asked {
			return nil, l, bus.Errorf(sandbusv1.Code_CODE_UNKNOWN_VERB, "a sandbox/v1 worker does not have %s", what)
		}
	}
	text := bus.FromText(m.GetScript(), m.GetScriptRaw())
	if argv := bus.FromTexts(m.GetArgv(), m.GetArgvRaw()); len(argv) > 0 {
		if text != "" {
			return nil, l, invalid("want either argv or a script")
		}
		words := make([]string, len(argv))
		for i, a := range argv {
			words[i] = transport.Quote(a)
		}
		text = "exec " + strings.Join(words, " ")
	}
	text, err := shellText(text, bus.FromText(m.GetCwd(), m.GetCwdRaw()), m.GetEnv(), m.GetMergeStderr())
	if err != nil {
		return nil, l, err
	}
	exec := &sandboxv1.Exec{Command: text, TimeoutS: seconds(l.timeout), Streaming: true}
	if m.GetStdin() {
		exec.Stdin = []byte{}
	}
	return exec, l, checkText(exec)
}

// shellText puts directory, variables and the order of outputs in front of a script, which itself stays as it is.
func shellText(script, dir string, env []*sandbusv1.EnvVar, merge bool) (string, error) {
	if script == "" {
		return "", invalid("want a program or a script that is not empty")
	}
	var b strings.Builder
	if merge {
		b.WriteString("exec 2>&1\n")
	}
	if dir != "" {
		fmt.Fprintf(&b, "CDPATH= cd -- %s || exit 126\n", transport.Quote(dir))
	}
	for _, v := range env {
		if !isName(v.GetName()) {
			return "", invalid("variable %.80q: want a shell name", v.GetName())
		}
		fmt.Fprintf(&b, "export %s=%s\n", v.GetName(), transport.Quote(bus.FromText(v.GetValue(), v.GetValueRaw())))
	}
	b.WriteString(script)
	return b.String(), nil
}

func checkText(e *sandboxv1.Exec) error {
	if i := strings.IndexByte(e.GetCommand(), 0); i >= 0 {
		return invalid("the command has a NUL byte at offset %d", i)
	}
	if n := len(e.GetCommand()) + len(e.GetStdin()); n > maxText {
		return bus.Errorf(sandbusv1.Code_CODE_TOO_LARGE, "command and input have %d bytes: a sandbox/v1 worker takes %d", n, maxText)
	}
	return nil
}

func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func milliseconds(n int64) time.Duration {
	return min(time.Duration(max(0, min(n, maxTimeout*1000)))*time.Millisecond, maxTimeout*time.Second)
}

// seconds rounds up: the worker's own clock must not run out before the one here.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

// contentOf is what a request asks for, apart from what may differ when it is sent again.
func contentOf(m proto.Message) [sha256.Size]byte {
	c := proto.Clone(m)
	switch c := c.(type) {
	case *sandbusv1.ExecStartRequest:
		c.Meta, c.Window = nil, 0
	case *sandbusv1.ShellRunRequest:
		c.Meta = nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(b)
}
