package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

// caseLimit is how long a case may take: one that hangs fails.
const caseLimit = 2 * time.Minute

// Open makes a transport to the sandbox.
type Open func() (transport.Transport, error)

// Case is one part of the contract.
type Case struct {
	Name string
	run  func(t *T)
}

// Cases are all parts of the contract.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{commandCases, stopCases, tierCases, fileCases, errorCases} {
		all = append(all, group...)
	}
	return all
}

// Run holds the transports that newTransport makes to the contract and to what they are to declare. The battery closes
// them.
func Run(t *testing.T, newTransport func(testing.TB) transport.Transport, declared transport.Declaration) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			err := c.Check(t.Context(), func() (transport.Transport, error) { return newTransport(t), nil }, declared)
			require.NoError(t, err)
		})
	}
}

// Check runs a case; the error says what is wrong.
func (c Case) Check(ctx context.Context, open Open, declared transport.Declaration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, caseLimit, fmt.Errorf("the case %q took longer than %s", c.Name, caseLimit))
	defer cancel()
	t := &T{ctx: ctx, open: open, declared: declared}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.finish()
		t.Transport = t.another()
		c.run(t)
	}()
	<-done
	if len(t.failures) > 0 {
		return errors.New(strings.Join(t.failures, "\n"))
	}
	return nil
}

// T is a case that runs.
type T struct {
	transport.Transport

	ctx      context.Context //nolint:containedctx // the case's own life
	open     Open
	declared transport.Declaration
	cleanups []func()

	mu       sync.Mutex // guards the field below
	failures []string
}

var _ require.TestingT = (*T)(nil)

// Errorf notes a failure.
func (t *T) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

// FailNow ends the case.
func (t *T) FailNow() { runtime.Goexit() }

// another makes one more transport, which is closed with the case.
func (t *T) another() transport.Transport {
	tr, err := t.open()
	require.NoError(t, err, "open")
	t.cleanups = append(t.cleanups, func() { _ = tr.Close() }) // cases of their own look at it
	return tr
}

func (t *T) finish() {
	for _, clean := range slices.Backward(t.cleanups) {
		clean()
	}
}

// dir makes a directory in the sandbox, which goes with the case.
func (t *T) dir() string {
	name := "/tmp/sandbus-conformance-" + strings.ToLower(rand.Text())
	require.NoError(t, t.Files().MkdirAll(t.ctx, name, 0o755), "make a directory")
	t.cleanups = append(t.cleanups, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 30*time.Second)
		defer cancel()
		tr, err := t.open()
		if err != nil {
			return
		}
		_ = tr.Files().RemoveAll(ctx, name) // litter at worst
		_ = tr.Close()                      // likewise
	})
	return name
}

// script runs a script that must exit, and returns what it printed.
func (t *T) script(text string) *transport.Result { return t.exec(transport.Command{Script: text}) }

func (t *T) exec(c transport.Command) *transport.Result {
	res, err := t.Exec(t.ctx, c)
	require.NoError(t, err, "%.200q", c.Script)
	require.NotNil(t, res, "%.200q", c.Script)
	return res
}

// code is the exit code, which must be there.
func (t *T) code(res *transport.Result, what string) int {
	require.NotNil(t, res.ExitCode, "exit code of %.200q", what)
	return *res.ExitCode
}

// waitFor polls until a condition holds.
func (t *T) waitFor(what string, cond func() bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			require.Fail(t, "waited in vain for "+what)
		}
	}
}

// whenThere does something when a file is there, unless the context ends before; the channel closes behind that.
func (t *T) whenThere(ctx context.Context, name string, do func()) <-chan struct{} {
	helper := t.another()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := helper.Files().Stat(ctx, name); err == nil {
				do()
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}
