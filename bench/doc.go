// Package bench measures sandbus in the topology that counts: hub, worker and harness in three processes, on loopback
// TCP. Its benchmarks print ratios within one run, because machines are shared and noisy; "make bench" runs them.
//
// The arms of one comparison take turns in short rounds, so that what disturbs the machine disturbs all of them.
package bench
