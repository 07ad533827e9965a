// Package dial serves net.dial: TCP connections from a harness to listeners that the sandbox reaches.
//
// A connection is one op with a stream each way. Either direction can end while the other goes on: the far end's EOF is
// a frame of its own (bus.FrameEOF), the caller's is the end frame of its input. Who holds what has taken it: bytes
// whose frames are acknowledged are the worker's to deliver, as those that write(2) took are the kernel's.
//
// Invariants
//
//   - Unless New allowed every address, no packet leaves for an address that is not loopback, whatever a name resolves to: the rule is
//     applied to the address of each attempt, after the name was resolved.
//   - A far end sees an orderly close only when the caller asked for one. All else (an abort, a caller that is gone, a
//     stream that broke, the worker's stop) resets the connection.
package dial
