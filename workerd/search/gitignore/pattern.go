package gitignore

import "strings"

// token is one step of a compiled pattern.
type token struct {
	kind tokenKind
	lit  byte       // of literal
	set  *[4]uint64 // of class: the bytes that match
}

type tokenKind int

const (
	literal tokenKind = iota // this byte
	any1                     // one byte that is no slash
	class                    // one byte of a set, which has no slash
	star                     // bytes that are no slash, or none
	dirs                     // nothing, or whole directories with their slash
	all                      // anything, or nothing
)

// compile follows git's wildmatch.c with WM_PATHNAME. It returns nil for a pattern that matches nothing: one with a
// trailing backslash or with a class that does not end.
func compile(p string) []token {
	var out []token
	for i := 0; i < len(p); {
		switch c := p[i]; c {
		case '\\':
			if i+1 == len(p) {
				return nil
			}
			out = append(out, token{kind: literal, lit: p[i+1]})
			i += 2
		case '?':
			out = append(out, token{kind: any1})
			i++
		case '*':
			stars := len(p[i:]) - len(strings.TrimLeft(p[i:], "*"))
			t, n := stars2token(p, i, stars)
			out = append(out, t)
			i += n
		case '[':
			set, n := parseClass(p[i:])
			if set == nil {
				return nil
			}
			out = append(out, token{kind: class, set: set})
			i += n
		default:
			out = append(out, token{kind: literal, lit: c})
			i++
		}
	}
	return out
}

// stars2token reads a run of stars at p[i:], and the slash behind it where that belongs to it.
func stars2token(p string, i, stars int) (token, int) {
	end := i + stars
	whole := i == 0 || p[i-1] == '/'
	switch {
	case stars == 1 || !whole:
		return token{kind: star}, stars
	case end == len(p):
		return token{kind: all}, stars
	case p[end] == '/':
		return token{kind: dirs}, stars + 1
	case strings.HasPrefix(p[end:], `\/`):
		return token{kind: all}, stars
	}
	return token{kind: star}, stars
}

// parseClass reads a bracket expression at the start of p and returns the bytes that it matches and its length; nil
// when it has no end, or names a class that there is none.
func parseClass(p string) (*[4]uint64, int) {
	set := new([4]uint64)
	add := func(from, to byte) {
		for c := int(from); c <= int(to); c++ {
			set[c/64] |= 1 << (c % 64)
		}
	}
	i := 1
	negated := i < len(p) && (p[i] == '!' || p[i] == '^')
	if negated {
		i++
	}
	var prev byte // the start of a possible range; zero: there is none
	for first := true; ; first = false {
		if i >= len(p) {
			return nil, 0
		}
		c := p[i]
		switch {
		case c == ']' && !first:
			if negated {
				for k := range set {
					set[k] = ^set[k]
				}
			}
			set['/'/64] &^= 1 << ('/' % 64)
			return set, i + 1
		case c == '\\':
			if i++; i >= len(p) {
				return nil, 0
			}
			c = p[i]
			add(c, c)
		case c == '-' && prev != 0 && i+1 < len(p) && p[i+1] != ']':
			i++
			if p[i] == '\\' {
				if i++; i >= len(p) {
					return nil, 0
				}
			}
			add(prev, p[i])
			c = 0
		case c == '[' && i+1 < len(p) && p[i+1] == ':':
			end := strings.IndexByte(p[i+2:], ']')
			if end < 0 {
				return nil, 0
			}
			name, ok := strings.CutSuffix(p[i+2:i+2+end], ":")
			if !ok { // a set that begins so
				add('[', '[')
				break
			}
			in, known := posix[name]
			if !known {
				return nil, 0
			}
			for b := range 128 {
				if in(byte(b)) {
					add(byte(b), byte(b))
				}
			}
			i += 2 + end
			c = 0
		default:
			add(c, c)
		}
		prev = c
		i++
	}
}

func between(c, from, to byte) bool { return from <= c && c <= to }

func isAlpha(c byte) bool { return between(c|0x20, 'a', 'z') }

func isDigit(c byte) bool { return between(c, '0', '9') }

func isGraph(c byte) bool { return between(c, '!', '~') }

// posix are the classes of wildmatch.c, for ASCII.
var posix = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  isDigit,
	"graph":  isGraph,
	"lower":  func(c byte) bool { return between(c, 'a', 'z') },
	"print":  func(c byte) bool { return between(c, ' ', '~') },
	"punct":  func(c byte) bool { return isGraph(c) && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || between(c, '\t', '\r') },
	"upper":  func(c byte) bool { return between(c, 'A', 'Z') },
	"xdigit": func(c byte) bool { return isDigit(c) || between(c|0x20, 'a', 'f') },
}

// match walks the pattern as a set of states, one for each token: there is no backtracking that could explode.
// dirs needs two states: before it has eaten anything, and within a directory's name. The latter is kept in inside.
func match(p []token, s string) bool {
	n := len(p) + 1
	var room [4 * 64]bool
	var buf []bool
	if 4*n <= len(room) {
		buf = room[:4*n]
	} else {
		buf = make([]bool, 4*n)
	}
	now, next := buf[:n], buf[n:2*n]
	inside, nextInside := buf[2*n:3*n], buf[3*n:]
	enter(p, now, 0)
	for i := range len(s) {
		c := s[i]
		alive := false
		for k, t := range p {
			if inside[k] { // of dirs
				nextInside[k], alive = true, true
				if c == '/' {
					enter(p, next, k+1)
				}
			}
			if !now[k] {
				continue
			}
			switch t.kind {
			case literal:
				if c == t.lit {
					enter(p, next, k+1)
					alive = true
				}
			case any1:
				if c != '/' {
					enter(p, next, k+1)
					alive = true
				}
			case class:
				if t.set[c/64]&(1<<(c%64)) != 0 {
					enter(p, next, k+1)
					alive = true
				}
			case star:
				if c != '/' {
					enter(p, next, k)
					alive = true
				}
			case all:
				enter(p, next, k)
				alive = true
			case dirs:
				nextInside[k], alive = true, true
				if c == '/' {
					enter(p, next, k+1)
				}
			}
		}
		if !alive {
			return false
		}
		now, next = next, now
		inside, nextInside = nextInside, inside
		clear(next)
		clear(nextInside)
	}
	return now[len(p)]
}

// enter makes a state active, and those that are reached from it without a byte.
func enter(p []token, states []bool, k int) {
	for !states[k] {
		states[k] = true
		if k == len(p) || (p[k].kind != star && p[k].kind != dirs && p[k].kind != all) {
			return
		}
		k++
	}
}
