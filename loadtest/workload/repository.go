package workload

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Repository is what a generator knows of a source tree.
type Repository struct {
	Root  string `json:"root"`
	Files []File `json:"files"`
	Dirs  []Dir  `json:"dirs"`
}

// File is a source file, with a word that it contains.
type File struct {
	Path string `json:"path"`
	Size int    `json:"size"`
	Word string `json:"word"`
}

// Dir is a directory, with how many entries it has and how many of the files below it are tests.
type Dir struct {
	Path    string `json:"path"`
	Entries int    `json:"entries"`
	Tests   int    `json:"tests"`
}

const (
	repositoryFiles = 400      // that the sessions of a run work on
	repositoryDirs  = 100      // likewise
	toolBytes       = 50 << 10 // what a read shows at once: larger files are read in parts by people's tools
	indexTime       = time.Minute
)

// goSource is where the standard library's source is.
func goSource() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), indexTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	if _, err := os.Stat(filepath.Join(root, "fmt")); err != nil {
		return "", fmt.Errorf("the standard library's source: %w", err)
	}
	return root, nil
}

var function = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?([A-Z]\w{5,})\(`)

// indexRepository chooses by seed what the sessions work on.
func indexRepository(root string, seed uint64) (*Repository, error) {
	r := &Repository{Root: root}
	dirs := map[string]*Dir{}
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "vendor") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", root, err)
	}
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // G404: a load, not a secret
	rng.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	for _, path := range files {
		if len(r.Files) == repositoryFiles {
			break
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m := function.FindSubmatch(text)
		if m == nil || len(text) > toolBytes || bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		r.Files = append(r.Files, File{Path: path, Size: len(text), Word: string(m[1])})
		if dir := filepath.Dir(path); len(dirs) < repositoryDirs && dirs[dir] == nil && dir != root {
			if dirs[dir], err = describe(dir); err != nil {
				return nil, err
			}
		}
	}
	for _, d := range dirs {
		r.Dirs = append(r.Dirs, *d)
	}
	slices.SortFunc(r.Dirs, func(a, b Dir) int { return strings.Compare(a.Path, b.Path) })
	if len(r.Files) == 0 || len(r.Dirs) == 0 {
		return nil, fmt.Errorf("index %s: no source files there", root)
	}
	return r, nil
}

func describe(dir string) (*Dir, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: dir, Entries: len(list)}
	for _, e := range list { // those below are more; at least these must be found
		if strings.HasSuffix(e.Name(), "_test.go") {
			d.Tests++
		}
	}
	return d, nil
}

func (r *Repository) choose(rng *rand.Rand) File { return r.Files[rng.IntN(len(r.Files))] }
