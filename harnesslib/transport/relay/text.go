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

// maxCommand is how long a command may be that a worker gives to "bash -c" as one argument, in bytes: Linux takes
// 131,071.
const maxCommand = 100 << 10

// Fit makes shell text and its standard input those of one Exec: Text, and a text that is too long for a worker's
// argument list goes in front of the input, from where the shell at the far end reads it.
func Fit(script string, stdin []byte) (command string, input []byte) {
	script = Text(script)
	if len(script) <= maxCommand {
		return script, stdin
	}
	take := "cat"
	if len(stdin) > 0 { // not a byte more than the script is to be read: dd keeps to that, head need not
		take = fmt.Sprintf("{ dd bs=%d count=1 iflag=fullblock 2>/dev/null || dd bs=1 count=%d 2>/dev/null; }", len(script), len(script))
	}
	return "_sandbus_text=$(" + take + "; printf .)\n" + `eval "unset _sandbus_text` + "\n" + `${_sandbus_text%.}"`,
		append([]byte(script), stdin...)
}
