package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

// brokenFiles are file operations of which each can be another one than its own.
type brokenFiles struct {
	transport.Files

	read   func(ctx context.Context, name string) ([]byte, error)
	write  func(ctx context.Context, name string, data []byte, perm fs.FileMode) error
	add    func(ctx context.Context, name string, data []byte, perm fs.FileMode) error
	copyTo func(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error
	list   func(ctx context.Context, name string) ([]fs.DirEntry, error)
	stat   func(ctx context.Context, name string) (fs.FileInfo, error)
	mkdir  func(ctx context.Context, name string, perm fs.FileMode) error
	remove func(ctx context.Context, name string) error
	rename func(ctx context.Context, oldName, newName string) error
	chmod  func(ctx context.Context, name string, mode fs.FileMode) error
	link   func(ctx context.Context, name string) (string, error)
	hash   func(ctx context.Context, name string) ([sha256.Size]byte, error)
}

func newBrokenFiles(f transport.Files) *brokenFiles {
	return &brokenFiles{
		Files: f, read: f.ReadFile, write: f.WriteFile, add: f.AppendFile, copyTo: f.CopyTo, list: f.ReadDir, stat: f.Stat, mkdir: f.Mkdir,
		remove: f.Remove, rename: f.Rename, chmod: f.Chmod, link: f.ReadLink, hash: f.Hash,
	}
}

func (f *brokenFiles) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return f.read(ctx, name)
}

func (f *brokenFiles) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.write(ctx, name, data, perm)
}

func (f *brokenFiles) AppendFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.add(ctx, name, data, perm)
}

func (f *brokenFiles) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return f.copyTo(ctx, name, r, perm)
}

func (f *brokenFiles) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	return f.list(ctx, name)
}

func (f *brokenFiles) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, name)
}

func (f *brokenFiles) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.mkdir(ctx, name, perm)
}

func (f *brokenFiles) Remove(ctx context.Context, name string) error {
	return f.remove(ctx, name)
}

func (f *brokenFiles) Rename(ctx context.Context, oldName, newName string) error {
	return f.rename(ctx, oldName, newName)
}

func (f *brokenFiles) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return f.chmod(ctx, name, mode)
}

func (f *brokenFiles) ReadLink(ctx context.Context, name string) (string, error) {
	return f.link(ctx, name)
}

func (f *brokenFiles) Hash(ctx context.Context, name string) ([sha256.Size]byte, error) {
	return f.hash(ctx, name)
}

var fileFaults = []Fault{
	{"reads text", []string{"write and read", "copy"}, onFiles(func(f *brokenFiles) {
		f.read = func(ctx context.Context, name string) ([]byte, error) {
			b, err := f.Files.ReadFile(ctx, name)
			return bytes.TrimRight(b, "\n"), err
		}
		f.copyTo = func(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
			return f.Files.CopyTo(ctx, name, io.LimitReader(r, 1<<20), perm)
		}
	})},
	{"an error is an empty file", []string{"errors of paths", "special files", "files of an aborted context"}, onFiles(func(f *brokenFiles) {
		f.read = func(ctx context.Context, name string) ([]byte, error) {
			b, _ := f.Files.ReadFile(ctx, name) // that is the fault
			return b, nil
		}
	})},
	{"writes in place", []string{"write keeps"}, onFiles(func(f *brokenFiles) {
		f.write = func(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
			if err := f.Files.Remove(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return f.Files.WriteFile(ctx, name, data, perm)
		}
	})},
	{"leaves its temporary file", []string{"write and read"}, onFiles(func(f *brokenFiles) {
		f.write = func(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
			if err := f.Files.WriteFile(ctx, path.Dir(name)+"/.tmp", data, perm); err != nil {
				return err
			}
			return f.Files.WriteFile(ctx, name, data, perm)
		}
	})},
	{"appends a newline", []string{"append"}, onFiles(func(f *brokenFiles) {
		f.add = func(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
			return f.Files.AppendFile(ctx, name, append(bytes.Clone(data), '\n'), perm)
		}
	})},
	{"lists what is not hidden", []string{"list", "names"}, onFiles(func(f *brokenFiles) {
		f.list = func(ctx context.Context, name string) ([]fs.DirEntry, error) {
			entries, err := f.Files.ReadDir(ctx, name)
			kept := []fs.DirEntry{}
			for _, e := range entries {
				if !strings.HasPrefix(e.Name(), ".") {
					kept = append(kept, e)
				}
			}
			return kept, err
		}
	})},
	{"does not follow links", []string{"stat"}, onFiles(func(f *brokenFiles) {
		f.stat = f.Lstat
	})},
	{"makes parents unasked", []string{"make directories"}, onFiles(func(f *brokenFiles) { f.mkdir = f.MkdirAll })},
	{"removes all that there is", []string{"remove"}, onFiles(func(f *brokenFiles) { f.remove = f.RemoveAll })},
	{"renames by a copy", []string{"rename"}, onFiles(func(f *brokenFiles) {
		f.rename = func(ctx context.Context, oldName, newName string) error {
			b, err := f.Files.ReadFile(ctx, oldName)
			if err != nil {
				return err
			}
			return f.Files.WriteFile(ctx, newName, b, 0o644)
		}
	})},
	{"mode by nine bits", []string{"mode", "stat"}, onFiles(func(f *brokenFiles) {
		f.chmod = func(ctx context.Context, name string, mode fs.FileMode) error {
			return f.Files.Chmod(ctx, name, mode.Perm())
		}
		f.stat = func(ctx context.Context, name string) (fs.FileInfo, error) {
			info, err := f.Files.Stat(ctx, name)
			if err != nil {
				return nil, err
			}
			return nineBits{info}, nil
		}
	})},
	{"the text of a link is a line", []string{"links"}, onFiles(func(f *brokenFiles) {
		f.link = func(ctx context.Context, name string) (string, error) {
			s, err := f.Files.ReadLink(ctx, name)
			return strings.TrimRight(s, "\n"), err
		}
	})},
	{"the hash of another file", []string{"hash"}, onFiles(func(f *brokenFiles) {
		f.hash = func(ctx context.Context, name string) ([sha256.Size]byte, error) {
			return f.Files.Hash(ctx, path.Dir(name)+"/../../dev/../etc/passwd")
		}
	})},
	{"errors without a kind", []string{"errors of paths", "special files", "permission"}, onFiles(func(f *brokenFiles) {
		f.read = func(ctx context.Context, name string) ([]byte, error) {
			b, err := f.Files.ReadFile(ctx, name)
			if err != nil {
				err = errors.New(err.Error())
			}
			return b, err
		}
		f.write = func(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
			if err := f.Files.WriteFile(ctx, name, data, perm); err != nil && !errors.Is(err, syscall.EISDIR) {
				return nil
			}
			return nil
		}
	})},
	{"waits for a FIFO", []string{"special files"}, onFiles(func(f *brokenFiles) {
		f.read = func(ctx context.Context, name string) ([]byte, error) {
			b, err := f.Files.ReadFile(ctx, name)
			if err != nil && strings.HasSuffix(name, "/p") {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return b, err
		}
	})},
}

// nineBits is a FileInfo without setuid and its siblings.
type nineBits struct{ fs.FileInfo }

func (n nineBits) Mode() fs.FileMode { return n.FileInfo.Mode() & (fs.ModeType | fs.ModePerm) }
