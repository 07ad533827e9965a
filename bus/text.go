package bus

import "unicode/utf8"

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
