package command

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

func TestSmoke(t *testing.T) {
	for _, sh := range []string{"bash", "dash", "busybox sh"} {
		tr, err := New(Config{Prefix: append([]string{"env", "-i"}, strings.Fields(sh)...), PrefixIsShell: true, Dir: t.TempDir()})
		require.NoError(t, err)
		show := func(c transport.Command) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			b := time.Now()
			r, err := tr.Exec(ctx, c)
			fmt.Printf("%s %.60q: %v err=%v", sh, c.Script, time.Since(b).Round(time.Microsecond), err)
			if r != nil {
				code := -1
				if r.ExitCode != nil {
					code = *r.ExitCode
				}
				fmt.Printf(" out=%.100q err=%.100q code=%d trunc=%v held=%v tier=%s n=%d", r.Stdout, r.Stderr, code, r.Truncated, r.PipeHeld, r.Tier, len(r.Stdout))
			}
			fmt.Println()
		}
		show(transport.Command{Script: "echo hi; echo err >&2; exit 3"})
		show(transport.Command{Script: "test -r /etc/passwd"})
		show(transport.Command{Script: "test -r /etc/passwd"})
		show(transport.Command{Script: "kill -9 $$"})
		show(transport.Command{Script: "sleep 300 & echo hi"})
		show(transport.Command{Script: "(sleep 0.05; echo late) & echo hi"})
		show(transport.Command{Script: "set"})
		show(transport.Command{Script: "printf start; sleep 300", Timeout: 300 * time.Millisecond})
		show(transport.Command{Script: "trap '' TERM INT; printf start; while :; do :; done", Timeout: 300 * time.Millisecond})
		show(transport.Command{Script: "yes", OutputLimit: 1000})
		show(transport.Command{Script: "cat", Stdin: strings.NewReader("hello")})
		show(transport.Command{Script: "wc -c", Stdin: bytes.NewReader(make([]byte, 5<<20))})
		show(transport.Command{Script: "head -c 3", Stdin: bytes.NewReader(make([]byte, 5<<20))})
		show(transport.Command{Script: "pwd", Dir: "/nonexist"})
		show(transport.Command{Script: "cat <<X\nfoo\nX"})
		show(transport.Command{Script: "kill -9 $PPID; sleep 1; echo"})
		show(transport.Command{Script: "echo 'unclosed"})
		f := tr.Files()
		ctx := t.Context()
		require.NoError(t, f.WriteFile(ctx, "a b'c", []byte("x\x00y\\n\n\n"), 0o600))
		got, err := f.ReadFile(ctx, "a b'c")
		require.NoError(t, err)
		require.Equal(t, "x\x00y\\n\n\n", string(got))
		require.NoError(t, f.WriteFile(ctx, "big", bytes.Repeat([]byte{0, 1, 2, 255}, 100000), 0o644))
		h, err := f.Hash(ctx, "big")
		fmt.Printf("%x %v\n", h[:4], err)
		l, err := f.ReadDir(ctx, ".")
		fmt.Println(l, err)
		i, err := f.Stat(ctx, "big")
		fmt.Println(i, err)
		b := time.Now()
		_, err = f.ReadFile(ctx, "nope")
		fmt.Println(err, time.Since(b))
		fmt.Println(tr.Stats())
		require.NoError(t, tr.Close())
	}
}
