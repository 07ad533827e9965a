// Package leases admits holders to the slots of one worker.
//
// What always holds: the slots of the live leases never exceed the worker's; an epoch is given once, and a later grant
// has a greater one; a lease that has ended does not come back; only the monotonic clock of this process says when one
// ends. Ended is told once for each lease, Left once for each time that a holder's last lease has been gone for the
// keep time.
package leases
