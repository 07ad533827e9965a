package harnesslib

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// TestDeadlineMoves sets deadlines while an operation waits, and after one has passed.
func TestDeadlineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, kill := context.WithCancelCause(t.Context())
		d := newDeadline(life)
		waits := func() time.Duration {
			begin := time.Now()
			ctx := d.context()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), os.ErrDeadlineExceeded)
			return time.Since(begin)
		}
		d.set(time.Now().Add(time.Second))
		require.Equal(t, time.Second, waits())
		require.Zero(t, waits(), "it stays over")
		d.set(time.Time{})
		require.NoError(t, d.context().Err())
		d.set(time.Now().Add(time.Second))
		time.AfterFunc(500*time.Millisecond, func() { d.set(time.Now().Add(time.Second)) })
		require.Equal(t, 1500*time.Millisecond, waits(), "put off while it waits")
		d.set(time.Now().Add(time.Hour))
		time.AfterFunc(time.Second, func() { d.set(time.Unix(1, 0)) })
		require.Equal(t, time.Second, waits(), "brought forward while it waits")
		d.set(time.Now().Add(time.Hour))
		kill(net.ErrClosed)
		require.ErrorIs(t, context.Cause(d.context()), net.ErrClosed)
		d.stop()
	})
}

// FuzzStarted has any first frame of a sandbox be two addresses or a broken rule.
func FuzzStarted(f *testing.F) {
	good, err := proto.Marshal(&sandbusv1.DialStarted{LocalAddress: "127.0.0.1:1", RemoteAddress: "[::1]:2"})
	require.NoError(f, err)
	f.Add(uint8(bus.FrameStarted), good)
	f.Add(uint8(bus.FrameData), good)
	f.Add(uint8(bus.FrameStarted), []byte("\x0a\x01x"))
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		local, remote, err := started(bus.Frame{Kind: bus.FrameKind(kind), Body: body})
		if err != nil {
			var se *bus.StreamError
			require.ErrorAs(t, err, &se)
			return
		}
		require.IsType(t, &net.TCPAddr{}, local)
		require.IsType(t, &net.TCPAddr{}, remote)
	})
}

// TestConnErrors gives what a worker says the errors that package net has.
func TestConnErrors(t *testing.T) {
	req := &sandbusv1.DialRequest{Address: "box:80", TimeoutMs: 5}
	refused := &bus.Error{Code: sandbusv1.Code_CODE_IO, Errno: 111}
	require.ErrorIs(t, dialError(t.Context(), req, refused), syscall.ECONNREFUSED)
	require.ErrorIs(t, connError("read", &bus.Error{Code: sandbusv1.Code_CODE_IO, Errno: 104}), syscall.ECONNRESET)
	require.ErrorIs(t, connError("read", &bus.Error{Code: sandbusv1.Code_CODE_IO, Errno: 5}), syscall.EIO)
	timedOut := &bus.Error{Code: sandbusv1.Code_CODE_TIMED_OUT, Errno: 110}
	require.ErrorIs(t, dialError(t.Context(), req, timedOut), context.DeadlineExceeded)
	require.ErrorIs(t, dialError(t.Context(), &sandbusv1.DialRequest{}, timedOut), syscall.ETIMEDOUT)
	require.ErrorIs(t, connError("read", bus.ErrPeerSilent), ErrLost)
	require.ErrorIs(t, dialError(t.Context(), req, &bus.Error{Code: sandbusv1.Code_CODE_BUSY}), ErrBusy)
	var dns *net.DNSError
	require.ErrorAs(t, dialError(t.Context(), req, &bus.Error{Code: sandbusv1.Code_CODE_NOT_FOUND, Message: "no such host"}), &dns)
	require.True(t, dns.IsNotFound)
	require.Equal(t, "box", dns.Name)
	why := errors.New("enough")
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	require.ErrorIs(t, dialError(gone, req, refused), why)
}
