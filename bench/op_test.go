package bench

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkRead is one arm alone, for a profile: BENCH_PROFILE=/tmp go test -bench Read -cpuprofile /tmp/harness.prof
func BenchmarkRead(b *testing.B) {
	r := startRig(b)
	r.file(b, "file", 3600)
	for b.Loop() {
		t := throughput(b, 5*time.Second, 16, arm{"read", func(ctx context.Context) error {
			_, err := r.sb.ReadFile(ctx, "file")
			return err
		}})
		fmt.Printf("%.0f reads/s\n", t)
	}
}
