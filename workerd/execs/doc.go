// Package execs runs streaming execs: it starts them, keeps their output and outcome, and knows them by their ids for
// as long as somebody may ask.
//
// # Invariants
//
//   - An exec id names one run for good: the same request again finds that run, another request under the id is refused.
//   - An exec has one outcome. It is known after the last byte of output that belongs to it.
//   - Output goes into one [Log], in the order in which it was read; every reader reads it from there, at its own pace.
//     The command is held back by the slowest reader that reads on; one that has stopped is overtaken and gets a counted
//     gap, unless all have stopped.
//   - What was aborted or timed out has left nothing alive: not in its process group, not below its leader, and not
//     elsewhere, which a mark in the environment tells.
package execs
