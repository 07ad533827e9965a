package rig

import "encoding/binary"

// An echo request is the size of the answer, then whatever a real request would carry.

func echoSize(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// echoAnswer makes answers that are parts of one buffer: nobody changes them.
func echoAnswer() func([]byte) []byte {
	buf := make([]byte, maxEcho)
	return func(request []byte) []byte {
		if len(request) < 4 {
			return nil
		}
		return buf[:min(int(binary.BigEndian.Uint32(request)), len(buf))]
	}
}
