package bothsides

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib"
	"github.com/sandbus/sandbus/textedit"
)

func TestC59Edit(t *testing.T) {
	b := newFilesBox(t, nil)
	ctx := t.Context()
	t.Run("only the touched bytes change", func(t *testing.T) {
		for name, c := range map[string][4]string{
			"CRLF":             {"a\r\nb\r\nc\r\n", "a\nb", "A\nB", "A\r\nB\r\nc\r\n"},
			"BOM":              {"\xef\xbb\xbfa\r\nb", "a", "A", "\xef\xbb\xbfA\r\nb"},
			"mixed endings":    {"a\r\nb\nc\rd\r\n", "a\nb\n", "A\nB\n", "A\r\nB\nc\rd\r\n"},
			"no final newline": {"a\nb", "b", "B", "a\nB"},
			"fuzzy":            {"x \u201cq\u201d  \ny\u2019 \n\xff\n", "x \"q\"\ny'", "z", "z \n\xff\n"},
			"to empty":         {"all", "all", "", ""},
		} {
			t.Run(name, func(t *testing.T) {
				b.put(t, "f", c[0], 0o750)
				require.NoError(t, os.RemoveAll(b.path("link")))
				require.NoError(t, os.Symlink("f", b.path("link")))
				res, err := b.Edit(ctx, "link", []harnesslib.Edit{{Old: c[1], New: c[2]}}, harnesslib.EditOptions{})
				require.NoError(t, err)
				require.Equal(t, c[3], b.get(t, "f"))
				require.Equal(t, sha256.Sum256([]byte(c[3])), res.SHA256)
				require.Equal(t, int64(len(c[3])), res.Size)
				require.Equal(t, name == "fuzzy", res.Places[0].Fuzzy)
				require.Contains(t, res.Diff, "@@ -")
				fi, err := os.Lstat(b.path("f"))
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o750), fi.Mode())
				_, err = os.Readlink(b.path("link"))
				require.NoError(t, err)
			})
		}
	})
	t.Run("or nothing, with the reason", func(t *testing.T) {
		const content = "one\ntwo\nthree\ntwo\n"
		for name, c := range map[string]struct {
			edits []harnesslib.Edit
			want  harnesslib.EditFault
		}{
			"one match of two": {[]harnesslib.Edit{{Old: "one", New: "1"}, {Old: "two", New: "2"}}, harnesslib.EditFault{Index: 1, Reason: textedit.Ambiguous, Count: 2, Lines: []int{2, 4}}},
			"overlapping":      {[]harnesslib.Edit{{Old: "one\ntwo", New: "1"}, {Old: "two\nthree", New: "2"}}, harnesslib.EditFault{Index: 1, Reason: textedit.Overlap}},
			"no match":         {[]harnesslib.Edit{{Old: "threes", New: "x"}}, harnesslib.EditFault{Reason: textedit.NoMatch, Closest: "three", ClosestLine: 3}},
			"empty":            {[]harnesslib.Edit{{New: "x"}}, harnesslib.EditFault{Reason: textedit.Empty}},
			"identical":        {[]harnesslib.Edit{{Old: "one", New: "one"}}, harnesslib.EditFault{Reason: textedit.Identical}},
		} {
			t.Run(name, func(t *testing.T) {
				b.put(t, "f", content, 0o644)
				_, err := b.Edit(ctx, "f", c.edits, harnesslib.EditOptions{})
				var ee *harnesslib.EditError
				require.ErrorAs(t, err, &ee)
				require.Equal(t, []harnesslib.EditFault{c.want}, ee.Faults)
				require.ErrorContains(t, err, fmt.Sprintf("edit f: edit %d: ", c.want.Index+1))
				require.Equal(t, content, b.get(t, "f"))
			})
		}
		_, err := b.Edit(ctx, "f", nil, harnesslib.EditOptions{})
		require.ErrorContains(t, err, "0 edits: want 1 to 1000")
		_, err = b.Edit(ctx, "absent", []harnesslib.Edit{{Old: "a", New: "b"}}, harnesslib.EditOptions{})
		require.ErrorIs(t, err, os.ErrNotExist)
		other := sha256.Sum256(nil)
		_, err = b.Edit(ctx, "f", []harnesslib.Edit{{Old: "one", New: "b"}}, harnesslib.EditOptions{ExpectedSHA256: &other})
		require.ErrorIs(t, err, harnesslib.ErrConflict)
		require.Equal(t, content, b.get(t, "f"))
	})
	t.Run("a file over 64 MiB", func(t *testing.T) {
		b.put(t, "f", "", 0o644)
		require.NoError(t, os.Truncate(b.path("f"), 64<<20+1))
		_, err := b.Edit(ctx, "f", []harnesslib.Edit{{Old: "one", New: "b"}}, harnesslib.EditOptions{})
		require.ErrorIs(t, err, harnesslib.ErrTooLarge)
		require.ErrorContains(t, err, "67108865 bytes, the bound is 67108864")
	})
}

func TestC60ParallelEdits(t *testing.T) {
	b := newFilesBox(t, nil)
	require.NoError(t, os.Mkdir(b.path("d"), 0o755))
	require.NoError(t, os.Symlink("d", b.path("dl")))
	var want strings.Builder
	var content strings.Builder
	for i := range 20 {
		_, _ = fmt.Fprintf(&content, "line %02d\n", i)
		_, _ = fmt.Fprintf(&want, "LINE %02d\n", i)
	}
	b.put(t, "d/f", content.String(), 0o644)
	require.NoError(t, os.Symlink("d/f", b.path("fl")))
	second := b.harness(t, "other")
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			sb, path := b.Sandbox, []string{"d/f", "dl/f", "fl", b.path("d/../d//f")}[i%4] // one file by many names
			if i%2 == 0 {
				sb = second
			}
			_, errs[i] = sb.Edit(t.Context(), path, []harnesslib.Edit{{Old: fmt.Sprintf("line %02d", i), New: fmt.Sprintf("LINE %02d", i)}}, harnesslib.EditOptions{})
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, want.String(), b.get(t, "d/f"))
}
