// Package conformance holds a transport to the contract of the package transport, in the manner of testing/fstest.
//
//	func TestMine(t *testing.T) {
//		conformance.Run(t, func(t testing.TB) transport.Transport { return mine(t) }, transport.Declaration{…})
//	}
//
// The sandbox needs a POSIX shell and the programs that a busybox has, a writable /tmp, and one view of files and
// processes for all transports that the function makes. The cases run at once, each on a transport of its own.
//
// [Faults] are ways in which a transport can break the contract, each with the cases that find it: with them the battery
// is tested itself.
package conformance
