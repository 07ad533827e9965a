package bus

import (
	"encoding/binary"
	"fmt"
)

// FrameKind says what a frame carries. Values are append only.
type FrameKind uint8

// The kinds of frames. Those above the line count in the sequence; those below stand outside of it.
const (
	FrameStarted FrameKind = 1 // the first frame of a stream that has one; body: a message of the verb
	FrameStdout  FrameKind = 2 // body: bytes
	FrameStderr  FrameKind = 3 // body: bytes
	FrameData    FrameKind = 4 // body: bytes of a file, of stdin, of a long answer
	FrameGap     FrameKind = 5 // body: u64, how many bytes are left out here
	FrameEnd     FrameKind = 6 // the last frame; body: StreamEnd
	FrameEOF     FrameKind = 7 // no more bytes follow, and the end is still to come; no body

	FrameKeepAlive FrameKind = 16 // seq: the next frame's number; asks for an ack
	FrameAck       FrameKind = 17 // seq: the frame that is expected next; body: u64, the credit (see Sender)
	FrameNak       FrameKind = 18 // like an ack, and asks to send again from there
)

const (
	frameHeader = 9 // seq u64 | kind u8

	// MaxFrameBody bounds the body of one frame, in bytes: a sender keeps to it, a receiver ends a stream that does not.
	MaxFrameBody = 128 << 10
	// ChunkBytes is how many bytes of output one frame carries at most. Larger chunks are not faster through a server
	// of its own (protocol.md).
	ChunkBytes = 32 << 10
	// DefaultWindow is the credit of a stream whose request names none, in bytes.
	DefaultWindow = 256 << 10
	// MinWindow and MaxWindow bound the credit that a request may ask for, in bytes.
	MinWindow = 64 << 10
	// MaxWindow is the other bound.
	MaxWindow = 4 << 20
)

// Frame is one message of a stream: seq u64 | kind u8 | body, big endian.
type Frame struct {
	Seq  uint64
	Kind FrameKind
	Body []byte
}

// isFrame tells a frame from a protobuf or JSON message by its first byte (see the package's doc).
func isFrame(payload []byte) bool { return len(payload) >= frameHeader && payload[0] == 0 }

// ParseFrame takes a frame apart; its body shares the payload's memory. Errors: *[StreamError].
func ParseFrame(payload []byte) (Frame, error) {
	if len(payload) < frameHeader {
		return Frame{}, &StreamError{Rule: fmt.Sprintf("a frame has at least %d bytes, got %d", frameHeader, len(payload))}
	}
	f := Frame{Seq: binary.BigEndian.Uint64(payload), Kind: FrameKind(payload[8]), Body: payload[frameHeader:]}
	if f.Seq >= 1<<56 {
		return Frame{}, &StreamError{Rule: "a sequence number is below 2^56"}
	}
	if len(f.Body) > MaxFrameBody {
		return Frame{}, &StreamError{Rule: fmt.Sprintf("a frame's body has at most %d bytes, got %d", MaxFrameBody, len(f.Body))}
	}
	switch f.Kind {
	case FrameStarted, FrameStdout, FrameStderr, FrameData, FrameEnd, FrameKeepAlive:
	case FrameEOF:
		if len(f.Body) != 0 {
			return Frame{}, &StreamError{Rule: fmt.Sprintf("the body of a frame of kind %d has 0 bytes, got %d", f.Kind, len(f.Body))}
		}
	case FrameGap, FrameAck, FrameNak:
		if len(f.Body) != 8 {
			return Frame{}, &StreamError{Rule: fmt.Sprintf("the body of a frame of kind %d has 8 bytes, got %d", f.Kind, len(f.Body))}
		}
	default:
		return Frame{}, &StreamError{Rule: fmt.Sprintf("unknown kind %d", f.Kind)}
	}
	if f.Kind == FrameGap && f.number() >= 1<<56 {
		return Frame{}, &StreamError{Rule: "a gap has less than 2^56 bytes"}
	}
	return f, nil
}

// Append adds the frame's bytes to b.
func (f Frame) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, f.Seq)
	b = append(b, byte(f.Kind))
	return append(b, f.Body...)
}

// number is the body of a gap, an ack or a nak.
func (f Frame) number() uint64 { return binary.BigEndian.Uint64(f.Body) }

// GapBytes is how many bytes a gap frame says are missing.
func (f Frame) GapBytes() uint64 { return f.number() }

// counts says whether a frame of this kind uses credit.
func (k FrameKind) counts() bool { return k == FrameStdout || k == FrameStderr || k == FrameData }
