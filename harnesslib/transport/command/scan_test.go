package command

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzScanner: however the bytes are cut, the output is what stands between the marks.
func FuzzScanner(f *testing.F) {
	f.Add([]byte("banner"), []byte("out SECRE SECRET"), []byte("late"), 3)
	f.Add([]byte("SECRE"), []byte{}, []byte("SEC"), 1)
	f.Add([]byte{}, []byte("\x00\xffSSECRE"), []byte{}, 100)
	f.Fuzz(func(t *testing.T, before, out, late []byte, step int) {
		const secret = "SECRET-AND-LONG"
		for _, b := range [][]byte{before, out, late} {
			if bytes.Contains(b, []byte(secret)) {
				return // which a command cannot know
			}
		}
		text := bytes.Join([][]byte{before, []byte(secret + "<"), out, []byte(secret + "=7\n"), late, []byte(secret + ">")}, nil)
		if bytes.Count(text, []byte(secret)) != 3 {
			return // it came of two pieces together
		}
		s := scanner{secret: []byte(secret)}
		var got []byte
		step = max(1, min(step, len(text)))
		for rest := text; len(rest) > 0; {
			n := min(step, len(rest))
			s.feed(bytes.Clone(rest[:n]), func(b []byte) { got = append(got, b...) })
			rest = rest[n:]
		}
		require.True(t, s.began && s.ended && s.freed && !s.broken)
		require.Equal(t, "7", s.status)
		require.Equal(t, string(out)+string(late), string(got))
		require.Equal(t, int64(len(before)), s.stray)
	})
}

func TestScannerOfBrokenMarks(t *testing.T) {
	for text, broken := range map[string]bool{
		"S<x": false, "S<xS=0\n": false, "S<xS?": true, "S<xS=" + string(make([]byte, 100)): true, "S<x S": false,
	} {
		s := scanner{secret: []byte("S")}
		var got []byte
		s.feed([]byte(text), func(b []byte) { got = append(got, b...) })
		require.Equal(t, broken, s.broken, "%q", text)
		s.rest(func(b []byte) { got = append(got, b...) })
		require.True(t, bytes.HasPrefix(got, []byte("x")))
	}
}
