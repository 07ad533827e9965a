package gateway

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/sandbus/sandbus/harnesslib"
)

// nativeBytes is how large a file may be that is read natively, in bytes: one round trip.
const nativeBytes = 256 << 10

// native answers the file commands that existing harnesses send most (cat FILE, test -r FILE and its siblings) by the
// worker's native file operations, without a shell: ok is true only where the command would have given just that. All
// else, every error of cat among it, is left to the shell, whose words they are.
func native(ctx context.Context, sb *harnesslib.Sandbox, command string) (stdout []byte, code int, ok bool) {
	words, ok := simpleWords(command)
	if !ok {
		return nil, 0, false
	}
	if len(words) == 4 && words[0] == "[" && words[3] == "]" {
		words[0], words = "test", words[:3]
	}
	if len(words) == 3 && words[0] == "cat" && words[1] == "--" {
		words = []string{"cat", words[2]}
	}
	switch {
	case len(words) == 2 && words[0] == "cat" && plainPath(words[1]):
		stdout, ok = nativeCat(ctx, sb, words[1])
		return stdout, 0, ok
	case len(words) == 3 && words[0] == "test" && plainPath(words[2]):
		code, ok = nativeTest(ctx, sb, words[1], words[2])
		return nil, code, ok
	}
	return nil, 0, false
}

// plainPath says whether a word names a file and nothing else. What the kernel makes up differs from one process to the
// next, so it is the command's own to read.
func plainPath(p string) bool {
	for _, tree := range []string{"/proc", "/dev", "/sys"} {
		if strings.Contains(p, tree) { // also by way of ".."
			return false
		}
	}
	return p != "" && p[0] != '-'
}

// nativeCat reads a file whose length is what its directory entry says: that of a file which the kernel makes up is not.
func nativeCat(ctx context.Context, sb *harnesslib.Sandbox, path string) ([]byte, bool) {
	fi, err := sb.Stat(ctx, path)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || fi.Size() > nativeBytes {
		return nil, false
	}
	b, err := sb.ReadRange(ctx, path, 0, fi.Size()+1)
	return b, err == nil && int64(len(b)) == fi.Size()
}

func nativeTest(ctx context.Context, sb *harnesslib.Sandbox, op, path string) (code int, ok bool) {
	if op != "-e" && op != "-f" && op != "-d" && op != "-s" && op != "-r" {
		return 0, false
	}
	fi, err := sb.Stat(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return 1, true
	}
	if err != nil {
		return 0, false
	}
	holds := true // -e
	switch op {
	case "-f":
		holds = fi.Mode().IsRegular()
	case "-d":
		holds = fi.IsDir()
	case "-s":
		holds = fi.Size() > 0
	case "-r":
		if !fi.Mode().IsRegular() {
			return 0, false
		}
		_, err := sb.ReadRange(ctx, path, 0, 1)
		return 0, err == nil
	}
	if holds {
		return 0, true
	}
	return 1, true
}

// bareChars are those of a word that mean themselves in every shell, anywhere in it.
const bareChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+,:@-"

// simpleWords takes a command apart that is one program with arguments, and in which the shell has nothing to do but to
// take quotes away.
func simpleWords(command string) (words []string, ok bool) {
	command = strings.Trim(command, " \t\n")
	if len(command) > 2*4096 || strings.ContainsAny(command, "\n\x00") {
		return nil, false
	}
	var word strings.Builder
	begun := false
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == ' ' || c == '\t':
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		case c == '\'' || c == '"':
			end := strings.IndexByte(command[i+1:], c)
			if end < 0 {
				return nil, false
			}
			text := command[i+1 : i+1+end]
			if c == '"' && strings.ContainsAny(text, "$`\\!") {
				return nil, false
			}
			word.WriteString(text)
			begun = true
			i += end + 1
		case strings.IndexByte(bareChars, c) >= 0, (c == '[' || c == ']') && alone(command, i):
			word.WriteByte(c)
			begun = true
		default:
			return nil, false
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words, len(words) > 0
}

// alone says whether the byte at i is a word of its own.
func alone(s string, i int) bool {
	return (i == 0 || s[i-1] == ' ') && (i == len(s)-1 || s[i+1] == ' ')
}
