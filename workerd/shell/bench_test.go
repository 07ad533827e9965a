package shell

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRun is the fast tier without the bus, beside a fresh shell for each command.
func BenchmarkRun(b *testing.B) {
	bash, err := exec.LookPath("bash")
	require.NoError(b, err)
	for _, script := range []string{":", "cat /etc/hostname"} {
		b.Run("warm "+script, func(b *testing.B) {
			p, err := NewPool(Config{Path: bash, Dir: "/", Env: os.Environ()})
			require.NoError(b, err)
			defer p.Close()
			for b.Loop() {
				_, err := p.Run(b.Context(), Command{Script: script, Limit: 1 << 20})
				require.NoError(b, err)
			}
		})
		b.Run("fresh "+script, func(b *testing.B) {
			for b.Loop() {
				_, err := exec.CommandContext(b.Context(), bash, "-c", script).Output()
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkSession is a command in a session's shell.
func BenchmarkSession(b *testing.B) {
	bash, err := exec.LookPath("bash")
	require.NoError(b, err)
	all, err := NewSessions(SessionsConfig{Config: Config{Path: bash, Dir: "/", Env: os.Environ()}})
	require.NoError(b, err)
	defer all.CloseAll()
	key := SessionKey{"me", "s"}
	_, err = all.Open(key, "")
	require.NoError(b, err)
	for _, script := range []string{":", "cat /etc/hostname"} {
		b.Run(script, func(b *testing.B) {
			for b.Loop() {
				turn, err := all.Queue(key)
				require.NoError(b, err)
				_, err = turn.Run(b.Context(), Command{Script: script, Limit: 1 << 20})
				require.NoError(b, err)
			}
		})
	}
}
