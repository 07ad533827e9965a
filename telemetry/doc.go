// Package telemetry shows what a process of sandbus does: metrics in Prometheus' text form and a health check, over HTTP on
// an address of their own. Both are open to everybody who reaches that address and tell no contents, no ids of harnesses and
// no names of files; there is no address unless the operator gives one.
//
// The parts themselves count with bus.Meter and the like and know nothing of Prometheus. Names of metrics begin with
// "sandbus_", times are in seconds, sizes in bytes.
package telemetry
