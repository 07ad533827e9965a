// Package gateway lets harnesses and workers of the sandbox/v1 gRPC relays use the bus without a change of theirs.
//
// A harness calls SandboxExec: its command runs in the sandbox of that id at the hub. One whose output is wanted at the
// end takes the fast tier, a shell that is already there; one that streams, or has much input, a process of its own. A
// worker calls SandboxWorker.Attach: it appears in presence as any other worker, with the capabilities "exec" and
// "shell" and without "files", and every harness of the bus can drive it.
//
// # What holds
//
// File commands that harnesses send most ("cat FILE", "test -r FILE") are answered by the worker's native file
// operations, where that gives just what the shell would have; see native.
//
// Nobody does anything without a token (see [Tokens]); a file of tokens that cannot be read refuses everybody. What is
// known is said: a command that did not run ends with an ExecError, one that ran with an End. What is not known is an
// error status of the stream, and neither of the two.
//
// A run belongs to harness, sandbox and req_id. The same request again joins the run and gets its output from the start,
// or, after the end, its last event (with the output where that is small). Another request under its name is refused
// while it runs. Replicas share nothing: a run of the stream tier has at the hub an id that follows from its content, so
// that a request which is repeated at another replica finds it; one of the fast tier is refused there, for it may have run.
// When a replica ends, what runs for it is not aborted: workers end it after a minute, unless somebody comes back for it.
//
// # An attached worker
//
// A sandbox/v1 worker gets its input whole, when the harness has closed it; it has no terminals, detached execs, spool
// files, memory limits or files, and says so. A directory and variables are set by shell text in front of the command. A
// reader that falls [maxQueued] bytes behind loses its exec, because all execs of a worker share one stream.
package gateway
