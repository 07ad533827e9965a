package tools

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
)

// Command is what a Shell runs: a fresh shell process, not login and not interactive, with its standard input at
// /dev/null, in a process group of its own.
type Command struct {
	Script  string
	Dir     string        // empty means the sandbox's
	Env     []string      // added to the sandbox's, NAME=value each
	Timeout time.Duration // zero means none
	Output  io.Writer     // standard output and error in the order of arrival
}

// Shell runs commands. The error is nil, or *harnesslib.ExitError for a command that ran and failed or did not start;
// anything else means that the fabric failed, and then the command may have run.
type Shell interface {
	Run(ctx context.Context, c Command) error
}

// shell is the Shell of a sandbox.
type shell struct{ sb *harnesslib.Sandbox }

func (s shell) Run(ctx context.Context, c Command) error {
	cmd := s.sb.ScriptCommand(c.Script)
	cmd.Dir, cmd.Env, cmd.Timeout, cmd.Stdout, cmd.Stderr = c.Dir, c.Env, c.Timeout, c.Output, c.Output
	return cmd.Run(ctx)
}

// BashParams are of Bash.
type BashParams struct {
	Command string   `json:"command"`
	Timeout *float64 `json:"timeout,omitempty"` // in seconds; nil means none
	// OnUpdate gets the end of the output so far, at most every 100 ms and never twice at once; nil means nobody. While
	// it runs the command may be held back.
	OnUpdate func(text string) `json:"-"`
}

// BashResult is what a command printed.
type BashResult struct {
	Text       string
	Output     string // the part of the output that Text shows, cleaned; without footers
	TotalLines int
	ShownLines int
	Cut        bool   // Output is not all
	FullOutput string // the file in the sandbox that has the output as it was; empty for none
	FullCapped bool   // the file has only the beginning
	ExitCode   int    // zero when the command ended in another way than by exiting
}

// BashError is a command that failed: its text is the output and then how it ended.
type BashError struct {
	Result BashResult
	Err    error // an *harnesslib.ExitError, or what went wrong on the way
}

func (e *BashError) Error() string { return e.Result.Text }
func (e *BashError) Unwrap() error { return e.Err }

const (
	maxTimeout  = 7 * 24 * time.Hour
	updateEvery = 100 * time.Millisecond
	// spillWait is how long the end of a command may wait for the file with its output.
	spillWait = 30 * time.Second
)

func checkTimeout(seconds *float64) (time.Duration, error) {
	if seconds == nil {
		return 0, nil
	}
	if s := *seconds; math.IsNaN(s) || s <= 0 || s > maxTimeout.Seconds() {
		return 0, refuse("bash: timeout %v: want more than 0 and at most %.0f; the unit is seconds", s, maxTimeout.Seconds())
	}
	return max(time.Millisecond, time.Duration(*seconds*float64(time.Second))), nil
}

// Bash runs a command. Errors: *BashError for one that did not exit with 0, or of which nobody knows how it ended.
func (t *Tools) Bash(ctx context.Context, p BashParams) (*BashResult, error) {
	if t.cfg.Shell == nil {
		return nil, lacks("bash")
	}
	if strings.TrimSpace(p.Command) == "" {
		return nil, refuse("bash: the command is empty")
	}
	timeout, err := checkTimeout(p.Timeout)
	if err != nil {
		return nil, err
	}
	out := &output{tools: t, ctx: context.WithoutCancel(ctx), onUpdate: p.OnUpdate}
	err = t.cfg.Shell.Run(ctx, Command{Script: p.Command, Dir: t.cfg.Dir, Env: t.cfg.Env, Timeout: timeout, Output: out})
	r := out.end()
	how := ending(ctx, err, p.Timeout)
	if how == "" {
		return r, nil
	}
	if ee, ok := errors.AsType[*harnesslib.ExitError](err); ok && ee.Outcome.Kind == harnesslib.Exited {
		r.ExitCode = ee.Outcome.Code
	}
	if r.Output == "" {
		r.Text = how
	} else {
		r.Text += "\n\n" + how
	}
	return nil, &BashError{Result: *r, Err: err}
}

// ending says how a command ended that did not exit with 0.
func ending(ctx context.Context, err error, timeout *float64) string {
	if err == nil {
		return ""
	}
	ee, ok := errors.AsType[*harnesslib.ExitError](err)
	if !ok {
		if errors.Is(err, harnesslib.ErrLost) {
			return "Command lost: nobody knows whether it ran to its end (" + err.Error() + ")"
		}
		if ctx.Err() != nil {
			return "Command aborted"
		}
		return "Command not run: " + err.Error()
	}
	switch o := ee.Outcome; o.Kind {
	case harnesslib.Exited:
		return fmt.Sprintf("Command exited with code %d", o.Code)
	case harnesslib.Signalled:
		return "Command killed by signal " + o.Signal
	case harnesslib.TimedOut:
		if timeout == nil {
			return "Command timed out"
		}
		return fmt.Sprintf("Command timed out after %v seconds", *timeout)
	case harnesslib.Aborted:
		return "Command aborted"
	case harnesslib.StartFailed:
		return "Command did not start: " + o.Message
	case harnesslib.OOM:
		return "Command killed: out of memory"
	case harnesslib.OutputLimit, harnesslib.Lost:
	}
	return "Command ended: " + ee.Outcome.String()
}

