package textedit

import (
	"bytes"
	"strings"
)

const (
	maxClosest     = 2 << 10 // bytes of a passage that a fault shows
	maxClosestScan = 8 << 20 // bytes of content that are compared
	maxPairs       = 400     // bytes of a line that are compared
	closestFloor   = 0.5     // below this nothing is like the text
)

// closest is the passage that is most like a text: the lines around the one that has most pairs of bytes in common with
// the text's longest line.
func (m *matcher) closest(old string) (passage string, line int) {
	lines := strings.Split(strings.TrimRight(old, "\r\n"), "\n")
	key := 0
	for i, l := range lines {
		if len(strings.TrimSpace(l)) > len(strings.TrimSpace(lines[key])) {
			key = i
		}
	}
	want := pairsOf([]byte(lines[key]))
	if want.n == 0 {
		return "", 0
	}
	best, bestLine, n := closestFloor, -1, 0
	for l := range bytes.Lines(m.content[:min(len(m.content), maxClosestScan)]) {
		if score := want.like(l); score > best {
			best, bestLine = score, n
		}
		n++
	}
	if bestLine < 0 {
		return "", 0
	}
	first := max(0, bestLine-key)
	var b bytes.Buffer
	n = 0
	for l := range bytes.Lines(m.content) {
		if n >= first+len(lines) || b.Len() > maxClosest {
			break
		}
		if n >= first {
			b.Write(l[:min(len(l), maxClosest+1)])
		}
		n++
	}
	text := strings.TrimRight(strings.ReplaceAll(b.String(), "\r\n", "\n"), "\n")
	if len(text) > maxClosest {
		text = text[:maxClosest]
	}
	return strings.ToValidUTF8(text, "\uFFFD"), first + 1
}

// pairs counts the pairs of neighbouring bytes of a line.
type pairs struct {
	count map[[2]byte]int
	n     int
	used  map[[2]byte]int // scratch of like
}

// trimLine is the part of a line that is compared, as fuzzy matching sees it.
func trimLine(line []byte) []byte {
	line = bytes.TrimSpace(line)
	line = line[:min(len(line), maxPairs)]
	if isASCII(line) {
		return line
	}
	return appendFolded(nil, line)
}

func pairsOf(line []byte) *pairs {
	p := &pairs{count: map[[2]byte]int{}, used: map[[2]byte]int{}}
	line = trimLine(line)
	for i := 1; i < len(line); i++ {
		p.count[[2]byte{line[i-1], line[i]}]++
		p.n++
	}
	return p
}

// like is Dice's coefficient of two lines: 1 for equal ones, 0 for those that have nothing in common.
func (p *pairs) like(line []byte) float64 {
	line = trimLine(line)
	n := len(line) - 1
	if n < 1 || 2*min(n, p.n) < int(closestFloor*float64(n+p.n)) { // cannot reach the floor
		return 0
	}
	clear(p.used)
	common := 0
	for i := 1; i < len(line); i++ {
		pair := [2]byte{line[i-1], line[i]}
		if p.used[pair] < p.count[pair] {
			p.used[pair]++
			common++
		}
	}
	return 2 * float64(common) / float64(n+p.n)
}
