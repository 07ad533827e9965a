package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/bustest"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// desk is a server with its hub, to which each test registers its verbs.
type desk struct {
	*bustest.Bus
	target bus.Target
	conn   *cuttable
	bulk   *cuttable
}

// cuttable is a connection to the hub that can be cut; it comes back by itself.
type cuttable struct {
	*bus.Conn
	mu   sync.Mutex // guards the field below
	last net.Conn
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.last.Close() // that is the cut
}

func connectCuttable(t *testing.T, b *bustest.Bus, role bus.Role, name string) *cuttable {
	t.Helper()
	c := &cuttable{}
	cfg := b.Config(t, role, name)
	cfg.Dial = func() (net.Conn, error) {
		n, err := b.Dial()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last = n
		return n, err
	}
	var err error
	c.Conn, err = bus.Connect(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func newDesk(t *testing.T, register func(*bus.Server)) *desk {
	t.Helper()
	b := bustest.Start(t)
	d := &desk{Bus: b, target: bus.Target{Zone: bus.DefaultZone, Sandbox: "box", Instance: bus.NewInstanceID()}}
	d.conn, d.bulk = connectCuttable(t, b, bus.RoleSandbox, "box"), connectCuttable(t, b, bus.RoleSandbox, "box")
	s := bus.NewServer(d.conn.Conn, d.target, bustest.Logger(t))
	s.UseBulk(d.bulk.Conn)
	bus.Handle(s, "echo", func(_ context.Context, req *statReq) (*statResp, error) {
		return &statResp{Info: &sandbusv1.FileInfo{Name: req.GetPath()}}, nil
	})
	register(s)
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		now, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("now"))
		s.Stop(now)
	})
	return d
}

func (d *desk) caller(t *testing.T, harness string) *bus.Caller {
	t.Helper()
	c, err := bus.NewCaller(d.Connect(t, bus.RoleHarness, harness))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func codeOf(t *testing.T, err error) sandbusv1.Code {
	t.Helper()
	var be *bus.Error
	require.ErrorAs(t, err, &be)
	return be.Code
}

// TestC50RequestsRunOnce sends a fast request with an effect several times under one op: at once, from two processes of the
// harness, and after its end.
func TestC50RequestsRunOnce(t *testing.T) {
	var runs atomic.Int32
	begun, gate := make(chan struct{}), make(chan struct{})
	d := newDesk(t, func(s *bus.Server) {
		bus.HandleOnce(s, "write", func(_ context.Context, req *statReq) (*statResp, error) {
			n := runs.Add(1)
			close(begun)
			<-gate
			return &statResp{Info: &sandbusv1.FileInfo{Name: fmt.Sprint(req.GetPath(), n)}}, nil
		})
	})
	first, second, other := d.caller(t, "h"), d.caller(t, "h"), d.caller(t, "other")
	op := bus.NewOpID()
	ask := func(c *bus.Caller, path string) (string, error) {
		resp := &statResp{}
		err := c.Request(t.Context(), d.target, "write", op, &statReq{Path: path}, resp)
		return resp.GetInfo().GetName(), err
	}
	var wg sync.WaitGroup
	answers, errs := make([]string, 2), make([]error, 2)
	wg.Go(func() { answers[0], errs[0] = ask(first, "a") })
	<-begun
	wg.Go(func() { answers[1], errs[1] = ask(second, "a") })
	_, err := ask(other, "a")
	require.Equal(t, sandbusv1.Code_CODE_CONFLICT, codeOf(t, err), "another harness gets nobody's answer")
	third := d.caller(t, "h")
	_, err = ask(third, "b")
	require.Equal(t, sandbusv1.Code_CODE_CONFLICT, codeOf(t, err), "other content, while it is under way")
	close(gate)
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, []string{"a1", "a1"}, answers)
	for _, c := range []*bus.Caller{first, second, third} {
		got, err := ask(c, "a")
		require.NoError(t, err)
		require.Equal(t, "a1", got, "after its end")
		_, err = ask(c, "b")
		require.Equal(t, sandbusv1.Code_CODE_CONFLICT, codeOf(t, err))
	}
	_, err = ask(other, "a")
	require.Equal(t, sandbusv1.Code_CODE_CONFLICT, codeOf(t, err))
	require.EqualValues(t, 1, runs.Load())
}

