// Package transport is the seam between a harness and the ways in which bytes reach a sandbox. What is above it does
// not know whether a command goes over the bus, through "docker exec", or to a relay.
//
// # The contract
//
// A [Transport] runs shell text and gives its result in the collected form: standard output and standard error apart,
// as raw bytes, and the exit code. A command that ran and failed is no error: its exit code says so. Errors mean that
// the command did not end of its own accord, or that nobody knows: *[TimeoutError] and *[AbortError], whose texts are
// "timeout:<seconds>" and "aborted"; *harnesslib.ExitError of kind StartFailed when it did not start, as in a
// directory that is not there; [ErrUnreachable] when nothing ran; [ErrLost] when nobody can say. With every error but
// the last two kinds the result is there as well, with what was printed so far; with ErrLost it may be.
//
// Output that is longer than its limit ends the command: then the result is truncated, ends with [TruncatedMarker], and
// has no exit code. Output of exactly the limit is complete.
//
// The end of a context aborts the command; a transport returns when what the command started is dead, as far as its
// [StopMechanism] reaches. A timeout that the command's end has overtaken does not count.
//
// # Tiers
//
// A transport may hold open something that serves short operations without a process for each: its fast tier. It says
// so in a method of the interface, so that no transport can be written without a word about it, and each result says
// which tier served it. [Tiers] makes one transport of two, for harnesses that have separate ways for both.
//
// The package conformance holds a transport to all this.
package transport
