package bus

import (
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// marshal encodes a message for the wire.
func marshal(m proto.Message, json bool) ([]byte, error) {
	if json {
		return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	}
	return proto.Marshal(m)
}

// buffers are what answers are encoded in: nats.go copies a payload before Publish returns.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxPooled keeps one large answer from staying in memory.
const maxPooled = 512 << 10

// withEncoded hands a message's encoding to use, which must not keep it.
func withEncoded(m proto.Message, json bool, use func([]byte)) error {
	if json {
		b, err := marshal(m, json)
		if err == nil {
			use(b)
		}
		return err
	}
	buf := buffers.Get().(*[]byte)
	b, err := proto.MarshalOptions{}.MarshalAppend((*buf)[:0], m)
	if err == nil {
		use(b)
	}
	if cap(b) <= maxPooled {
		*buf = b
		buffers.Put(buf)
	}
	return err
}

// unmarshal decodes what came from outside into a new message. In JSON an unknown field is an error, because a person typed it; in
// protobuf it is kept, because a newer peer sent it.
func unmarshal(b []byte, json bool, m proto.Message) error {
	if !json {
		// Merge leaves out the reset of a message that is new.
		return proto.UnmarshalOptions{Merge: true}.Unmarshal(b, m)
	}
	if len(b) == 0 {
		return nil
	}
	return protojson.Unmarshal(b, m)
}
