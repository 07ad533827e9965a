package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
)

// BenchmarkFiles prints what native file operations cost against bare requests with answers of the same size.
func BenchmarkFiles(b *testing.B) {
	r := startRig(b)
	r.file(b, "file", 3600)
	r.file(b, "line", 1<<20)
	lines := strings.Repeat(strings.Repeat("x", 99)+"\n", 1<<20/100)
	require.NoError(b, os.WriteFile(filepath.Join(r.dir, "lines"), []byte(lines), 0o600))
	require.NoError(b, os.Mkdir(filepath.Join(r.dir, "dir"), 0o700))
	for i := range 100 {
		r.file(b, fmt.Sprintf("dir/entry%03d", i), i)
	}
	bare := r.bare(b, "echo")
	echo := func(size int) arm {
		return arm{fmt.Sprintf("echo %d", size), func(ctx context.Context) error {
			_, err := bare.Request(ctx, fmt.Append(nil, size))
			return err
		}}
	}
	read := arm{"read", func(ctx context.Context) error { _, err := r.sb.ReadFile(ctx, "file"); return err }}
	stat := arm{"stat", func(ctx context.Context) error { _, err := r.sb.Stat(ctx, "file"); return err }}
	data := bytes.Repeat([]byte("y"), 3600)
	write := func(name string, noSync bool) arm {
		return arm{name, func(ctx context.Context) error {
			_, err := r.sb.Write(ctx, "written", data, harnesslib.WriteOptions{Perm: 0o600, NoSync: noSync})
			return err
		}}
	}
	list := arm{"list", func(ctx context.Context) error { _, err := r.sb.ReadDir(ctx, "dir"); return err }}
	turn := 0
	edit := arm{"edit", func(ctx context.Context) error {
		turn++
		old, next := "a", "b"
		if turn%2 == 1 {
			old, next = next, old
		}
		_, err := r.sb.Edit(ctx, "edited", []harnesslib.Edit{{Old: "line " + old + "\n", New: "line " + next + "\n"}}, harnesslib.EditOptions{})
		return err
	}}
	require.NoError(b, os.WriteFile(filepath.Join(r.dir, "edited"), []byte(lines+"line b\n"), 0o600))
	whole := arm{"write 1 MiB", func(ctx context.Context) error {
		return r.sb.WriteFile(ctx, "whole", []byte(lines), 0o600)
	}}
	for b.Loop() {
		pair := func(name string, target float64, a, base arm, rounds, each int) {
			m := latencies(b, rounds, each, base, a)
			report(b, name, ratio(m[1], m[0]), true, target, fmt.Sprintf("%v / %v", m[1], m[0]))
		}
		pair("read 3.6 kB / echo", 1.25, read, echo(3600), 10, 200)
		pair("stat / echo", 1.2, stat, echo(60), 10, 200)
		pair("write 3.6 kB, synced / echo", 3.2, write("write", false), echo(40), 10, 50)
		pair("write 3.6 kB, not synced / echo", 1.8, write("write", true), echo(40), 10, 50)
		pair("list of 100 / echo", 2.2, list, echo(5000), 10, 50)
		pair("edit of a line in 1 MiB / write of it", 3, edit, whole, 5, 10)
		for _, a := range []struct {
			arm  arm
			base arm
		}{{read, echo(3600)}, {stat, echo(60)}} {
			t := throughputs(b, 3, time.Second, 16, a.base, a.arm)
			report(b, a.arm.name+" / echo, throughput, c=16", t[1]/t[0], false, 0.75, fmt.Sprintf("%.0f/s / %.0f/s", t[1], t[0]))
		}
	}
}

// BenchmarkGrep prints what a search in the worker costs against ripgrep as an exec over the same bus.
func BenchmarkGrep(b *testing.B) {
	rg, err := exec.LookPath("rg")
	if err != nil {
		b.Skip("SKIPPED: no ripgrep on this machine")
	}
	r := startRig(b)
	root, err := exec.CommandContext(b.Context(), "go", "env", "GOROOT").Output()
	require.NoError(b, err)
	src := filepath.Join(strings.TrimSpace(string(root)), "src")
	for b.Loop() {
		for _, c := range []struct {
			name, pattern string
			fixed         bool
		}{{"fixed", "WithCancelCause", true}, {"regexp", `func \(.*\) Unwrap\(`, false}} {
			args := []string{"-n", "--hidden", "-e", c.pattern, src}
			if c.fixed {
				args = append([]string{"-F"}, args...)
			}
			m := latencies(b, 3, 5,
				arm{"rg", func(ctx context.Context) error {
					_, err := r.sb.Command(rg, args...).Output(ctx)
					return err
				}},
				arm{"grep", func(ctx context.Context) error {
					_, err := r.sb.Grep(ctx, src, c.pattern, harnesslib.GrepOptions{Fixed: c.fixed, Limit: 100_000})
					return err
				}})
			report(b, "grep "+c.name+" / rg as an exec", ratio(m[1], m[0]), true, 2, fmt.Sprintf("%v / %v", m[1], m[0]))
		}
	}
}

// BenchmarkTransfer prints the throughput of an upload and a download of 1 GiB against bare messages.
func BenchmarkTransfer(b *testing.B) {
	const size = 1 << 30
	r := startRig(b)
	flood := r.bare(b, "flood")
	zeros := func() *os.File {
		f, err := os.Open("/dev/zero")
		require.NoError(b, err)
		b.Cleanup(func() { _ = f.Close() })
		return f
	}
	for b.Loop() {
		begin := time.Now()
		require.NoError(b, flood.Flood(b.Context(), size))
		bare := time.Since(begin)
		begin = time.Now()
		require.NoError(b, r.sb.Upload(b.Context(), "big", zeros(), size, harnesslib.UploadOptions{NoSync: true}))
		up := time.Since(begin)
		var out counting
		begin = time.Now()
		require.NoError(b, r.sb.CopyFrom(b.Context(), "big", &out))
		down := time.Since(begin)
		rate := func(d time.Duration) string { return fmt.Sprintf("%.0f MB/s", size/1e6/d.Seconds()) }
		report(b, "upload / bare stream, throughput", ratio(bare, up), false, 0.75, rate(up)+" / "+rate(bare))
		report(b, "download / bare stream, throughput", ratio(bare, down), false, 0.75, rate(down)+" / "+rate(bare))
	}
}
