package command

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

const (
	// idleGrace is how long an output may be silent behind the command's end before it counts as held by something that
	// was left behind; each piece re-arms it, heldLimit bounds it.
	idleGrace = 100 * time.Millisecond
	heldLimit = 5 * time.Second
	// tailGrace is how long the pipes of a process that has gone may be silent, and yet be held by somebody here.
	tailGrace = time.Second
)

var (
	errOver = errors.New("the output is over its limit")
	errGone = errors.New("the far shell was gone already")
)

// ending is how a call on a line went.
type ending struct {
	out, errOut *sink
	status      string // what the shell said; empty when it said nothing
	held        bool   // something was left behind
	reason      error  // why it was stopped; nil when it was not
	err         error  // nobody knows how it ended
	reusable    bool   // the line may serve another one
}

// sink takes one output of a command.
type sink struct {
	scanner

	w     io.Writer // nil means that it is collected
	buf   []byte
	limit int64 // below zero for none
	taken int64
	over  bool // there was more than the limit
	shut  bool // the pipe has ended
	stop  *stopper
}

func (s *sink) emit(b []byte) {
	if s.limit >= 0 && s.taken+int64(len(b)) > s.limit {
		s.over = true
		s.stop.fire(errOver)
		b = b[:s.limit-s.taken]
	}
	s.taken += int64(len(b))
	if s.w == nil {
		s.buf = append(s.buf, b...)
	} else if len(b) > 0 {
		if _, err := s.w.Write(b); err != nil {
			s.stop.fire(&writerError{err})
			s.w = io.Discard
		}
	}
}

// writerError is that of the caller's writer.
type writerError struct{ err error }

func (e *writerError) Error() string { return e.err.Error() }

// call runs a job and takes its output until its end. It is stopped by the context, its timeout and its limit.
func (l *line) call(ctx context.Context, j *job, stop *stopper) *ending {
	secret := rand.Text()
	e := &ending{
		out:    &sink{scanner: scanner{secret: []byte(secret)}, w: j.Stdout, limit: j.Limit(), stop: stop},
		errOut: &sink{scanner: scanner{secret: []byte(secret)}, w: j.Stderr, limit: j.Limit(), stop: stop},
	}
	if j.Stdout != nil && e.errOut.w == nil {
		e.errOut.w = io.Discard
	}
	f := &feeder{line: l, begun: make(chan struct{})}
	f.start(j.text(secret, l), j)
	unwatch := context.AfterFunc(ctx, func() { stop.fire(&transport.AbortError{Cause: context.Cause(ctx)}) })
	if j.Timeout > 0 {
		timer := time.AfterFunc(j.Timeout, func() { stop.fire(&transport.TimeoutError{After: j.Timeout}) })
		defer timer.Stop()
	}
	l.take(e, f, stop)
	unwatch()
	stop.disarm()
	stop.running.Wait()
	e.reason, e.status = stop.why(), e.out.status
	e.reusable = e.err == nil && e.reason == nil && e.free() && !j.last
	if e.reason != nil || e.err != nil {
		l.kill()
	} else if j.last || !e.reusable {
		_ = l.stdin.Close() // the feeder ends by that, and the shell
	}
	f.finish()
	return e
}

func (e *ending) free() bool  { return e.out.freed && e.errOut.freed }
func (e *ending) ended() bool { return e.out.ended && e.errOut.ended }
func (e *ending) shut() bool  { return e.out.shut && e.errOut.shut }

