package relay

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Text makes shell text one that a relay can carry: the contract's commands are UTF-8, and those of a shell any bytes.
// Text that is not UTF-8 is written with octal escapes, which the shell at the far end turns back before it runs it.
func Text(script string) string {
	if utf8.ValidString(script) {
		return script
	}
	var b strings.Builder
	// The "." keeps the newlines at the end from being cut off by $( ).
	b.WriteString("_sandbus_text=$(printf '")
	for i := range len(script) {
		switch c := script[i]; {
		case c >= utf8.RuneSelf, c == '\'', c == '\\', c == '%', c == '\r':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteString(".')\n" + `eval "unset _sandbus_text` + "\n" + `${_sandbus_text%.}"`)
	return b.String()
}
