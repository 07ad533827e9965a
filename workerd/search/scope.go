package search

import (
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
	if hasGit(abs) {
		return nil
	}
	var dirs []string
	for dir := abs; dir != "/"; {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
		if hasGit(dir) {
			break
		}
	}
	var l *level
	for _, dir := range slices.Backward(dirs) {
		l = w.ignoreFile(unix.AT_FDCWD, filepath.Join(dir, ".gitignore"), dir, l)
	}
	return l
}

func hasGit(dir string) bool {
	var st unix.Stat_t
	return unix.Lstat(filepath.Join(dir, ".git"), &st) == nil
}

// ignoreFile reads an ignore file of dir, which may be missing. As in git a link there does not count.
func (w *walker) ignoreFile(dirfd int, name, dir string, parent *level) *level {
	fd, err := opened(dirfd, name, unix.O_NOFOLLOW)
	if err != nil {
		if err != unix.ENOENT && err != unix.ELOOP { //nolint:errorlint // unix returns the bare number
			w.skipped.ignoreFiles++
		}
		return parent
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }() // read only
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
