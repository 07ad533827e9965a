package bus

import (
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// encoded is a seed: a message as it stands on the wire.
func encoded(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	require.NoError(tb, err)
	return b
}

// script turns bytes into payloads: each is a length of two bytes and that many bytes.
func script(b []byte) (payloads [][]byte) {
	for len(b) >= 2 {
		n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
		payloads = append(payloads, b[2:2+n])
		b = b[2+n:]
	}
	return payloads
}

func scripted(frames ...Frame) (b []byte) {
	for _, f := range frames {
		p := f.Append(nil)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	return b
}

var frameSeeds = [][]byte{
	scripted(Frame{0, FrameStarted, nil}, Frame{1, FrameStdout, []byte("x")}, Frame{2, FrameEnd, nil}),
	scripted(Frame{0, FrameData, []byte("x")}, Frame{0, FrameData, []byte("x")}, Frame{5, FrameData, []byte("x")}, Frame{1, FrameEnd, nil}, Frame{2, FrameEnd, nil}),
	scripted(Frame{1, FrameKeepAlive, nil}, Frame{1, FrameAck, make([]byte, 8)}, Frame{0, FrameGap, make([]byte, 8)}, Frame{0, FrameEOF, nil}),
}

// FuzzFrames gives a receiver any frames: it never holds more than it has granted, hands out each number once and in
// order, and nothing behind an end.
func FuzzFrames(f *testing.F) {
	for _, seed := range frameSeeds {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, take bool) {
		r := newReceiver(MinWindow, func([]byte) error { return nil })
		defer r.fail(ErrClosed)
		next, ended := uint64(0), false
		for _, p := range script(b) {
			frame, err := ParseFrame(p)
			if err != nil {
				continue
			}
			r.deliver(frame)
			held := 0
			for _, q := range r.queue {
				held += len(q.Body)
			}
			require.LessOrEqual(t, held, MaxWindow+2*MaxFrameBody)
			require.LessOrEqual(t, r.bare, maxBareFrames+1)
			for take {
				got, ok, _ := r.pop()
				if !ok {
					break
				}
				require.False(t, ended)
				require.Equal(t, next, got.Seq)
				next++
				ended = got.Kind == FrameEnd
			}
		}
	})
}

// FuzzAcks gives a sender any acks: it never counts as taken what it has not sent, nor keeps more than a window.
func FuzzAcks(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1}, uint64(1), uint64(1<<20))
	f.Add([]byte{}, uint64(1<<55), uint64(1<<63))
	f.Fuzz(func(t *testing.T, data []byte, seq, credit uint64) {
		s := newSender(MinWindow, func([]byte) error { return nil })
		defer s.stop(ErrClosed)
		if len(data) > 0 {
			require.NoError(t, s.Write(t.Context(), FrameData, data[:min(len(data), MinWindow)]))
		}
		for _, kind := range []FrameKind{FrameAck, FrameNak} {
			frame, err := ParseFrame(ackFrame(kind, seq%(1<<56), credit))
			require.NoError(t, err)
			s.deliver(frame)
			s.mu.Lock()
			require.LessOrEqual(t, s.una, s.next)
			require.LessOrEqual(t, s.limit, s.sent+MaxWindow)
			s.mu.Unlock()
		}
	})
}

