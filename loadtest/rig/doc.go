// Package rig runs load tests: it starts the processes, has them do a workload rung by rung and arm by arm, and makes
// records of what they used.
//
// Everything is in processes of its own, made from the one binary: the hub, K sandboxes (each a real worker), W harness
// processes with S sessions in each. Only the arm bus-embedded differs, which has its hub in the harness's process. The rig's
// own process only gives orders and reads the counters.
//
// One file holds one arm, arm_NAME.go; arms lists them.
package rig
