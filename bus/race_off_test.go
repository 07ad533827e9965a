//go:build !race

package bus

// raceEnabled says that the race detector is on.
const raceEnabled = false
