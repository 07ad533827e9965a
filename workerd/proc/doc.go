// Package proc starts processes in a sandbox and sees them to their end: one outcome, after all the output of the
// leader process, with nothing left alive.
//
// # Invariants
//
//   - A started command is the leader of its own session and process group and has no controlling terminal.
//   - Its output pipes are read until end of file, or, when another process still holds them after the leader's end,
//     until they have been quiet for a moment ([Drain]).
//   - Whoever is killed is named by process id and start time, never by id alone: ids are used again.
package proc
