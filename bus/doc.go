// Package bus is everything in sandbus that knows NATS: subjects, connections, requests and replies, streams with
// credit, presence, and the roles that the hub enforces.
//
// # Who speaks to whom
//
// A harness sends a request to one worker instance (sbx.<zone>.<id>.<inst>.<verb>) and chooses the subject on which
// the answer comes back (rep.<zone>.<id>.<harness>.<conn>.<op>). The hub lets only sandbox <id> of <zone> publish
// there, and [Caller] compares the subject of each answer with the one that it chose: an answer that arrives was
// said by the sandbox that was asked.
//
// # Two shapes of an answer
//
// An answer is one message (protobuf or protojson), or a stream of frames (see [Frame]). They are told apart by the
// first byte: a frame begins with the high byte of its sequence number, which is zero for the first 2^56 frames; no
// protobuf message and no JSON text begins with a zero byte. A message that does not fit into one NATS message
// arrives as a stream of data frames; [Caller.Request] puts it together again.
//
// # Invariants
//
//   - Nothing is sent under a name that was not checked: every id type is made by its Parse function.
//   - A stream ends with one end frame or with an error, never silently.
//   - No peer makes this process hold more of a stream than its window; no peer makes it wait for ever.
//   - A NATS callback hands off and returns.
package bus
