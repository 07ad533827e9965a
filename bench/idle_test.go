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
	<-time.After(3 * time.Second) // warm shells start, and what they leave is collected
	for b.Loop() {
		begin := cpu(b, r.worker)
		<-time.After(span)
		used := cpu(b, r.worker) - begin
		report(b, "idle CPU, ms in 60 s", used.Seconds()*1e3*60/span.Seconds(), true, 20, "")
		size := float64(rss(b, r.worker.Pid)) / (1 << 20)
		report(b, "idle RSS, MiB", size, true, 25, fmt.Sprintf("%.1f MiB, the warm shells apart; this test binary holds the hub and the harness too", size))
	}
}