// TestAnswerThatIsNotKept has an answer that is too long to be remembered: asked for again, nothing runs, and the caller
// learns that nobody knows.
func TestAnswerThatIsNotKept(t *testing.T) {
	var runs atomic.Int32
	d := newDesk(t, func(s *bus.Server) {
		long := func(context.Context, *statReq) (*statResp, error) {
			runs.Add(1)
			return &statResp{Info: &sandbusv1.FileInfo{NameRaw: bytes.Repeat([]byte("x"), 2<<20)}}, nil
		}
		bus.HandleOnce(s, "write", long)
		bus.HandleOp(s, "read", long)
	})
	c := d.caller(t, "h")
	op := bus.NewOpID()
	require.NoError(t, c.Request(t.Context(), d.target, "write", op, &statReq{}, &statResp{}))
	again := d.caller(t, "h")
	require.Eventually(t, func() bool { // until its end was taken it is under way
		err := again.Request(t.Context(), d.target, "write", op, &statReq{}, &statResp{})
		return codeOf(t, err) == sandbusv1.Code_CODE_FORGOTTEN
	}, 30*time.Second, time.Millisecond)
	require.EqualValues(t, 1, runs.Load())
	op = bus.NewOpID()
	for range 2 { // what only reads is served again
		resp := &statResp{}
		require.Eventually(t, func() bool {
			return c.Request(t.Context(), d.target, "read", op, &statReq{}, resp) == nil
		}, 30*time.Second, time.Millisecond)
		require.Len(t, resp.GetInfo().GetNameRaw(), 2<<20)
	}
}

// TestLostAnswerIsAskedForAgain cuts the worker's connection under an answer: the caller, who notices nothing but silence,
// asks again and gets it from memory.
func TestLostAnswerIsAskedForAgain(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	var d *desk
	d = newDesk(t, func(s *bus.Server) {
		bus.HandleOnce(s, "write", func(context.Context, *statReq) (*statResp, error) {
			d.conn.cut()
			return &statResp{Info: &sandbusv1.FileInfo{Size: int64(runs.Add(1))}}, nil
		})
	})
	resp := &statResp{}
	require.NoError(t, d.caller(t, "h").Request(t.Context(), d.target, "write", "", &statReq{}, resp))
	require.EqualValues(t, 1, resp.GetInfo().GetSize())
	require.EqualValues(t, 1, runs.Load())
}

// TestReplacedIsToldAtTheEndOfItsHandler has an op be asked for again while the handler of the one before has not begun its
// work yet: that caller must not be told before it is done, or it would look for what is not there.
func TestReplacedIsToldAtTheEndOfItsHandler(t *testing.T) {
	handlers := make(chan chan struct{}, 2)
	d := newDesk(t, func(s *bus.Server) {
		s.HandleRepeatable("start", func(r *bus.Request) {
			out, err := r.Outgoing(0)
			if err != nil {
				r.Fail(err)
				return
			}
			gate := make(chan struct{})
			handlers <- gate
			<-gate
			r.EndStream(out, &sandbusv1.StreamEnd{})
		})
	})
	first, second := d.caller(t, "h"), d.caller(t, "h")
	op := bus.NewOpID()
	old, err := first.OpenRepeatable(t.Context(), d.target, "start", op, &statReq{}, 0, false)
	require.NoError(t, err)
	defer old.Close()
	finishOld := <-handlers
	st, err := second.OpenRepeatable(t.Context(), d.target, "start", op, &statReq{}, 0, false)
	require.NoError(t, err)
	defer st.Close()
	close(<-handlers)
	f, err := st.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, bus.FrameEnd, f.Kind)
	// What the worker has sent to the first caller before has arrived when this is answered.
	require.NoError(t, first.Request(t.Context(), d.target, "echo", "", &statReq{}, &statResp{}))
	now, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("nothing yet"))
	defer cancel()
	_, err = old.Next(now)
	require.EqualError(t, err, "nothing yet")
	close(finishOld)
	_, err = old.Next(t.Context())
	require.Equal(t, sandbusv1.Code_CODE_REPLACED, codeOf(t, err))
}

// TestReplacedCallerDisturbsNobody has a caller that was replaced, and does not know it yet, send on: neither its input nor
// its acks reach the stream of its successor.
func TestReplacedCallerDisturbsNobody(t *testing.T) {
	taken := make(chan []byte, 2)
	second := make(chan struct{}, 2)
	d := newDesk(t, func(s *bus.Server) {
		s.HandleRepeatable("start", func(r *bus.Request) {
			out, err := r.Outgoing(0)
			if err != nil {
				r.Fail(err)
				return
			}
			second <- struct{}{}
			var all []byte
			for {
				f, err := r.Incoming().Next(r.Context())
				if errors.Is(err, bus.ErrReplaced) {
					<-t.Context().Done() // it is slow to notice
					return
				}
				if err != nil || f.Kind == bus.FrameEnd {
					break
				}
				all = append(all, f.Body...)
				_ = out.Write(r.Context(), bus.FrameStdout, f.Body) // End says what went wrong
			}
			taken <- all
			r.EndStream(out, &sandbusv1.StreamEnd{StdoutBytes: int64(len(all))})
		})
	})
	a, b := d.caller(t, "h"), d.caller(t, "h")
	op := bus.NewOpID()
	old, err := a.OpenRepeatable(t.Context(), d.target, "start", op, &statReq{}, 0, true)
	require.NoError(t, err)
	defer old.Close()
	<-second
	st, err := b.OpenRepeatable(t.Context(), d.target, "start", op, &statReq{}, 0, true)
	require.NoError(t, err)
	defer st.Close()
	<-second
	for range 20 {
		require.NoError(t, old.Send(t.Context(), []byte("old")))
	}
	a.AcknowledgeMine(d.target, op, 7) // as for a stream that has come further
	require.NoError(t, a.Request(t.Context(), d.target, "echo", "", &statReq{}, &statResp{}), "they have arrived")
	require.NoError(t, st.Send(t.Context(), []byte("new")))
	if err := st.CloseSend(t.Context()); err != nil {
		require.ErrorIs(t, err, bus.ErrEnded, "the op's end may overtake the ack")
	}
	require.Equal(t, "new", string(<-taken))
	var got []byte
	for {
		f, err := st.Next(t.Context())
		require.NoError(t, err)
		if f.Kind == bus.FrameEnd {
			break
		}
		got = append(got, f.Body...)
	}
	require.Equal(t, "new", string(got))
}

