// Package tools is the seven tools of coding agents (read, write, edit, ls, find, grep, bash) over a sandbox.
//
// A result has the text for the model and the same as fields. A tool fails by an error, whose text is for the model, too.
// All tools may be used by many goroutines.
//
// # Limits
//
// A text has at most MaxLines lines and MaxBytes bytes, whichever comes first; newlines between the lines count, one at
// the end is no further line. read, ls, find and grep keep the beginning, bash keeps the end. Only whole lines are kept,
// except for the last line of bash, and a footer says what was left out and how to see it.
//
// # Paths
//
// A path is what a model writes: the sandbox finds the file that is meant (see [Resolver]). A path that has nothing to
// find in it is tried as it is, which saves a round trip; only after a miss is it looked for.
package tools
