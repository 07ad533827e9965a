package bothsides

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/tools"
)

func TestEditTool(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"f": "\ufeffa\r\nb\r\nc \u201cd\u201d\r\n", "It\u2019s": "x\nx\n"})
	tl := tools.For(searchSandbox(t, dir), tools.Config{})
	r, err := tl.Edit(t.Context(), tools.EditParams{Path: "f", Edits: []tools.Replacement{{OldText: "a\nb", NewText: "A\nB"}, {OldText: "c \"d\"", NewText: "C"}}})
	require.NoError(t, err)
	require.Equal(t, "Replaced 2 blocks in f", r.Text)
	require.Equal(t, 1, r.FirstChangedLine)
	require.Contains(t, r.Diff, "+C")
	data, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Equal(t, "\ufeffA\r\nB\r\nC\r\n", string(data))
	for _, c := range []struct{ path, old, want string }{
		{"It's", "x", "edit It's: edit 1: the old text is in the file 2 times"},
		{"f", "A\nZ", "edit f: edit 1: the old text is not in the file"},
		{"nowhere", "x", "edit nowhere: not found"},
		{".", "x", "is a directory"},
	} {
		_, err := tl.Edit(t.Context(), tools.EditParams{Path: c.path, Edits: []tools.Replacement{{OldText: c.old, NewText: "y"}}})
		require.ErrorContains(t, err, c.want)
	}
}
