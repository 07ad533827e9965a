package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/harnesslib/transport"
)

// Fault is a way to break a transport.
type Fault struct {
	Name string
	// Fails are the cases that find it, by name.
	Fails []string
	// Break makes a broken transport of one that is not.
	Break func(whole transport.Transport) transport.Transport
}

// Faults are deliberately broken transports: each case of the battery fails on at least one of them.
func Faults() []Fault {
	var all []Fault
	for _, group := range [][]Fault{resultFaults, commandFaults, stopFaults, tierFaults, fileFaults} {
		all = append(all, group...)
	}
	return all
}

// broken is a transport with other parts than its own; nil means its own.
type broken struct {
	transport.Transport

	exec   func(ctx context.Context, c transport.Command) (*transport.Result, error)
	change func(f *brokenFiles)
	closes func() error
	fast   transport.FastTier
	stop   transport.StopMechanism
	still  bool // declares that it does not stream
}

func (b *broken) Exec(ctx context.Context, c transport.Command) (*transport.Result, error) {
	if b.exec == nil {
		return b.Transport.Exec(ctx, c)
	}
	return b.exec(ctx, c)
}

func (b *broken) Files() transport.Files {
	f := b.Transport.Files()
	if b.change == nil {
		return f
	}
	bf := newBrokenFiles(f)
	b.change(bf)
	return bf
}

func (b *broken) FastTier() transport.FastTier {
	if b.fast == "" {
		return b.Transport.FastTier()
	}
	return b.fast
}

func (b *broken) StopMechanism() transport.StopMechanism {
	if b.stop == "" {
		return b.Transport.StopMechanism()
	}
	return b.stop
}

func (b *broken) Streams() bool { return b.Transport.Streams() && !b.still }

func (b *broken) Close() error {
	if b.closes == nil {
		return b.Transport.Close()
	}
	return b.closes()
}

// onResult breaks what commands give.
func onResult(change func(c *transport.Command, res *transport.Result, err error) (*transport.Result, error)) func(transport.Transport) transport.Transport {
	return func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			res, err := whole.Exec(ctx, c)
			if res == nil {
				res = &transport.Result{}
			}
			return change(&c, res, err)
		}}
	}
}

// onCommand breaks what commands are.
func onCommand(change func(c *transport.Command)) func(transport.Transport) transport.Transport {
	return func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			if err := c.Check(); err != nil {
				return nil, err
			}
			change(&c)
			return whole.Exec(ctx, c)
		}}
	}
}

// onFiles breaks file operations.
func onFiles(change func(f *brokenFiles)) func(transport.Transport) transport.Transport {
	return func(whole transport.Transport) transport.Transport { return &broken{Transport: whole, change: change} }
}

var resultFaults = []Fault{
	{"drops NUL bytes", []string{"stdout is bytes"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		r.Stdout = bytes.ReplaceAll(r.Stdout, []byte{0}, nil)
		return r, err
	})},
	{"stderr in stdout", []string{"stderr apart"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		r.Stdout, r.Stderr = append(r.Stdout, r.Stderr...), nil
		return r, err
	})},
	{"prints of its own", []string{"no output"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		r.Stdout = append(r.Stdout, '\n')
		return r, err
	})},
	{"code zero or one", []string{"exit codes"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		if r.ExitCode != nil {
			r.ExitCode = new(min(1, *r.ExitCode))
		}
		return r, err
	})},
	{"a signal is a success", []string{"signals"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		if r.Signal != "" || (r.ExitCode != nil && *r.ExitCode > 128 && *r.ExitCode < 160) {
			r.Signal, r.ExitCode = "", new(0)
		}
		return r, err
	})},
	{"retries what fails", []string{"exit codes"}, func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			res, err := whole.Exec(ctx, c)
			if err == nil && res.ExitCode != nil && *res.ExitCode != 0 {
				again, err := whole.Exec(ctx, c)
				if err == nil {
					again.Stdout = append(res.Stdout, again.Stdout...)
				}
				return again, err
			}
			return res, err
		}}
	}},
	{"an exit code behind a timeout", []string{"timeout"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		if errors.Is(err, harnesslib.ErrTimedOut) {
			r.ExitCode = new(124)
			return r, nil
		}
		return r, err
	})},
	{"an abort has no name", []string{"abort", "abort before the start"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		if errors.Is(err, harnesslib.ErrAborted) {
			return r, errors.New("context canceled")
		}
		return r, err
	})},
	{"the limit itself is over it", []string{"output limit", "output limit of a stream"}, onCommand(func(c *transport.Command) {
		if c.OutputLimit > 1 {
			c.OutputLimit--
		}
	})},
	{"a code behind what was cut", []string{"output limit"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		if r.Truncated {
			r.ExitCode = new(0)
		}
		return r, err
	})},
	{"no marker", []string{"output limit"}, onResult(func(_ *transport.Command, r *transport.Result, err error) (*transport.Result, error) {
		r.Stdout = bytes.TrimSuffix(r.Stdout, []byte(transport.TruncatedMarker))
		return r, err
	})},
}

