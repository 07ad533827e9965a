// Package faults breaks everything and checks that nothing was lost: hubs, registrars, workers and harnesses in processes
// of their own, each connection through a link that can be cut, delayed, throttled or made to swallow, signals to each
// process, and a history of all that was asked for and heard, which is compared with what the sandboxes' own files say.
//
// A run is a scenario and a seed. "go test ./e2e/faults -seeds 20" (make faults) runs all scenarios with twenty seeds; what
// fails is run again with less of everything for as long as it fails, and is reported as the command that repeats it.
package faults
