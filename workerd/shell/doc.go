// Package shell runs scripts on shells that are already there: the fast tier, and sessions.
//
// # How a command reaches a warm shell
//
// A warm shell runs a loop. For each command the worker makes pipes and writes their names on the shell's command
// descriptor; the shell forks a subshell, which opens the pipes and waits at the one that will carry the text. So the
// fork, most of what a fast exec costs, is over before the command arrives. The text is sourced from its pipe as
// assignments (cwd, environment, the script as one quoted word) and then evaluated, so that it means what "bash -c"
// makes of it, whatever it contains and however long it is. The subshell's status comes back from the loop, on a
// descriptor that the subshell does not have.
//
// The pipes are opened through /proc/<worker>/fd/N. A probe at the start finds where that does not work (not mounted,
// hidden, another user's); there they are FIFOs in a private directory, which is made anew when a command deletes it. A
// command whose text nobody has read did not run: it is tried on another shell.
//
// # Exit codes and signals
//
// A shell makes 128 + N of a subshell's death by signal N, which a command can also exit with. On Linux 6.15 and later
// the kernel tells the two apart (PIDFD_GET_INFO): the subshell says its process id before it waits, and a handle of it
// is open when its command runs. On older kernels, which a probe at the start finds, such a death is reported as
// exited(128 + N), as a shell reports it. A program that the script started and that died of a signal is not meant: what
// the script makes of that is its exit code.
//
// # Sessions
//
// A session is a shell that keeps its state from one command to the next. It reads what to do as a script on its
// standard input, one line for each command: so there is no loop of ours around a command that a "break" could end. The
// script is evaluated in the shell itself; a line of ours says on a descriptor that the script does not have when it
// begins and with which status it ended. Choices that the design left open:
//
//   - Redirections are of one command: "exec >file" ends with it. So does its environment, also when it assigns to one of
//     those variables. After a cwd of its own the session goes back to where it was, unless the command has itself
//     changed the directory. $? does not pass from one command to the next.
//   - A command that is timed out or aborted is given up by SIGURG, which the session's shell traps (see [dialect]); "trap"
//     shows it. What earlier commands have left in the background is not touched.
//   - exit, exec, set -e with a failing command, and a signal end the shell: the result has how, and says that the state
//     is lost. In bash ${x?} of an unset variable does, too.
//   - Variables whose names begin with __sandbus are ours. Who makes them read-only gets a session that is lost, and, for
//     __sandbus_s and __sandbus_in, a wrong status for that one command.
//   - set -x also shows the line of ours that evaluates the script.
//
// # Invariants
//
//   - What one fast command does to its shell (cd, export, set, trap, exec, functions) is gone with its subshell.
//   - Output pipes belong to one command: nothing of an earlier one can come through them.
//   - Nothing that a command prints is looked at.
//   - A shell that does not answer is replaced, never used again. A session's shell that waits for its next line without
//     having said how the command ended (which redefining builtins can bring about) is asked for its exit status and
//     given up; where it has none the outcome is lost.
package shell