// take reads both outputs until the command has ended and nobody holds them, or was stopped.
func (l *line) take(e *ending, f *feeder, stop *stopper) {
	idle, most := time.NewTimer(heldLimit), time.NewTimer(heldLimit)
	defer idle.Stop()
	defer most.Stop()
	known, exited := false, l.exited
	stopped, unsure := false, error(nil)
	defer func() {
		e.out.rest(e.out.emit)
		e.errOut.rest(e.errOut.emit)
	}()
	var hangup, drain <-chan time.Time
	for !e.free() && !e.shut() {
		if e.out.broken || e.errOut.broken {
			e.err = lost("its shell sent a mark that is none", nil)
			return
		}
		if e.ended() && !known {
			known = true
			stop.disarm()
			idle.Reset(idleGrace)
			most.Reset(heldLimit)
		}
		outC, errC := l.out.open(e.out), l.errOut.open(e.errOut)
		select {
		case b, ok := <-outC:
			e.out.take(b, ok)
		case b, ok := <-errC:
			e.errOut.take(b, ok)
		case <-idle.C:
			if known {
				e.held = true
				return
			}
			continue
		case <-most.C:
			if known {
				e.held = true
				return
			}
			continue
		case <-exited:
			exited, hangup = nil, time.After(tailGrace)
			continue
		case <-hangup:
			l.end(func() {}) // somebody here holds the pipes of a process that is gone
			e.out.shut, e.errOut.shut = true, true
			continue
		case err := <-stop.done:
			if err != nil && !errors.Is(err, errGone) {
				e.err = lost("stopping it was not confirmed", err)
				return
			}
			if err == nil && (e.out.over || e.errOut.over) {
				return
			}
			stopped, unsure, drain = true, err, time.After(leaveLimit)
			continue
		case <-drain:
			if unsure != nil { // its shell is gone there, and yet its outputs do not end
				e.err = lost("stopping it was not confirmed", unsure)
			}
			return
		}
		f.begin(e.out.began)
		if known {
			idle.Reset(idleGrace)
		}
		if hangup != nil {
			hangup = time.After(tailGrace)
		}
	}
	if !e.free() && !e.ended() && !stopped && stop.why() == nil {
		e.err = l.cutOff(e)
	}
}

// open is where an output comes from, nil when nothing more is wanted: what is over its limit is held back.
func (p *pump) open(s *sink) <-chan []byte {
	if s.shut || s.over {
		return nil
	}
	return p.pieces
}

func (s *sink) take(b []byte, ok bool) {
	if !ok {
		s.shut = true
		return
	}
	s.feed(b, s.emit)
}

func lost(what string, err error) error {
	if err == nil {
		return fmt.Errorf("%w: %s", transport.ErrLost, what)
	}
	return fmt.Errorf("%w: %s: %w", transport.ErrLost, what, err)
}

// cutOff is the error of an output that ended before its end mark.
func (l *line) cutOff(e *ending) error {
	state := "its output ended early"
	select {
	case <-l.exited:
		state = l.state
	case <-time.After(leaveLimit):
	}
	said := ""
	if !e.errOut.ended {
		said = strings.TrimSpace(string(e.errOut.buf[max(0, len(e.errOut.buf)-300):]))
	}
	if said != "" {
		said = ": " + strings.ToValidUTF8(said, "?")
	}
	return lost(l.cmd.Path+": "+state+said, nil)
}

// feeder writes a job's text and then its input.
type feeder struct {
	line  *line
	begun chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

func (f *feeder) start(text string, j *job) {
	f.wg.Go(func() {
		_ = f.line.send(text) // a line that does not take it has ended, which shows
	})
	if j.Stdin == nil || !j.last {
		return
	}
	copyIn := func() {
		select {
		case <-f.begun: // the shell has read its text, and will read no more
		case <-f.line.gone:
			return
		}
		_, _ = io.Copy(f.line.stdin, onlyReader{j.Stdin}) // the command may read as little as it likes
		_ = f.line.stdin.Close()                          // likewise
	}
	switch j.Stdin.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader: // do not block: they can be waited for
		f.wg.Go(copyIn)
	default:
		go copyIn() // may sit in Read for ever, as with a terminal
	}
}

// onlyReader keeps io.Copy from other ways of copying.
type onlyReader struct{ io.Reader }

func (f *feeder) begin(began bool) {
	if began {
		f.once.Do(func() { close(f.begun) })
	}
}

// finish waits for what can be waited for; the line's input is closed, or all was written.
func (f *feeder) finish() { f.wg.Wait() }
