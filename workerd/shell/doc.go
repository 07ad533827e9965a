// Package shell runs scripts on shells that are already there: the fast tier.
//
// # How a command reaches the shell
//
// A warm shell runs a loop. For each command the worker makes pipes and writes their numbers on the shell's command
// descriptor; the shell forks a subshell, which opens the pipes through /proc/<worker>/fd/N and waits at the one that
// will carry the text. So the fork, most of what a fast exec costs, is over before the command arrives. The text is
// sourced from its pipe as assignments (cwd, environment, the script as one quoted word) and then evaluated, so that
// it means what "bash -c" makes of it, whatever it contains and however long it is. The subshell's status comes back
// from the loop, on a descriptor that the subshell does not have.
//
// # Invariants
//
//   - What one command does to its shell (cd, export, set, trap, exec, functions) is gone with its subshell.
//   - Output pipes belong to one command: nothing of an earlier one can come through them.
//   - Nothing that a command prints is looked at.
//   - A shell whose loop does not answer is replaced, never used again.
package shell
