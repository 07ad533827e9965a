package bench

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkFoundation prints the ratios of the foundation: a native read against a bare request with a reply of the
// same size, and the fast tier against a fresh bash for each call over the same bus.
func BenchmarkFoundation(b *testing.B) {
	const size = 3600
	r := startRig(b)
	path := r.file(b, "file", size)
	echo, fresh := r.bare(b, "echo"), r.bare(b, "fresh")
	echoArm := arm{"echo", func(ctx context.Context) error {
		_, err := echo.Request(ctx, fmt.Append(nil, size))
		return err
	}}
	readArm := arm{"read", func(ctx context.Context) error {
		_, err := r.sb.ReadFile(ctx, "file")
		return err
	}}
	shell := func(script string) arm {
		return arm{script, func(ctx context.Context) error {
			_, err := r.sb.ScriptCommand(script).Output(ctx)
			return err
		}}
	}
	freshShell := func(script string) arm {
		return arm{"fresh " + script, func(ctx context.Context) error {
			_, err := fresh.Request(ctx, []byte(script))
			return err
		}}
	}
	for b.Loop() {
		m := latencies(b, 20, 200, echoArm, readArm)
		report(b, "read 3.6 kB / echo, p50, c=1", ratio(m[1], m[0]), true, 1.25, fmt.Sprintf("%v / %v", m[1], m[0]))
		t := throughputs(b, 5, time.Second, 16, echoArm, readArm)
		report(b, "read 3.6 kB / echo, throughput, c=16", t[1]/t[0], false, 0.7, fmt.Sprintf("%.0f/s / %.0f/s", t[1], t[0]))
		m = latencies(b, 10, 40, freshShell(":"), shell(":"))
		report(b, "fast : / fresh bash -c :, p50", ratio(m[1], m[0]), true, 0.35, fmt.Sprintf("%v / %v", m[1], m[0]))
		m = latencies(b, 10, 40, freshShell("cat "+path), shell("cat "+path))
		report(b, "fast cat / fresh bash -c cat, p50", ratio(m[1], m[0]), true, 0.65, fmt.Sprintf("%v / %v", m[1], m[0]))
	}
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
