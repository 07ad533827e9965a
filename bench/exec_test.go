package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counting counts what it discards and notes when the first came.
type counting struct {
	n     int64
	first time.Time
}

func (c *counting) Write(b []byte) (int, error) {
	if c.n == 0 {
		c.first = time.Now()
	}
	c.n += int64(len(b))
	return len(b), nil
}

// BenchmarkStream prints the throughput of an exec's output against bare messages, and the memory that it takes.
func BenchmarkStream(b *testing.B) {
	const size = 1 << 30
	r := startRig(b)
	flood := r.bare(b, "flood")
	for b.Loop() {
		workerIdle, harnessIdle := rss(b, r.worker.Pid), rss(b, os.Getpid())
		var most int64
		var bare, ours []time.Duration
		for range 3 {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			begin := time.Now()
			require.NoError(b, flood.Flood(ctx, size))
			bare = append(bare, time.Since(begin))
			cancel()

			watch, stop := context.WithCancelCause(b.Context())
			done := make(chan int64)
			go func() { done <- watchRSS(watch, b, r.worker.Pid, os.Getpid()) }()
			var out counting
			cmd := r.sb.Command("head", "-c", fmt.Sprint(size), "/dev/zero")
			cmd.Stdout = &out
			begin = time.Now()
			require.NoError(b, cmd.Run(b.Context()))
			ours = append(ours, time.Since(begin))
			stop(errors.New("measured"))
			most = max(most, <-done-workerIdle-harnessIdle)
			require.EqualValues(b, size, out.n)
		}
		slices.Sort(bare)
		slices.Sort(ours)
		rate := func(d time.Duration) string { return fmt.Sprintf("%.0f MB/s", size/1e6/d.Seconds()) }
		report(b, "exec stream / bare stream, throughput", ratio(bare[1], ours[1]), false, 0.85, rate(ours[1])+" / "+rate(bare[1]))
		report(b, "worker + harness, MiB more RSS", float64(most)/(1<<20), true, 64, "")
	}
}

// watchRSS returns the largest sum of the processes' memory until ctx ends.
func watchRSS(ctx context.Context, b *testing.B, pids ...int) (most int64) {
	b.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		sum := int64(0)
		for _, pid := range pids {
			sum += rss(b, pid)
		}
		most = max(most, sum)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return most
		}
	}
}

// BenchmarkFirstByte prints how long the first output of a streaming echo takes, against a local one plus a bare
// request.
func BenchmarkFirstByte(b *testing.B) {
	r := startRig(b)
	echo := r.bare(b, "echo")
	local := arm{"local", func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, "echo", "x")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		_, err = io.ReadFull(out, make([]byte, 1))
		if err == nil {
			_, err = echo.Request(ctx, []byte("2"))
		}
		return errors.Join(err, cmd.Wait())
	}}
	for b.Loop() {
		var remote []time.Duration
		first := func(ctx context.Context) error {
			var out counting
			cmd := r.sb.Command("echo", "x")
			cmd.Stdout = &out
			begin := time.Now()
			err := cmd.Run(ctx)
			remote = append(remote, out.first.Sub(begin))
			return err
		}
		m := latencies(b, 10, 40, local, arm{"stream", first})
		slices.Sort(remote)
		p50 := remote[len(remote)/2]
		report(b, "first byte of echo / local + bare request", ratio(p50, m[0]), true, 1.5, fmt.Sprintf("%v / %v (whole: %v)", p50, m[0], m[1]))
	}
}

// BenchmarkAbort prints how long the confirmed abort of a command with 50 descendants takes.
func BenchmarkAbort(b *testing.B) {
	r := startRig(b)
	for b.Loop() {
		var took []time.Duration
		for i := range 100 {
			mark := filepath.Join(r.dir, fmt.Sprintf("up%d", i))
			ctx, cancel := context.WithCancelCause(b.Context())
			cmd := r.sb.Command("sh", "-c", "for i in $(seq 50); do sleep 300 & done; : >"+mark+"; sleep 300")
			require.NoError(b, cmd.Start(ctx))
			for {
				if _, err := os.Stat(mark); err == nil {
					break
				}
				<-time.After(time.Millisecond)
			}
			begin := time.Now()
			cancel(errors.New("enough"))
			require.Error(b, cmd.Wait())
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		report(b, "abort of 50 descendants, p99 ms", float64(p99.Microseconds())/1e3, true, 100, fmt.Sprintf("p50 %v", took[len(took)/2]))
	}
}
