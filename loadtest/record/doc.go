// Package record is what a load test writes down: latencies, one rung of the ladder, its knee and what bounds it, and
// the comparison of two recordings.
//
// Two terms are never conflated: operations in flight use resources, and concurrency and knees are about these; sandboxes
// or sessions that are only addressable hold a subject or a lease, and have a record of their own, [Addressable].
//
// A column that was not measured is absent from a record, never zero. Times are microseconds, sizes bytes, and a share of
// processors is one of all processors of the machine.
package record
