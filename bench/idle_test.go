package bench

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkIdle prints what a worker costs that nobody asks for anything.
func BenchmarkIdle(b *testing.B) {
	const span = 20 * time.Second
	r := startRig(b)
	for b.Loop() {
		begin := cpu(b, r.worker)
		<-time.After(span)
		used := cpu(b, r.worker) - begin
		report(b, "idle CPU, ms in 60 s", float64(used.Milliseconds())*60/span.Seconds(), true, 20, "")
		size := float64(rss(b, r.worker.Pid)) / (1 << 20)
		report(b, "idle RSS, MiB", size, true, 25, fmt.Sprintf("%.1f MiB, the warm shells apart; this test binary holds the hub and the harness too", size))
	}
}
