package treetar

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// UnsafeError says that an archive's entry was refused, by which rule.
type UnsafeError struct {
	Name string
	Rule string
}

func (e *UnsafeError) Error() string {
	return fmt.Sprintf("archive entry %q refused: %s", e.Name, e.Rule)
}

// ExtractOptions says how to extract.
type ExtractOptions struct {
	// AnyLink takes links that lead out of the tree, too. They are made and not followed.
	AnyLink bool
	// Refused is told of a link that leads out, which is then left out; nil makes it an error.
	Refused func(*UnsafeError)
	// MaxBytes and MaxEntries bound what is taken; zero means no bound.
	MaxBytes, MaxEntries int64
	// Progress is told of each entry as it begins (with 0) and of its content's bytes; nil means nobody.
	Progress func(name string, bytes int64)
}

// Extract makes the archive's tree below root. Each file appears whole at its place, replacing one that is there; what
// else is below root stays. It returns what was made, and what the packer says that it left out. Errors: *UnsafeError,
// an archive that is broken or has no end, the context's cause; what was made before stays.
func Extract(ctx context.Context, r io.Reader, root *os.Root, o ExtractOptions) (Stats, error) {
	if o.Progress == nil {
		o.Progress = func(string, int64) {}
	}
	x := &extractor{ctx: ctx, o: o, root: root, dir: root, at: ".", buf: make([]byte, 128<<10)}
	err := x.run(tar.NewReader(r))
	err = errors.Join(err, x.leave("", true))
	x.closeDir()
	return x.stats, err
}

type extractor struct {
	ctx   context.Context //nolint:containedctx // for the length of one Extract
	o     ExtractOptions
	root  *os.Root
	stats Stats
	buf   []byte

	dir  *os.Root // the directory in which the last entry was
	at   string   // its name
	open []madeDir
}

// madeDir is a directory whose mode and time are set when all in it is made.
type madeDir struct {
	name  string
	mode  fs.FileMode
	mtime time.Time
}

var errNoEnd = errors.New("the archive has no end")

func (x *extractor) run(tr *tar.Reader) error {
	ended := false
	for {
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			if !ended {
				return errNoEnd
			}
			return nil
		case err != nil:
			return fmt.Errorf("archive: %w", err)
		case ended:
			return errors.New("archive: an entry follows its summary")
		case h.Typeflag == tar.TypeXGlobalHeader && h.PAXRecords[summaryRecord] != "":
			var said Stats
			if err := json.Unmarshal([]byte(h.PAXRecords[summaryRecord]), &said); err != nil {
				return fmt.Errorf("archive: its summary: %w", err)
			}
			x.stats.Special, x.stats.Vanished, x.stats.Unreadable, x.stats.FirstError = said.Special, said.Vanished, said.Unreadable, said.FirstError
			ended = true
			continue
		}
		if err := x.entry(tr, h); err != nil {
			return err
		}
	}
}

// checkName refuses what is not the shortest form of a path below a root.
func checkName(name string) error {
	switch {
	case strings.HasPrefix(name, "/"):
		return &UnsafeError{name, "the name is absolute"}
	case name == ".." || strings.HasPrefix(name, "../") || strings.HasSuffix(name, "/..") || strings.Contains(name, "/../"):
		return &UnsafeError{name, `the name has ".."`}
	case name == "" || name == "." || strings.IndexByte(name, 0) >= 0 || path.Clean(name) != name:
		return &UnsafeError{name, "the name is no clean path"}
	case len(name) > 4095:
		return &UnsafeError{name[:100] + "…", "the name is longer than 4095 bytes"}
	}
	return nil
}

// checkLink refuses a link at a name that leads out of the tree.
func checkLink(name, target string) error {
	if target == "" || strings.IndexByte(target, 0) >= 0 || len(target) > 4095 {
		return &UnsafeError{name, "a link's text has 1 to 4095 bytes without NUL"}
	}
	if target[0] == '/' {
		return &UnsafeError{name, fmt.Sprintf("a link to an absolute path: %q", target)}
	}
	depth := strings.Count(name, "/")
	climbing := true
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part != "..":
			climbing = climbing && (part == "." || part == "")
		case !climbing:
			return &UnsafeError{name, fmt.Sprintf(`a link with ".." behind a name: %q`, target)}
		case depth == 0:
			return &UnsafeError{name, fmt.Sprintf("a link that leads out of the tree: %q", target)}
		default:
			depth--
		}
	}
	return nil
}

func (x *extractor) entry(tr *tar.Reader, h *tar.Header) error {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	if err := checkName(name); err != nil {
		return err
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") { // a few bytes that say they are any number of zeros
			return &UnsafeError{name, "sparse files are not taken"}
		}
	}
	x.stats.Entries++
	if x.o.MaxEntries > 0 && x.stats.Entries > x.o.MaxEntries {
		return fmt.Errorf("the archive has more than %d entries: raise the bound, or take parts of the tree", x.o.MaxEntries)
	}
	if err := x.leave(name, false); err != nil {
		return err
	}
	if err := x.enter(path.Dir(name)); err != nil {
		return err
	}
	x.o.Progress(name, 0)
	base := path.Base(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return x.makeDir(name, base, h)
	case tar.TypeReg:
		return x.makeFile(tr, name, base, h)
	case tar.TypeSymlink:
		return x.makeLink(name, base, h)
	}
	return &UnsafeError{name, fmt.Sprintf("entries of type %q are not taken", h.Typeflag)}
}

