package bus

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxElements bounds the parts of one answer: messages within it and elements of its lists. An honest answer has
	// fewer, because every list has a bound in the schema; a hostile one could have a part in every two bytes, each of
	// which takes hundreds of bytes when it is decoded.
	maxElements = 1 << 19
	// maxNesting is deeper than any message of the schema.
	maxNesting = 16
	// plainAnswer is the length in bytes up to which an answer cannot grow to anything that matters.
	plainAnswer = 4 << 10
)

// checkShape says, before memory is taken for it, whether an encoded message of outside has a bearable number of parts.
// Errors: *[StreamError]; that it is no encoding of the message is found by decoding it.
func checkShape(b []byte, md protoreflect.MessageDescriptor) error {
	if len(b) <= plainAnswer {
		return nil
	}
	left := maxElements
	if !countElements(b, md, &left, maxNesting) {
		return &StreamError{Rule: fmt.Sprintf("an answer has at most %d parts, nested at most %d deep", maxElements, maxNesting)}
	}
	return nil
}

// countElements takes the parts of a message off left; false means that there are too many.
func countElements(b []byte, md protoreflect.MessageDescriptor, left *int, depth int) bool {
	if depth == 0 {
		return false
	}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return true // decoding will say so
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(number, kind, b)
		if n < 0 {
			return true
		}
		value := b[:n]
		b = b[n:]
		field := md.Fields().ByNumber(number)
		if field == nil {
			continue // kept as bytes
		}
		if field.IsList() || field.Message() != nil {
			if *left--; *left < 0 {
				return false
			}
		}
		if kind != protowire.BytesType {
			continue
		}
		inner, _ := protowire.ConsumeBytes(value)
		switch {
		case field.Message() != nil:
			if !countElements(inner, field.Message(), left, depth-1) {
				return false
			}
		case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind: // packed numbers
			if *left -= len(inner); *left < 0 {
				return false
			}
		}
	}
	return true
}
