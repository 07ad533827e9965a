package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"sync"
	"syscall"
)

// handler answers one verb. ctx ends when the rig says stop, or is gone.
type handler func(ctx context.Context, body json.RawMessage) (any, error)

// role is what a process does: init gets its configuration and returns what it answers to.
type role func(life context.Context, config json.RawMessage) (ready any, handlers map[string]handler, close func(), err error)

var roles = map[string]role{
	"hub": hubRole, "sandbox": sandboxRole, "harness": harnessRole, "crowd": crowdRole, "relay": relayRole, "relayworker": relayWorkerRole,
	"sshd": sshdRole,
}

// Role runs this process as one of the rig's, when it was started as one. ran is false when it was not.
func Role() (status int, ran bool) {
	name := os.Getenv(roleVar)
	if name == "" {
		return 0, false
	}
	_ = os.Unsetenv(roleVar)      // not for the children
	signal.Ignore(syscall.SIGINT) // the rig's; we end with our standard input
	if err := serve(name); err != nil {
		fmt.Fprintf(os.Stderr, "loadtest %s: %v\n", name, err)
		return 1, true
	}
	return 0, true
}

// errRigGone is the cause with which a process ends.
var errRigGone = errors.New("the rig has ended")

func serve(name string) error {
	begin, ok := roles[name]
	if !ok {
		return fmt.Errorf("role %q: there is none", name)
	}
	life, end := context.WithCancelCause(context.Background())
	defer end(errRigGone)
	var mu sync.Mutex // guards stop
	stop := func(error) {}
	requests := make(chan message)
	go func() {
		defer close(requests)
		defer end(errRigGone)
		d := json.NewDecoder(bufio.NewReader(os.Stdin))
		for {
			var m message
			if d.Decode(&m) != nil {
				return
			}
			if m.Verb == verbStop {
				mu.Lock()
				stop(errStopped)
				mu.Unlock()
				continue
			}
			select {
			case requests <- m:
			case <-life.Done():
				return
			}
		}
	}()
	answers := json.NewEncoder(os.Stdout)
	var handlers map[string]handler
	closeRole := func() {}
	defer func() { closeRole() }()
	for m := range requests {
		ctx, cancel := context.WithCancelCause(life)
		mu.Lock()
		stop = cancel
		mu.Unlock()
		var body any
		var err error
		switch h := handlers[m.Verb]; {
		case m.Verb == verbInit && handlers == nil:
			var c func()
			if body, handlers, c, err = begin(life, m.Body); c != nil {
				closeRole = c
			}
		case m.Verb == verbUse:
			body = ownUse()
		case m.Verb == verbSettle:
			debug.FreeOSMemory()
			body = struct{}{}
		case h != nil:
			body, err = h(ctx, m.Body)
		default:
			err = fmt.Errorf("verb %q: there is none", m.Verb)
		}
		cancel(nil)
		reply := message{}
		if err != nil {
			reply.Error, reply.Unavailable = err.Error(), errors.Is(err, ErrUnavailable)
		} else if reply.Body, err = json.Marshal(body); err != nil {
			return err
		}
		if err := answers.Encode(reply); err != nil {
			return err
		}
	}
	return nil
}

// errStopped is the cause with which something ends that the rig has told to.
var errStopped = errors.New("the rig says stop")

// decode reads a request.
func decode[T any](body json.RawMessage) (T, error) {
	var v T
	err := json.Unmarshal(body, &v)
	return v, err
}

// use is what a process has used since its start, by its own word.
type use struct {
	CPUNanos   int64   `json:"cpu_ns"`
	Goroutines float64 `json:"goroutines"`
}

func ownUse() use {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return use{}
	}
	return use{CPUNanos: r.Utime.Nano() + r.Stime.Nano(), Goroutines: float64(runtime.NumGoroutine())}
}

// Profiles says where processes leave profiles; an empty directory means none.
type Profiles struct {
	CPU   string `json:"cpu,omitempty"`
	Trace string `json:"trace,omitempty"`
}

// start begins the profiles of this process; the files are NAME.cpu.pprof and NAME.trace.
func (p Profiles) start(name string) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	begin := func(dir, suffix string, start func(*os.File) error, end func()) error {
		if dir == "" {
			return nil
		}
		f, err := os.Create(filepath.Join(dir, name+suffix))
		if err != nil {
			return err
		}
		if err := start(f); err != nil {
			return errors.Join(err, f.Close())
		}
		stops = append(stops, func() {
			end()
			if err := f.Close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
		return nil
	}
	if err = begin(p.CPU, ".cpu.pprof", func(f *os.File) error { return pprof.StartCPUProfile(f) }, pprof.StopCPUProfile); err == nil {
		err = begin(p.Trace, ".trace", func(f *os.File) error { return trace.Start(f) }, trace.Stop)
	}
	if err != nil {
		stop()
	}
	return stop, err
}
