// Package textedit replaces passages of a file's content that are named by their text, as coding agents do it. It
// reads and writes nothing; a worker uses it beside the file, a harness for sandboxes without a worker.
//
// # Rules
//
//   - Every edit is matched against the content as it was, and all are made or none.
//   - An exact match wins: fuzzy matching is tried only for an old text that is nowhere in the content. Fuzzy matching
//     locates and no more: what is replaced is the passage of the content itself.
//   - No byte outside of the passages changes: not the byte order mark, not a line ending, not a trailing space.
//   - Text with a carriage return is meant byte for byte. In text without one a line feed stands for the content's own
//     line ending at that place. For a fuzzy match that holds for all text.
//
// # What fuzzy matching overlooks
//
// The difference between the forms of one character (Unicode NFKC), between typographic and plain quotes, dashes and
// spaces, and white space at the ends of lines.
package textedit