// output takes what a command prints.
type output struct {
	tools    *Tools
	ctx      context.Context //nolint:containedctx // of the spill, which outlives an abort
	onUpdate func(string)

	mu      sync.Mutex // guards the fields below
	tail    tail
	raw     []byte // all so far, while there is no spill
	newline int    // in raw
	spill   *spill
	timer   *time.Timer // of an update that is due
	last    time.Time   // of the update before
	over    bool

	showing sync.Mutex // held while onUpdate runs; taken before mu
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	_, _ = o.tail.Write(b) // never fails
	spill := o.keep(b)
	due := o.schedule()
	o.mu.Unlock()
	if spill != nil {
		spill.write(b)
	}
	if due {
		o.update()
	}
	return len(b), nil
}

// keep holds the output as it is until a limit trips; then it goes to a file.
func (o *output) keep(b []byte) *spill {
	if o.spill != nil {
		return o.spill
	}
	if !o.mayKeep() {
		return nil
	}
	held := len(o.raw)
	o.raw = append(o.raw, b...)
	o.newline += strings.Count(string(b), "\n")
	// A final newline is no further line; whatever cleaning removes, the text can be cut only above these.
	if len(o.raw) <= MaxBytes && o.newline <= MaxLines {
		return nil
	}
	o.spill = startSpill(o.ctx, &o.tools.cfg)
	o.spill.write(o.raw[:held])
	o.raw = nil
	return o.spill
}

func (o *output) mayKeep() bool { return o.tools.cfg.SpillBytes > 0 && o.tools.cfg.Writer != nil }

// schedule says whether an update is due now, else sees to it that there is one in time.
func (o *output) schedule() bool {
	if o.onUpdate == nil || o.timer != nil || o.over {
		return false
	}
	wait := updateEvery - time.Since(o.last)
	if wait <= 0 {
		o.last = time.Now()
		return true
	}
	o.timer = time.AfterFunc(wait, func() {
		o.mu.Lock()
		over := o.over
		o.timer, o.last = nil, time.Now()
		o.mu.Unlock()
		if !over {
			o.update()
		}
	})
	return false
}

func (o *output) update() {
	o.showing.Lock()
	defer o.showing.Unlock()
	o.mu.Lock()
	text, over := o.tail.view().text, o.over
	o.mu.Unlock()
	if !over {
		o.onUpdate(text)
	}
}

// end is the result, when the command has ended. No update comes after it.
func (o *output) end() *BashResult {
	o.mu.Lock()
	o.over = true
	if o.timer != nil {
		o.timer.Stop()
	}
	v, sp := o.tail.view(), o.spill
	o.mu.Unlock()
	o.showing.Lock() // an update that is running ends first
	defer o.showing.Unlock()
	if sp == nil && v.isCut() && o.mayKeep() { // cleaning can make a text longer and cut a line off the end
		sp = startSpill(o.ctx, &o.tools.cfg)
		sp.write(o.raw)
	}
	r := &BashResult{Output: v.text, TotalLines: v.total, ShownLines: v.shown, Cut: v.isCut()}
	var spillErr error
	if sp != nil {
		spillErr = sp.end()
		if spillErr == nil {
			r.FullOutput, r.FullCapped = sp.path, sp.capped
		}
	}
	r.Text = v.text
	if r.Output == "" {
		r.Text = "(no output)"
	}
	if !r.Cut {
		return r
	}
	notice := fmt.Sprintf("Showing lines %d-%d of %d", v.total-v.shown+1, v.total, v.total)
	switch {
	case v.lastBytes > 0:
		notice = fmt.Sprintf("Showing the last %s of line %d, the last", FormatSize(int64(v.lastBytes)), v.total)
	case v.byBytes:
		notice += fmt.Sprintf(" (%s limit)", FormatSize(MaxBytes))
	}
	r.Text = footer(r.Text, []string{notice, o.where(r, spillErr)})
	return r
}

// where says in words where the full output is.
func (o *output) where(r *BashResult, err error) string {
	switch {
	case err != nil:
		return "The full output could not be kept: " + err.Error()
	case r.FullOutput == "":
		return "The full output was not kept"
	case r.FullCapped:
		return fmt.Sprintf("The first %s of the full output: %s", FormatSize(o.tools.cfg.SpillBytes), r.FullOutput)
	}
	return "Full output: " + r.FullOutput
}

// spill writes an output to a file in the sandbox while it comes.
type spill struct {
	path   string
	left   int64 // bytes that the file may still get
	capped bool
	pipe   *io.PipeWriter
	done   chan error // one element: the writing's end
	cancel context.CancelCauseFunc
}

var errSpillSlow = fmt.Errorf("the file was not written within %s", spillWait)

func startSpill(ctx context.Context, cfg *Config) *spill {
	ctx, cancel := context.WithCancelCause(ctx)
	r, w := io.Pipe()
	s := &spill{
		path: strings.TrimSuffix(cfg.SpillDir, "/") + "/sandbus-bash-" + rand.Text() + ".log",
		left: cfg.SpillBytes, pipe: w, done: make(chan error, 1), cancel: cancel,
	}
	go func() {
		err := cfg.Writer.CopyTo(ctx, s.path, r, 0o600)
		_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // what is still written goes nowhere
		s.done <- err
	}()
	return s
}

// write may wait for the sandbox: that holds the command back, as a full pipe does.
func (s *spill) write(b []byte) {
	if int64(len(b)) > s.left {
		b, s.capped = b[:s.left], true
	}
	s.left -= int64(len(b))
	_, _ = s.pipe.Write(b) // the reason of a failure is CopyTo's
}

// end waits until the file is there.
func (s *spill) end() error {
	defer s.cancel(nil)
	_ = s.pipe.Close() // never fails
	limit := time.AfterFunc(spillWait, func() { s.cancel(errSpillSlow) })
	defer limit.Stop()
	return <-s.done
}