var commandFaults = []Fault{
	{"stdin is a terminal's", []string{"no stdin"}, onCommand(func(c *transport.Command) {
		if c.Stdin == nil {
			c.Stdin = strings.NewReader("something\n")
		}
	})},
	{"stdin as text", []string{"stdin is bytes"}, onCommand(func(c *transport.Command) {
		if c.Stdin != nil {
			b, _ := io.ReadAll(c.Stdin) // short, as the fault is
			c.Stdin = bytes.NewReader(bytes.ToValidUTF8(b, []byte("?")))
		}
	})},
	{"runs what is left of stdin", []string{"stdin not read"}, onCommand(func(c *transport.Command) {
		if c.Stdin != nil {
			c.Script += "\nhead -n 3 | sh"
		}
	})},
	{"quotes once more", []string{"text verbatim"}, onCommand(func(c *transport.Command) { c.Script = "eval \"" + c.Script + "\"" })},
	{"text behind the text", []string{"text verbatim"}, onCommand(func(c *transport.Command) { c.Script += "; true" })},
	{"pipefail and exit on error", []string{"commands apart"}, onCommand(func(c *transport.Command) { c.Script = "set -e; " + c.Script })},
	{"forgets the environment", []string{"directory and environment"}, onCommand(func(c *transport.Command) { c.Env = nil })},
	{"goes on elsewhere", []string{"no such directory"}, onCommand(func(c *transport.Command) {
		if c.Dir != "" {
			c.Script, c.Dir = "cd "+transport.Quote(c.Dir)+"; "+c.Script, ""
		}
	})},
	{"mixes commands up", []string{"at once"}, func(whole transport.Transport) transport.Transport {
		var mu sync.Mutex
		var last []byte
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			res, err := whole.Exec(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !c.Streaming() {
				res.Stdout, last = append(bytes.Clone(last), res.Stdout...), res.Stdout
			}
			return res, err
		}}
	}},
	{"waits for what is left behind", []string{"left behind"}, onCommand(func(c *transport.Command) {
		c.Script = "exec 2>&1; { " + c.Script + "\n} | cat"
		c.Timeout = 5 * time.Second
	})},
	{"sends what cannot be meant", []string{"refusals"}, func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			c.Script, c.Timeout, c.Env = strings.ReplaceAll(c.Script, "\x00", "")+"\n:", max(0, c.Timeout), nil
			return whole.Exec(ctx, c)
		}}
	}},
	{"begins in the root directory", []string{"relative paths"}, onCommand(func(c *transport.Command) { c.Script = "cd /bin; " + c.Script })},
}