// enter makes dir the directory in which entries are made. None of its parts may be a link.
func (x *extractor) enter(dir string) error {
	if dir == x.at {
		return nil
	}
	x.closeDir()
	if dir == "." {
		return nil
	}
	for at := 0; at >= 0; {
		part := dir
		if i := strings.IndexByte(dir[at:], '/'); i >= 0 {
			part, at = dir[:at+i], at+i+1
		} else {
			at = -1
		}
		info, err := x.root.Lstat(part)
		if errors.Is(err, fs.ErrNotExist) {
			if err = x.root.Mkdir(part, 0o777); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return &UnsafeError{dir, fmt.Sprintf("%q is a link: nothing is written through it", part)}
		}
	}
	sub, err := x.root.OpenRoot(dir)
	if err != nil {
		return err
	}
	x.dir, x.at = sub, dir
	return nil
}

func (x *extractor) closeDir() {
	if x.dir != x.root {
		_ = x.dir.Close() // a directory
	}
	x.dir, x.at = x.root, "."
}

// leave finishes the directories in which name is not; all finishes every one.
func (x *extractor) leave(name string, all bool) error {
	for len(x.open) > 0 {
		d := x.open[len(x.open)-1]
		if !all && strings.HasPrefix(name, d.name+"/") {
			return nil
		}
		x.open = x.open[:len(x.open)-1]
		if err := x.root.Chmod(d.name, d.mode); err != nil {
			return err
		}
		if err := x.root.Chtimes(d.name, time.Time{}, d.mtime); err != nil {
			return err
		}
	}
	return nil
}

func (x *extractor) makeDir(name, base string, h *tar.Header) error {
	info, err := x.dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = x.dir.Mkdir(base, 0o700)
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		return &UnsafeError{name, "a link is in its place: nothing is written through it"}
	case err == nil && !info.IsDir():
		return &fs.PathError{Op: "extract", Path: name, Err: errors.New("a file is in the place of a directory")}
	case err == nil:
		err = x.dir.Chmod(base, info.Mode().Perm()|0o700)
	}
	if err != nil {
		return err
	}
	x.open = append(x.open, madeDir{name, fs.FileMode(h.Mode & 0o777), h.ModTime})
	return nil
}

// temporary is a name for what is not yet at its place.
func temporary() string { return ".sandbus-" + rand.Text() }

// place renames what was made over what is there. A link that is there is replaced, not followed.
func (x *extractor) place(tmp, name, base string) error {
	err := x.dir.Rename(tmp, base)
	if err == nil {
		return nil
	}
	_ = x.dir.Remove(tmp) // the error that counts is err
	if info, serr := x.dir.Lstat(base); serr == nil && info.IsDir() {
		return &fs.PathError{Op: "extract", Path: name, Err: errors.New("a directory is in its place")}
	}
	return err
}

func (x *extractor) makeFile(tr *tar.Reader, name, base string, h *tar.Header) error {
	if x.o.MaxBytes > 0 && x.stats.Bytes+h.Size > x.o.MaxBytes {
		return fmt.Errorf("the archive has more than %d bytes: raise the bound, or take parts of the tree", x.o.MaxBytes)
	}
	tmp := temporary()
	f, err := x.dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = x.fill(f, tr, name)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode & 0o777)) // no setuid and no setgid from the other side
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = x.dir.Chtimes(tmp, time.Time{}, h.ModTime)
	}
	if err != nil {
		_ = x.dir.Remove(tmp) // the error that counts is err
		return err
	}
	return x.place(tmp, name, base)
}

func (x *extractor) fill(f *os.File, tr *tar.Reader, name string) error {
	for {
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		n, err := tr.Read(x.buf)
		if n > 0 {
			if _, err := f.Write(x.buf[:n]); err != nil {
				return err
			}
			x.stats.Bytes += int64(n)
			x.o.Progress(name, int64(n))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("archive: %s: %w", name, err)
		}
	}
}

func (x *extractor) makeLink(name, base string, h *tar.Header) error {
	if !x.o.AnyLink {
		if err := checkLink(name, h.Linkname); err != nil {
			var unsafe *UnsafeError
			if x.o.Refused == nil || !errors.As(err, &unsafe) {
				return err
			}
			x.stats.Entries--
			x.o.Refused(unsafe)
			return nil
		}
	}
	tmp := temporary()
	if err := x.dir.Symlink(h.Linkname, tmp); err != nil {
		return err
	}
	return x.place(tmp, name, base)
}
