package bus

import (
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

// unmarshal decodes what came from outside. In JSON an unknown field is an error, because a person typed it; in
// protobuf it is kept, because a newer peer sent it.
func unmarshal(b []byte, json bool, m proto.Message) error {
	if !json {
		return proto.Unmarshal(b, m)
	}
	if len(b) == 0 {
		return nil
	}
	return protojson.Unmarshal(b, m)
}
