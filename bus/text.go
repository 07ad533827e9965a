package bus

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable is a text of the other side as our own messages carry it: of at most 4 KiB, and without what a terminal
// would act on. Control characters other than newline and tab, invalid UTF-8 and marks that turn the direction of
// writing are shown as Go writes them in a quoted string.
func Printable(s string) string {
	cut := len(s) > maxErrorMessage
	if cut {
		s = s[:maxErrorMessage]
	}
	clean := true
	for _, r := range s {
		clean = clean && isPlain(r)
	}
	if !clean {
		var b strings.Builder
		for len(s) > 0 {
			r, n := utf8.DecodeRuneInString(s)
			switch {
			case r == utf8.RuneError && n == 1:
				b.WriteString(`\x` + strconv.FormatUint(uint64(s[0]), 16))
			case isPlain(r):
				b.WriteRune(r)
			default:
				quoted := strconv.QuoteRuneToASCII(r)
				b.WriteString(quoted[1 : len(quoted)-1])
			}
			s = s[n:]
		}
		s = b.String()
	}
	if cut {
		s += "…"
	}
	return s
}

// isPlain says whether a terminal just shows a character.
func isPlain(r rune) bool {
	return r == '\n' || r == '\t' || r != utf8.RuneError && !unicode.Is(unicode.Cc, r) && !unicode.Is(unicode.Cf, r)
}

// ToText splits a byte string into the two fields that the schema has for it: NAME when it is UTF-8, NAME_raw when
// it is not.
func ToText(s string) (text string, raw []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return "", []byte(s)
}

// FromText joins the two fields of a byte string: NAME_raw wins when it is not empty.
func FromText(text string, raw []byte) string {
	if len(raw) > 0 {
		return string(raw)
	}
	return text
}

// ToTexts is ToText for a list: all in one field or all in the other.
func ToTexts(list []string) (texts []string, raws [][]byte) {
	for _, s := range list {
		if !utf8.ValidString(s) {
			for _, s := range list {
				raws = append(raws, []byte(s))
			}
			return nil, raws
		}
	}
	return list, nil
}

// FromTexts is FromText for a list.
func FromTexts(texts []string, raws [][]byte) []string {
	if len(raws) == 0 {
		return texts
	}
	out := make([]string, len(raws))
	for i, r := range raws {
		out[i] = string(r)
	}
	return out
}
