package transport

import "strings"

// Quote makes one shell word of any bytes but NUL: within single quotes every other byte means itself (POSIX shell,
// 2.2.2).
func Quote(s string) string {
	if !strings.Contains(s, "'") {
		return "'" + s + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Join makes the shell text that runs a program with arguments, in which no shell looks for anything.
func Join(argv ...string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = Quote(a)
	}
	return strings.Join(words, " ")
}
