package command

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), "workerd", args, func(string) string { return "" }, &stdout, &stderr, nil, "test")
		return code, stdout.String(), stderr.String()
	}
	for range 2 { // also over an earlier one
		code, stdout, stderr := run("install", dir)
		require.Zero(t, code, stderr)
		require.Equal(t, filepath.Join(dir, "workerd")+"\n", stdout)
	}
	want, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(dir, "workerd"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "the copy differs")
	st, err := os.Stat(filepath.Join(dir, "workerd"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), st.Mode().Perm())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "something else was left behind")

	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"install"}, exitUsage, "want one directory"},
		{[]string{"install", dir, dir}, exitUsage, "want one directory"},
		{[]string{"install", "--help"}, exitUsage, "want one directory"},
		{[]string{"install", filepath.Join(dir, "none")}, exitFailed, "none\": no such file or directory; make it first"},
		{[]string{"install", filepath.Join(dir, "workerd")}, exitFailed, "is no directory"},
	} {
		code, _, stderr := run(c.args...)
		require.Equal(t, c.code, code, stderr)
		require.Contains(t, stderr, c.want)
	}
}
