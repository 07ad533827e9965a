// Package bothsides holds the tests that need a harness and a worker: what shows only between the two, on a real bus, with
// real processes. The packages themselves never import each other; this one has nothing but tests.
package bothsides
