// Package search finds files and lines in the worker's own process: no process of another program, no tool that could
// be missing.
//
// # Order
//
// All results come in the order of a walk whose every directory is sorted by the bytes of its names, whatever the
// number of cores. What a limit cuts off is therefore the same in every run, and so are the counts that go with it.
//
// # Invariants
//
//   - Symbolic links are not followed, except for the root that the caller names. All below the root is opened
//     relative to its directory's descriptor: nothing that is renamed meanwhile leads elsewhere.
//   - Only regular files are opened; a FIFO or a device never.
//   - What is left out and not by a rule is counted, and the limit that cut an answer is named in it.
//   - Memory is bounded whatever a tree holds, up to one directory's names: see maxPending and maxLineBytes.
package search