var stopFaults = []Fault{
	{"kills the near process only", []string{"stop by timeout", "stop by abort", "stop by limit", "stop by limit of a stream"}, func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			if !strings.Contains(c.Script, "sleep 300") {
				return whole.Exec(ctx, c)
			}
			return walkAway(ctx, whole, c)
		}}
	}},
	{"takes no notice of the limit", []string{"output limit of a stream"}, onCommand(func(c *transport.Command) {
		if c.Stdout != nil && c.OutputLimit > 0 {
			c.OutputLimit = 4 << 20
		}
	})},
	{"closes once", []string{"close"}, func(whole transport.Transport) transport.Transport {
		var once sync.Once
		return &broken{Transport: whole, closes: func() error {
			err := errors.New("closed already")
			once.Do(func() { err = whole.Close() })
			return err
		}}
	}},
}

// walkAway leaves a command alone that it was to stop.
func walkAway(ctx context.Context, whole transport.Transport, c transport.Command) (*transport.Result, error) {
	var timer <-chan time.Time
	limit := c.Timeout
	if limit > 0 {
		timer = time.After(limit)
	}
	over := &firstWriter{first: make(chan struct{})}
	c.Timeout, c.OutputLimit, c.Stdout, c.Stderr = 0, 0, over, nil
	ended := make(chan error, 1)
	go func() {
		_, err := whole.Exec(context.WithoutCancel(ctx), c)
		ended <- err
	}()
	select {
	case err := <-ended:
		return &transport.Result{}, err
	case <-over.first:
		return &transport.Result{Truncated: true}, nil
	case <-timer:
		return &transport.Result{}, &transport.TimeoutError{After: limit}
	case <-ctx.Done():
		return &transport.Result{}, &transport.AbortError{Cause: context.Cause(ctx)}
	}
}

var tierFaults = []Fault{
	{"declares a tier that it lacks", []string{"declaration"}, func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, fast: transport.FastNone}
	}},
	{"declares another stop", []string{"declaration", "stop by timeout"}, func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, stop: transport.StopLocalKill}
	}},
	{"a shell for each command", []string{"fast tier"}, onCommand(func(c *transport.Command) { c.Script = "exec sh -c " + transport.Quote(c.Script) })},
	{"keeps output to the end", []string{"streaming"}, func(whole transport.Transport) transport.Transport {
		return &broken{Transport: whole, exec: func(ctx context.Context, c transport.Command) (*transport.Result, error) {
			if !c.Streaming() {
				return whole.Exec(ctx, c)
			}
			var out bytes.Buffer
			w := c.Stdout
			c.Stdout, c.Timeout = &out, 2*time.Second
			res, err := whole.Exec(ctx, c)
			_, _ = w.Write(out.Bytes()) // nobody asks
			return res, err
		}}
	}},
	{"outputs out of order", []string{"order of outputs"}, onCommand(func(c *transport.Command) {
		if c.Stdout != nil && c.Stderr != nil {
			c.Stderr = &late{w: c.Stderr}
		}
	})},
	{"the writer does not matter", []string{"writer that fails"}, onCommand(func(c *transport.Command) {
		if w := c.Stdout; w != nil {
			c.Stdout = careless{w}
			c.Timeout = time.Second
		}
	})},
	{"drops what comes too fast", []string{"slow writer"}, onCommand(func(c *transport.Command) {
		if w := c.Stdout; w != nil {
			c.Stdout = &hasty{w: w}
		}
	})},
}

// late is a writer that is not the one it writes to.
type late struct{ w io.Writer }

func (l *late) Write([]byte) (int, error) { return 0, nil }

type careless struct{ w io.Writer }

func (c careless) Write(b []byte) (int, error) {
	_, _ = c.w.Write(b) // that is the fault
	return len(b), nil
}

// hasty drops every other piece.
type hasty struct {
	w io.Writer
	n int
}

func (h *hasty) Write(b []byte) (int, error) {
	if h.n++; h.n%2 == 0 {
		return len(b), nil
	}
	return h.w.Write(b)
}
