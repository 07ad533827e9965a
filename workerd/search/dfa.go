package search

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// dfa finds lines that match an expression, at a table look-up for each byte; package regexp takes some 30 times as long
// for an expression without a literal to look for first. It is made as it goes (lazily), from the program that regexp
// runs, and says only whether a line matches: where in the line is for regexp. It is for one goroutine.
type dfa struct {
	prog   *syntax.Prog
	bytes  [256]uint16 // the class of a byte; that of a newline is eol, that of a part of a longer character many
	starts []rune      // where ranges of characters begin that all belong to one class
	class  []uint16    // of these ranges
	reps   []rune      // of each class one character
	eol    uint16      // the class of the end of a line, the one behind those of characters
	many   uint16      // a class of which nothing is ever known: the last one

	states []dfaState // the first is not used: a zero in table means that it is not known yet
	ids    map[string]int32
	table  []int32 // [state][class]; a state is where its row begins, so that no look-up multiplies
	key    []byte  // room for one
	seen   []bool  // likewise, for each instruction
	stack  []uint32
}

// dfaState is where the program can be between two characters.
type dfaState struct {
	prev rune     // the character before, or one like it for \b; below zero: the start of the line
	pcs  []uint32 // instructions, sorted
}

const (
	matchedState int32 = -1
	// maxStates bounds the table; when it is full it is made anew.
	maxStates = 2000
	// maxDFA bounds the work of making the classes: ranges times instructions.
	maxDFA = 1 << 20
)

// newDFA returns nil for an expression that is too large.
func newDFA(expr string) *dfa {
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil
	}
	d := &dfa{prog: prog, seen: make([]bool, len(prog.Inst))}
	if !d.classes() {
		return nil
	}
	d.flush()
	return d
}

// classes divides the characters into those that no instruction tells apart.
func (d *dfa) classes() bool {
	d.starts = []rune{0, '\n', '\n' + 1, '0', '9' + 1, 'A', 'Z' + 1, '_', '_' + 1, 'a', 'z' + 1}
	var insts []*syntax.Inst
	for i := range d.prog.Inst {
		in := &d.prog.Inst[i]
		switch in.Op {
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			insts = append(insts, in)
		default:
			continue
		}
		if len(in.Rune) == 1 {
			d.starts = append(d.starts, in.Rune[0], in.Rune[0]+1)
			for r := unicode.SimpleFold(in.Rune[0]); r != in.Rune[0]; r = unicode.SimpleFold(r) {
				d.starts = append(d.starts, r, r+1)
			}
			continue
		}
		for k := 0; k+1 < len(in.Rune); k += 2 {
			d.starts = append(d.starts, in.Rune[k], in.Rune[k+1]+1)
		}
	}
	slices.Sort(d.starts)
	d.starts = slices.Compact(d.starts)
	if len(d.starts)*(len(insts)+1) > maxDFA {
		return false
	}
	known := map[string]uint16{}
	sign := make([]byte, len(insts)+1)
	for _, r := range d.starts {
		clear(sign)
		if syntax.IsWordChar(r) {
			sign[len(insts)] = 1
		}
		for k, in := range insts {
			if in.MatchRune(r) {
				sign[k] = 1
			}
		}
		c, ok := known[string(sign)]
		if !ok {
			c = uint16(len(d.reps))
			known[string(sign)] = c
			d.reps = append(d.reps, r)
		}
		d.class = append(d.class, c)
	}
	d.eol, d.many = uint16(len(d.reps)), uint16(len(d.reps))+1
	for b := range d.bytes {
		d.bytes[b] = d.many
		if b < utf8.RuneSelf {
			d.bytes[b] = d.classOf(rune(b))
		}
	}
	d.bytes['\n'] = d.eol
	return true
}

func (d *dfa) classOf(r rune) uint16 {
	i, found := slices.BinarySearch(d.starts, r)
	if !found {
		i--
	}
	return d.class[i]
}

