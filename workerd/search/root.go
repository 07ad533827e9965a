package search

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Root is a sandbox's file tree as searches see it.
type Root struct {
	dir   string   // where relative paths begin; absolute
	cage  *os.Root // nil: paths lead anywhere
	names []string // the absolute names of the cage: as it was configured, and the real one
}

// Config says what of the file system is served.
type Config struct {
	// Dir is where relative paths begin. Must be absolute, and below Root when that is set.
	Dir string
	// Root is the directory to which all paths are confined; empty means that they are not. Must be absolute.
	Root string
}

// New serves paths without confinement; relative ones begin at dir, which must be absolute.
func New(dir string) *Root { return &Root{dir: dir} }

// Open serves paths as the configuration says. Errors: Root is no directory that can be opened, Dir is not below it.
func Open(cfg Config) (*Root, error) {
	r := New(cfg.Dir)
	if cfg.Root == "" {
		return r, nil
	}
	cage, err := os.OpenRoot(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("root %q: %w", cfg.Root, err)
	}
	r.cage, r.names = cage, []string{filepath.Clean(cfg.Root)}
	if real, err := filepath.EvalSymlinks(cfg.Root); err == nil && real != r.names[0] {
		r.names = append(r.names, real)
	}
	if _, _, err := r.look(cfg.Dir, true); err != nil {
		_ = cage.Close() // nothing was changed
		return nil, fmt.Errorf("directory %q: want one below the root %q: %w", cfg.Dir, cfg.Root, err)
	}
	return r, nil
}

// Close lets go of the confined root. No method may be called afterwards.
func (r *Root) Close() error {
	if r.cage == nil {
		return nil
	}
	return r.cage.Close()
}

// errLeadsOut is why a path is refused in a confined tree.
var errLeadsOut = errors.New("leads out of the root")

// leadsOut recognises os.Root's refusal, which the package os does not export.
func leadsOut(err error) bool {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		err = pe.Err
	}
	return errors.Is(err, errLeadsOut) || err.Error() == "path escapes from parent"
}

func (r *Root) refusal(verb, given string) *bus.Error {
	return &bus.Error{
		Code: sandbusv1.Code_CODE_PERMISSION, Path: given,
		Message: fmt.Sprintf("%s %s: leads out of %s, to which this worker is confined (rule: root)", verb, given, r.names[0]),
	}
}

// abs is a path as the system takes it.
func (r *Root) abs(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return r.dir + "/" + path
}

// caged is an absolute path as os.Root takes it. Errors: errLeadsOut.
func (r *Root) caged(abs string) (string, error) {
	for _, name := range r.names {
		rest, ok := strings.CutPrefix(abs, name)
		if !ok || (rest != "" && rest[0] != '/' && name != "/") {
			continue
		}
		if rest = strings.TrimLeft(rest, "/"); rest == "" {
			return ".", nil
		}
		return rest, nil
	}
	return "", errLeadsOut
}

// open opens an absolute path without waiting for anybody.
func (r *Root) open(abs string, flags int) (*os.File, error) {
	if r.cage == nil {
		fd, err := opened(unix.AT_FDCWD, abs, flags)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), abs), nil
	}
	rel, err := r.caged(abs)
	if err != nil {
		return nil, err
	}
	return r.cage.OpenFile(rel, openFlags|flags, 0)
}

// look is the mode and the size of what an absolute path leads to, or of a link itself.
func (r *Root) look(abs string, follow bool) (mode uint32, size int64, err error) {
	if r.cage == nil {
		flags := unix.AT_SYMLINK_NOFOLLOW
		if follow {
			flags = 0
		}
		var st unix.Stat_t
		err := ignoringEINTR(func() error { return unix.Fstatat(unix.AT_FDCWD, abs, &st, flags) })
		return st.Mode, st.Size, err
	}
	rel, err := r.caged(abs)
	if err != nil {
		return 0, 0, err
	}
	stat := r.cage.Lstat
	if follow {
		stat = r.cage.Stat
	}
	fi, err := stat(rel)
	if err != nil {
		return 0, 0, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, unix.EOPNOTSUPP
	}
	return st.Mode, st.Size, nil
}

// isTop says that no directory above one is served.
func (r *Root) isTop(abs string) bool {
	if r.cage == nil {
		return abs == "/"
	}
	return abs == r.names[len(r.names)-1]
}

// real is the name of a directory without links; false: it is not known, or leads out.
func (r *Root) real(abs string) (string, bool) {
	real, err := filepath.EvalSymlinks(abs)
	if err != nil || !filepath.IsAbs(real) {
		return "", false
	}
	if r.cage != nil {
		if _, err := r.caged(real); err != nil || len(real) < len(r.names[len(r.names)-1]) {
			return "", false
		}
	}
	return real, true
}
