package proc

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// output runs a program under rules.
func output(t *testing.T, rules *Rules, argv ...string) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := &exec.Cmd{Path: argv[0], Args: argv, Stdout: w, Stderr: w, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	require.NoError(t, StartChild(cmd, rules))
	require.NoError(t, w.Close())
	out := make([]byte, 64<<10)
	n := 0
	for {
		k, err := r.Read(out[n:])
		if n += k; err != nil {
			break
		}
	}
	require.NoError(t, r.Close())
	require.NoError(t, WaitChild(cmd))
	return string(out[:n])
}

// field is a line of /proc/PID/status or /proc/PID/limits, as words behind its name.
func field(t *testing.T, text, name string) []string {
	t.Helper()
	for line := range strings.Lines(text) {
		if after, ok := strings.CutPrefix(line, name); ok {
			return strings.Fields(strings.TrimPrefix(after, ":"))
		}
	}
	t.Fatalf("no line %q in %q", name, text)
	return nil
}

func TestRulesHoldFromTheFirstInstruction(t *testing.T) {
	cat := testenv.Tool(t, "cat")
	rules := &Rules{NoNewPrivs: true, Processes: 4321, Files: 77, FileSize: 1 << 20}
	require.Equal(t, []string{"1"}, field(t, output(t, rules, cat, "/proc/self/status"), "NoNewPrivs"))
	limits := output(t, rules, cat, "/proc/self/limits")
	require.Equal(t, []string{"77", "77", "files"}, field(t, limits, "Max open files"))
	require.Equal(t, []string{"1048576", "1048576", "bytes"}, field(t, limits, "Max file size"))
	require.Equal(t, "4321", field(t, limits, "Max processes")[1], "or less, where this process has less")

	before, err := ReadStatus()
	require.NoError(t, err)
	require.False(t, before.NoNewPrivs, "the worker itself is not held")
	require.Equal(t, []string{"0"}, field(t, output(t, nil, cat, "/proc/self/status"), "NoNewPrivs"))
	require.Equal(t, []string{"0"}, field(t, output(t, &Rules{}, cat, "/proc/self/status"), "NoNewPrivs"))
}

func TestLimitsAboveTheWorkersOwnAreItsOwn(t *testing.T) {
	cat := testenv.Tool(t, "cat")
	own, err := os.ReadFile("/proc/self/limits")
	require.NoError(t, err)
	hard := field(t, string(own), "Max open files")[1]
	n, err := strconv.ParseUint(hard, 10, 64)
	require.NoError(t, err)
	limits := output(t, &Rules{Files: n + 1}, cat, "/proc/self/limits")
	require.Equal(t, hard, field(t, limits, "Max open files")[1])
}

func TestRunAsAnotherUser(t *testing.T) {
	testenv.Need(t, "root", os.Getuid() == 0)
	cat := testenv.Tool(t, "cat")
	rules := &Rules{RunAs: &ID{UID: 12345, GID: 23456}, Files: 99}
	require.NoError(t, rules.Check())
	status := output(t, rules, cat, "/proc/self/status")
	require.Equal(t, []string{"12345", "12345", "12345", "12345"}, field(t, status, "Uid"))
	require.Equal(t, []string{"23456", "23456", "23456", "23456"}, field(t, status, "Gid"))
	require.Empty(t, field(t, status, "Groups"))
	require.Equal(t, []string{"0000000000000000"}, field(t, status, "CapEff"))
	require.Equal(t, []string{"0000000000000000"}, field(t, status, "CapPrm"))
	require.Equal(t, []string{"1"}, field(t, status, "NoNewPrivs"))
	require.Equal(t, "99", field(t, output(t, rules, cat, "/proc/self/limits"), "Max open files")[1])
	now, err := ReadStatus()
	require.NoError(t, err)
	require.Zero(t, now.UID, "the worker itself stays what it is")
}

func FuzzStatus(f *testing.F) {
	b, err := os.ReadFile("/proc/self/status")
	require.NoError(f, err)
	f.Add(string(b))
	f.Add("Uid:\t1 2 3\nGid:\tx y z w\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parseStatus(text) // it is the kernel's, and must not end the worker all the same
	})
}
