package shellfiles

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

// TestFunctionsAreShell has every shell read every function.
func TestFunctionsAreShell(t *testing.T) {
	names := map[string]bool{}
	for _, f := range []Function{
		fnRead, fnHead, fnStat, fnList, fnStore, fnAppend, fnStage, fnCommit, fnJoin, fnDiscard, fnMkdir, fnRemove, fnRemoveAll, fnRename, fnChmod, fnSymlink,
		fnReadLnk, fnHash,
	} {
		require.False(t, names[f.Name], f.Name)
		names[f.Name] = true
		for name, path := range testenv.Shells(t) {
			args := []string{"-c", f.Text + "\ncommand -v " + f.Name}
			if name == "busybox" {
				args = append([]string{"sh"}, args...)
			}
			out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
			require.NoError(t, err, "%s: %s", f.Name, out)
			require.Equal(t, f.Name, strings.TrimSpace(string(out)))
		}
	}
}
