package command_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
)

// BenchmarkPrefix compares the persistent way with a process per call; "env -i bash" stands for docker exec.
func BenchmarkPrefix(b *testing.B) {
	name := b.TempDir() + "/f"
	require.NoError(b, os.WriteFile(name, bytes.Repeat([]byte("0123456789ab"), 300), 0o644))
	cfg := command.Config{Prefix: []string{"env", "-i", "bash"}, PrefixIsShell: true}
	for what, op := range map[string]func(tr transport.Transport) error{
		"read": func(tr transport.Transport) error { _, err := tr.Files().ReadFile(b.Context(), name); return err },
		"test": func(tr transport.Transport) error {
			_, err := tr.Exec(b.Context(), transport.Command{Script: "test -r " + name})
			return err
		},
	} {
		for way, tr := range map[string]transport.Transport{"persistent": open(b, cfg), "per call": openPerCall(b, cfg)} {
			b.Run(what+"/"+way, func(b *testing.B) {
				for b.Loop() {
					if err := op(tr); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkWorker compares a worker with the persistent shell way behind the same prefix, and prints how many times
// faster it is.
func BenchmarkWorker(b *testing.B) {
	dir := b.TempDir()
	name := dir + "/f"
	require.NoError(b, os.WriteFile(name, bytes.Repeat([]byte("0123456789ab"), 300), 0o644))
	cfg := near(b)
	shell, worker := open(b, cfg.Config), openWorker(b, cfg)
	for _, c := range []struct {
		name string
		op   func(tr transport.Transport) error
	}{
		{"read", func(tr transport.Transport) error { _, err := tr.Files().ReadFile(b.Context(), name); return err }},
		{"list", func(tr transport.Transport) error { _, err := tr.Files().ReadDir(b.Context(), dir); return err }},
		{"stat", func(tr transport.Transport) error { _, err := tr.Files().Stat(b.Context(), name); return err }},
		{"write", func(tr transport.Transport) error {
			return tr.Files().WriteFile(b.Context(), dir+"/g", []byte("x"), 0o644)
		}},
		{"true", func(tr transport.Transport) error {
			_, err := tr.Exec(b.Context(), transport.Command{Script: "true"})
			return err
		}},
	} {
		var took [2]float64 // ns for each operation
		for i, way := range []struct {
			name string
			tr   transport.Transport
		}{{"shell", shell}, {"worker", worker}} {
			b.Run(c.name+"/"+way.name, func(b *testing.B) {
				require.NoError(b, c.op(way.tr)) // starts it
				for b.Loop() {
					if err := c.op(way.tr); err != nil {
						b.Fatal(err)
					}
				}
				took[i] = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
				if i == 1 {
					b.ReportMetric(took[0]/took[1], "times-faster")
				}
			})
		}
	}
	require.Zero(b, worker.Stats().Fallbacks)
}