// FuzzAnswers gives a request any messages and frames as its answer.
func FuzzAnswers(f *testing.F) {
	for _, seed := range frameSeeds {
		f.Add(seed)
	}
	one := encoded(f, &sandbusv1.StatResponse{Info: &sandbusv1.FileInfo{Name: "x"}})
	f.Add(append([]byte{0, byte(len(one))}, one...))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &waiter{got: make(chan result, 1), ack: func([]byte) error { return nil }, data: discard{}}
		for _, p := range script(b) {
			w.heard(&nats.Msg{Data: p})
		}
		w.close()
		select {
		case r := <-w.got:
			if r.err == nil {
				var m sandbusv1.StatResponse
				if checkShape(r.data, m.ProtoReflect().Descriptor()) == nil && unmarshal(r.data, false, &m) == nil {
					_ = FromWire(m.GetError())
				}
			}
		default:
		}
	})
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// FuzzStreamEnd reads the end of an answer.
func FuzzStreamEnd(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.StreamEnd{StdoutBytes: 1, Sha256: []byte("x")}), int64(1), []byte("x"))
	f.Add(encoded(f, &sandbusv1.StreamEnd{Error: &sandbusv1.Error{Code: 1, Message: "\x1b"}}), int64(0), []byte{})
	f.Fuzz(func(t *testing.T, body []byte, total int64, sum []byte) {
		if checkEnd(body, total, sum) == nil {
			var end sandbusv1.StreamEnd
			require.NoError(t, proto.Unmarshal(body, &end))
			require.Equal(t, total, end.GetStdoutBytes())
		}
	})
}

// FuzzErrors reads errors: their text is fit for a terminal.
func FuzzErrors(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.Error{Code: 3, Message: "\x1b[2J", PathRaw: []byte("\xff")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m sandbusv1.Error
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		text := FromWire(&m).Error()
		require.Less(t, len(text), 12*maxErrorMessage)
		for _, r := range text {
			require.True(t, isPlain(r), "%q", text)
		}
	})
}

// FuzzShape looks for an answer that passes and has more parts than it may.
func FuzzShape(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.GrepResponse{Files: []*sandbusv1.GrepFile{{Path: "x", Lines: []*sandbusv1.GrepLine{{Text: "y"}}}}}))
	md := (&sandbusv1.GrepResponse{}).ProtoReflect().Descriptor()
	f.Fuzz(func(t *testing.T, b []byte) {
		left := 10
		passes := countElements(b, md, &left, maxNesting)
		var m sandbusv1.GrepResponse
		if !passes || proto.Unmarshal(b, &m) != nil {
			return
		}
		parts := len(m.GetFiles())
		for _, file := range m.GetFiles() {
			parts += len(file.GetLines())
		}
		require.LessOrEqual(t, parts, 10)
	})
}

// FuzzHello reads what a worker says of itself: what is accepted keeps to the bounds of the schema.
func FuzzHello(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.Hello{Instance: "i", Protocol: 1, Slots: 1, Labels: map[string]string{"a": "b"}, Worker: &sandbusv1.Privileges{Uid: 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h sandbusv1.Hello
		if proto.Unmarshal(b, &h) != nil || checkHello(&h) != nil {
			return
		}
		require.True(t, isToken(h.GetInstance()))
		require.LessOrEqual(t, len(h.GetLabels()), 64)
		require.True(t, h.GetSlots() >= 1 && h.GetSlots() <= maxSlots)
		if p := privileges(h.GetWorker()); p != nil {
			_ = p.String()
		}
	})
}

// FuzzBeat and FuzzGoodbye read what follows the hello.
func FuzzBeat(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.Beat{Instance: "i", Load: -1, Used: 1 << 30}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m sandbusv1.Beat
		if proto.Unmarshal(b, &m) == nil {
			require.True(t, clamp(m.GetLoad()) >= 0 && clamp(m.GetUsed()) <= maxSlots)
		}
	})
}

func FuzzGoodbye(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.Goodbye{Instance: "i", Reason: "r"}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var m sandbusv1.Goodbye
		_ = proto.Unmarshal(b, &m) // what it says is compared with what is known, and goes nowhere
	})
}

// FuzzPresence reads a record of the presence bucket.
func FuzzPresence(f *testing.F) {
	b, err := json.Marshal(Presence{Zone: "main", Sandbox: "box", Commands: &Privileges{UID: 1}})
	require.NoError(f, err)
	f.Add("main.box", b)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		p, err := parsePresence(key, value)
		if err == nil {
			require.Equal(t, key, presenceKey(p.Zone, p.Sandbox))
		}
	})
}
