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
