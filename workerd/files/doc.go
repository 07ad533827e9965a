// Package files does file operations in the worker's own process: no shell and no fork, one system call after the
// other.
//
// # Invariants
//
//   - Names are bytes: nothing is cleaned, quoted or decoded on the way.
//   - A write is whole or not at all: whoever reads meanwhile sees the old content or the new one.
//   - Changes of one file follow each other, by whatever names it is reached: edits at the same time all land.
//   - In a confined tree ([Config].Root) every path goes through os.Root; without confinement no system call is added.
//   - Nothing blocks on what is no regular file: FIFOs, sockets and devices are refused by type.
//   - An error carries a code, the system's error number and the path as it was given.
package files