// TestBulkHasItsOwnConnection cuts the connection of the streams in the middle of one: requests are answered meanwhile, and
// nothing is lost.
func TestBulkHasItsOwnConnection(t *testing.T) {
	const size = 8 << 20
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data) // never fails
	halfway := make(chan struct{})
	d := newDesk(t, func(s *bus.Server) {
		s.HandleStream("flood", func(r *bus.Request) {
			out, err := r.Outgoing(0)
			if err != nil {
				r.Fail(err)
				return
			}
			const chunk = 32 << 10
			for n := range size / chunk {
				if out.Write(r.Context(), bus.FrameData, data[n*chunk:(n+1)*chunk]) != nil {
					return
				}
				if n == size/chunk/2 {
					close(halfway)
				}
			}
			r.EndStream(out, &sandbusv1.StreamEnd{StdoutBytes: size})
		})
	})
	c := d.caller(t, "h")
	st, err := c.Open(t.Context(), d.target, "flood", bus.NewOpID(), &statReq{}, 0, false)
	require.NoError(t, err)
	defer st.Close()
	before := d.conn.Sent()
	go func() {
		<-halfway
		d.bulk.cut()
	}()
	n := 0
	for {
		f, err := st.Next(t.Context())
		require.NoError(t, err)
		if f.Kind == bus.FrameEnd {
			break
		}
		require.True(t, bytes.Equal(data[n:n+len(f.Body)], f.Body), "behind byte %d", n)
		n += len(f.Body)
		if n == size/4 {
			require.NoError(t, c.Request(t.Context(), d.target, "echo", "", &statReq{}, &statResp{}))
		}
	}
	require.Equal(t, size, n)
	require.Less(t, d.conn.Sent()-before, uint64(1<<20), "the stream did not leave on the connection of the answers")
}

// TestAbortOfAFlood has an op be aborted that takes a flood from its caller: it notices although more is always waiting.
func TestAbortOfAFlood(t *testing.T) {
	ended := make(chan error, 1)
	flowing := make(chan struct{})
	d := newDesk(t, func(s *bus.Server) {
		s.HandleStream("take", func(r *bus.Request) {
			n := 0
			for {
				f, err := r.Incoming().Next(r.Context())
				if err != nil {
					ended <- err
					r.Fail(err)
					return
				}
				if n += len(f.Body); n > 1<<20 && n-len(f.Body) <= 1<<20 {
					close(flowing)
				}
			}
		})
	})
	c := d.caller(t, "h")
	op := bus.NewOpID()
	st, err := c.Open(t.Context(), d.target, "take", op, &statReq{}, 0, true)
	require.NoError(t, err)
	defer st.Close()
	flood := make(chan error, 1)
	go func() {
		for {
			if err := st.Send(t.Context(), make([]byte, 64<<10)); err != nil {
				flood <- err
				return
			}
		}
	}()
	<-flowing
	end, err := st.Abort(t.Context(), "enough")
	require.NoError(t, err)
	require.Nil(t, end, "it is no exec")
	require.ErrorIs(t, <-ended, bus.ErrAborted)
	require.ErrorIs(t, <-flood, bus.ErrEnded)
}

// TestClosedStreamEndsItsOp has a caller close a stream early: the worker learns it at once, and does not wait a minute for
// acks.
func TestClosedStreamEndsItsOp(t *testing.T) {
	ended := make(chan error, 1)
	d := newDesk(t, func(s *bus.Server) {
		s.HandleStream("sit", func(r *bus.Request) {
			out, err := r.Outgoing(0)
			if err == nil {
				err = out.Write(r.Context(), bus.FrameStarted, nil)
			}
			if err != nil {
				ended <- err
				return
			}
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
		})
	})
	st, err := d.caller(t, "h").Open(t.Context(), d.target, "sit", bus.NewOpID(), &statReq{}, 0, false)
	require.NoError(t, err)
	_, err = st.Next(t.Context())
	require.NoError(t, err)
	st.Close()
	st.Close()
	require.ErrorIs(t, <-ended, bus.ErrCallerGone)
	_, err = st.Next(t.Context())
	require.ErrorIs(t, err, bus.ErrClosed)
}