func (d *dfa) flush() {
	d.states = append(d.states[:0], dfaState{})
	d.ids = map[string]int32{}
	d.table = append(d.table[:0], make([]int32, d.stride())...)
	d.intern(-1, nil)
}

func (d *dfa) stride() int { return int(d.many) + 1 }

// startState is the one between two lines.
func (d *dfa) startState() int32 { return int32(d.stride()) }

// intern is a state's row.
func (d *dfa) intern(prev rune, pcs []uint32) int32 {
	d.key = binary.AppendVarint(d.key[:0], int64(prev))
	for _, pc := range pcs {
		d.key = binary.AppendUvarint(d.key, uint64(pc))
	}
	if id, ok := d.ids[string(d.key)]; ok {
		return id
	}
	id := int32(len(d.table))
	d.ids[string(d.key)] = id
	d.states = append(d.states, dfaState{prev, pcs})
	d.table = append(d.table, make([]int32, d.stride())...)
	return id
}

// find is a place in the first line of text that matches, at or behind pos, which is the start of a line; below zero for
// none. The place is before the line's newline, or at it.
func (d *dfa) find(text []byte, pos int) int {
	state, table := d.startState(), d.table
	for i := pos; i < len(text); {
		b := text[i]
		next := table[int(state)+int(d.bytes[b])]
		if next > 0 { // nearly always
			state = next
			i++
			continue
		}
		c, size := d.bytes[b], 1
		if c == d.many {
			var r rune
			r, size = utf8.DecodeRune(text[i:])
			c = d.classOf(r)
			next = table[int(state)+int(c)]
		}
		if next == 0 {
			next = d.step(state, c)
			table = d.table
		}
		if next == matchedState {
			return i
		}
		state = next
		i += size
	}
	if pos < len(text) && text[len(text)-1] != '\n' && d.step(state, d.eol) == matchedState {
		return len(text)
	}
	return -1
}

// step works out where a state leads to.
func (d *dfa) step(state int32, c uint16) int32 {
	s := d.states[int(state)/d.stride()]
	next := rune(-1)
	if c != d.eol {
		next = d.reps[c]
	}
	reached, matched := d.closure(s.pcs, syntax.EmptyOpContext(s.prev, next))
	to := matchedState
	switch {
	case matched:
	case c == d.eol:
		to = d.startState()
	default:
		var pcs []uint32
		for _, pc := range reached {
			if in := &d.prog.Inst[pc]; in.MatchRune(next) {
				pcs = append(pcs, in.Out)
			}
		}
		slices.Sort(pcs)
		pcs = slices.Compact(pcs)
		prev := ' '
		if syntax.IsWordChar(next) {
			prev = 'a'
		}
		if len(d.states) >= maxStates {
			d.flush()
			return d.intern(prev, pcs)
		}
		to = d.intern(prev, pcs)
	}
	d.table[int(state)+int(c)] = to
	return to
}

// closure is the instructions that take a character and are reached without one, from the start or from a state's;
// matched says that a match is.
func (d *dfa) closure(pcs []uint32, context syntax.EmptyOp) (reached []uint32, matched bool) {
	clear(d.seen)
	d.stack = append(append(d.stack[:0], uint32(d.prog.Start)), pcs...)
	for len(d.stack) > 0 {
		pc := d.stack[len(d.stack)-1]
		d.stack = d.stack[:len(d.stack)-1]
		if d.seen[pc] {
			continue
		}
		d.seen[pc] = true
		in := &d.prog.Inst[pc]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			d.stack = append(d.stack, in.Out, in.Arg)
		case syntax.InstCapture, syntax.InstNop:
			d.stack = append(d.stack, in.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^context == 0 {
				d.stack = append(d.stack, in.Out)
			}
		case syntax.InstMatch:
			return nil, true
		case syntax.InstFail:
		default:
			reached = append(reached, pc)
		}
	}
	return reached, false
}
