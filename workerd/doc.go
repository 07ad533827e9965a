// Package workerd is the daemon inside a sandbox: it dials out to the hub, says hello, and serves the requests to its
// own sandbox and instance.
//
// A program makes a [Worker] with [New], which checks the configuration and does nothing else, and calls [Worker.Run],
// which serves until its context ends and leaves nothing behind. What the worker can do stands in the packages below:
// shell (the fast tier), proc (the stream tier), files (native file operations).
package workerd
