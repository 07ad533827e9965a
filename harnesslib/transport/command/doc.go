// Package command reaches a sandbox through the command line of some other program: any argv prefix behind which a
// POSIX shell can be started, such as docker exec -i C, podman exec -i C, kubectl exec -i POD --, ssh HOST or nsenter.
//
// # A line
//
// A line is one process of the prefix with a shell at its far end. It is greeted first: the shell answers on both its
// outputs, with marks that nobody can guess, and says its process id. What comes before that is a banner, and not looked
// at. No command is sent before the answer has come; so a prefix that does not lead to a shell has run nothing.
//
// A command is sent as text on the shell's standard input. Marks on both outputs stand before and behind what it prints,
// and the second one on the standard output carries its status. They are written by the shell that the command's own
// subshell came from, and are in no variable, argument or environment that the command can see. A mark that is missing
// means that bytes are missing: the result is lost, never short.
//
// # Tiers
//
// The fast tier is two lines that stay open, each started when it is first needed: one for commands, one for file
// operations. Each carries one at a time; the others wait in the order of their arrival. File operations have a line of
// their own because what a command leaves behind could print into what comes after it on the same line, and a file must
// never come back with that in it. So that this shows on the line of commands, too, each command holds a descriptor that
// the shell waits for; one that is still held 100 ms after the last output means that something was left behind, and the
// line is given up. What has closed all descriptors but its outputs is not seen.
//
// The stream tier is a line for each command: for those with input, and those whose output is wanted as it comes.
//
// # Stopping
//
// A timeout, an abort and the output limit stop a command at the far side: another process of the prefix looks for what
// descends from the command's shell, or carries the command's mark in its environment, and ends it with TERM and KILL. It
// says when nothing is left. This needs /proc there. Without that word the result is lost, and only the near process is
// killed. The output limit holds at the source by back-pressure: nothing is read above it.
package command
