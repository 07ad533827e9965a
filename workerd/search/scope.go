package search

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/search/gitignore"
)

// defaultIgnore is what hardly anybody looks for.
var defaultIgnore = []string{".git", "node_modules"}

// maxIgnoreFile bounds a .gitignore file, in bytes.
const maxIgnoreFile = 4 << 20

// scope is a SearchScope that was checked.
type scope struct {
	list      *gitignore.File // of the caller, for the root
	gitignore bool
	depth     int
}

func newScope(m *sandbusv1.SearchScope) (scope, error) {
	depth, err := bounded("max_depth", m.GetMaxDepth(), maxDepth, maxDepth)
	if err != nil {
		return scope{}, err
	}
	rules := slices.Clone(m.GetIgnore())
	if len(rules) > maxRules {
		return scope{}, invalid("ignore: %d rules, the bound is %d", len(rules), maxRules)
	}
	for _, r := range rules {
		if len(r) > maxGlob || strings.ContainsAny(r, "\n\x00") {
			return scope{}, invalid("ignore: rule %.80q: want one line of at most %d bytes", r, maxGlob)
		}
	}
	if !m.GetNoDefaultIgnore() {
		rules = append(slices.Clone(defaultIgnore), rules...)
	}
	return scope{list: gitignore.Parse([]byte(strings.Join(rules, "\n"))), gitignore: !m.GetNoGitignore(), depth: depth}, nil
}

// level is the ignore file of one directory, over those of the directories above.
type level struct {
	file   *gitignore.File
	skip   int // length of the directory's absolute path with its slash
	parent *level
}

// decide asks the levels from the deepest up.
func (l *level) decide(abs string, isDir bool) gitignore.Decision {
	for ; l != nil; l = l.parent {
		if d := l.file.Match(abs[l.skip:], isDir); d != gitignore.None {
			return d
		}
	}
	return gitignore.None
}

// ancestors are the ignore files above a root, up to the repository that it is in. abs has no links in it.
func (w *walker) ancestors(abs string) *level {
	if w.hasGit(abs) {
		return nil
	}
	var dirs []string
	for dir := abs; dir != "/" && !w.root.isTop(dir); {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
		if w.hasGit(dir) {
			break
		}
	}
	var l *level
	for _, dir := range slices.Backward(dirs) {
		name := filepath.Join(dir, ".gitignore")
		if mode, _, err := w.root.look(name, false); err == nil && mode&unix.S_IFMT == unix.S_IFREG {
			f, err := w.root.open(name, 0)
			l = w.ignoreFile(f, err, dir, l)
		}
	}
	return l
}

func (w *walker) hasGit(dir string) bool {
	_, _, err := w.root.look(filepath.Join(dir, ".git"), false)
	return err == nil
}

// ignoreFile reads an ignore file of dir, which it closes; err is why it is not open. As in git a link there does not
// count.
func (w *walker) ignoreFile(f *os.File, err error, dir string, parent *level) *level {
	if err != nil {
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			w.skipped.ignoreFiles++
		}
		return parent
	}
	defer func() { _ = f.Close() }() // read only
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return parent
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxIgnoreFile {
		w.skipped.ignoreFiles++
		return parent
	}
	data, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		w.skipped.ignoreFiles++
		return parent
	}
	file := gitignore.Parse(data)
	if file.Len() == 0 {
		return parent
	}
	return &level{file: file, skip: len(strings.TrimSuffix(dir, "/")) + 1, parent: parent}
}
