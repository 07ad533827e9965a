// Package plainrelay is what the gateway is measured against and tested with: a relay of sandbox/v1 and a worker that
// runs a fresh "bash -c" for each command, as plain as those in the field are said to be. Neither knows the bus.
//
// [Relay] and [Worker] run within a process, as many as one likes; a process of its own calls Serve or Run in its main.
package plainrelay
