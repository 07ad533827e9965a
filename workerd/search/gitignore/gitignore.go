// Package gitignore decides by the rules of gitignore(5) what one ignore file says of a path.
//
// A [File] knows the directory that it lies in and nothing else. Whoever walks a tree asks the file of the deepest
// directory first, then that of its parent: the first that does not answer [None] decides. What lies below an ignored
// directory is not asked for, which is why nothing can be re-included there.
//
// One thing is by the book and not by git 2.39: "**" that does not stand between slashes is "*" (git takes "a**/b" as
// "a/**/b" because it looks for it behind the literal beginning). So does ripgrep.
//
// Names are bytes, as in git: "?" is one byte. A match takes time linear in pattern times path, so that no pattern of
// an untrusted tree can hold a worker.
package gitignore

import (
	"bytes"
	"strings"
)

// Decision is what an ignore file says of a path.
type Decision int

// The decisions.
const (
	None    Decision = iota // no rule matches
	Ignore                  // the last rule that matches is a plain one
	Include                 // the last rule that matches begins with "!"
)

// File is the rules of one ignore file, or a list that the caller made. It may be used by many goroutines.
type File struct {
	rules []rule // in the order of the file
}

type rule struct {
	negative bool
	dirOnly  bool
	name     bool // has no slash: matches the base name
	// Most rules are a name or "*.suffix": these need no pattern.
	literal  string
	isSuffix bool
	pattern  []token // nil: literal is all that there is
}

// Parse reads an ignore file. As in git nothing is an error: what cannot match does not.
func Parse(data []byte) *File {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	f := &File{}
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		line = bytes.TrimSuffix(line, []byte("\r"))
		if i := bytes.IndexByte(line, 0); i >= 0 {
			line = line[:i] // where git's string ends
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if r, ok := parseRule(trimSpaces(string(line))); ok {
			f.rules = append(f.rules, r)
		}
	}
	return f
}

// trimSpaces removes trailing spaces that no backslash protects.
func trimSpaces(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
			end = min(i+1, len(s))
		} else if s[i] != ' ' {
			end = i + 1
		}
	}
	return s[:end]
}

func parseRule(p string) (rule, bool) {
	var r rule
	if p, r.negative = strings.CutPrefix(p, "!"); p == "" {
		return r, false
	}
	p, r.dirOnly = strings.CutSuffix(p, "/")
	r.name = !strings.Contains(p, "/")
	p = strings.TrimPrefix(p, "/")
	if p == "" {
		return r, false
	}
	if !strings.ContainsAny(p, special) {
		r.literal = p
		return r, true
	}
	if tail := p[1:]; r.name && p[0] == '*' && !strings.ContainsAny(tail, special) {
		r.literal, r.isSuffix = tail, true
		return r, true
	}
	r.pattern = compile(p)
	return r, r.pattern != nil
}

const special = `*?[\`

// Len is the number of rules.
func (f *File) Len() int { return len(f.rules) }

// Match says what the file decides of a path, which is relative to the directory of the file, without a leading or
// trailing slash.
func (f *File) Match(path string, isDir bool) Decision {
	base := path[strings.LastIndexByte(path, '/')+1:]
	for i := len(f.rules) - 1; i >= 0; i-- {
		r := &f.rules[i]
		if r.dirOnly && !isDir {
			continue
		}
		s := path
		if r.name {
			s = base
		}
		if !r.matches(s) {
			continue
		}
		if r.negative {
			return Include
		}
		return Ignore
	}
	return None
}

func (r *rule) matches(s string) bool {
	switch {
	case r.pattern != nil:
		return match(r.pattern, s)
	case r.isSuffix:
		return strings.HasSuffix(s, r.literal)
	}
	return s == r.literal
}
