package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// install copies this very binary into a directory, for side-loading into images that lack it: an init container runs
// it on a volume that the sandbox's container shares. The copy appears whole or not at all, under the name workerd, with
// mode 0755. Errors: the directory is missing or not writable.
func install(name string, args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 || args[0] == "" || args[0][0] == '-' {
		return fail(stderr, name, exitUsage, errors.New("install: want one directory, as in: workerd install /shared"))
	}
	path, err := installTo(args[0])
	if err != nil {
		return fail(stderr, name, exitFailed, fmt.Errorf("install: %w", err))
	}
	_, _ = fmt.Fprintln(stdout, path)
	return 0
}

func installTo(dir string) (path string, err error) {
	if st, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("directory %q: %w; make it first", dir, errors.Unwrap(err))
	} else if !st.IsDir() {
		return "", fmt.Errorf("%q: is no directory", dir)
	}
	self, err := os.Open("/proc/self/exe") // also where os.Executable's path is gone or another's
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, self.Close()) }()
	tmp, err := os.CreateTemp(dir, ".workerd-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = io.Copy(tmp, self)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "workerd")
	return path, os.Rename(tmp.Name(), path)
}
