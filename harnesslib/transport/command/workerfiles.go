package command

import (
	"context"
	"crypto/sha256"
	"io"
	"io/fs"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

// workerFiles are the files of what serves at the time of each operation.
type workerFiles struct{ t *Worker }

// do runs an operation that has nothing but an error.
func (f workerFiles) do(ctx context.Context, op func(ctx context.Context, files transport.Files) error) error {
	_, err := with(ctx, f.t, func(ctx context.Context, files transport.Files) (struct{}, error) { return struct{}{}, op(ctx, files) })
	return err
}

// with runs an operation that has a result.
func with[R any](ctx context.Context, t *Worker, op func(ctx context.Context, files transport.Files) (R, error)) (R, error) {
	var none R
	ctx, leave, err := t.enter(ctx)
	if err != nil {
		return none, err
	}
	defer leave()
	tr, err := t.ready(ctx)
	if err != nil {
		return none, notRun(ctx, err)
	}
	res, err := op(ctx, tr.Files())
	return res, closedErr(ctx, err)
}

func (f workerFiles) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return with(ctx, f.t, func(ctx context.Context, files transport.Files) ([]byte, error) { return files.ReadFile(ctx, name) })
}

func (f workerFiles) CopyFrom(ctx context.Context, name string, w io.Writer) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.CopyFrom(ctx, name, w) })
}

func (f workerFiles) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.WriteFile(ctx, name, data, perm) })
}

func (f workerFiles) AppendFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.AppendFile(ctx, name, data, perm) })
}

func (f workerFiles) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.CopyTo(ctx, name, r, perm) })
}

func (f workerFiles) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return with(ctx, f.t, func(ctx context.Context, files transport.Files) (fs.FileInfo, error) { return files.Stat(ctx, name) })
}

func (f workerFiles) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return with(ctx, f.t, func(ctx context.Context, files transport.Files) (fs.FileInfo, error) { return files.Lstat(ctx, name) })
}

func (f workerFiles) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	return with(ctx, f.t, func(ctx context.Context, files transport.Files) ([]fs.DirEntry, error) {
		return files.ReadDir(ctx, name)
	})
}

func (f workerFiles) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.Mkdir(ctx, name, perm) })
}

func (f workerFiles) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.MkdirAll(ctx, name, perm) })
}

func (f workerFiles) Remove(ctx context.Context, name string) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.Remove(ctx, name) })
}

func (f workerFiles) RemoveAll(ctx context.Context, name string) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.RemoveAll(ctx, name) })
}

func (f workerFiles) Rename(ctx context.Context, oldName, newName string) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.Rename(ctx, oldName, newName) })
}

func (f workerFiles) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.Chmod(ctx, name, mode) })
}

func (f workerFiles) Symlink(ctx context.Context, oldName, newName string) error {
	return f.do(ctx, func(ctx context.Context, files transport.Files) error { return files.Symlink(ctx, oldName, newName) })
}

func (f workerFiles) ReadLink(ctx context.Context, name string) (string, error) {
	return with(ctx, f.t, func(ctx context.Context, files transport.Files) (string, error) { return files.ReadLink(ctx, name) })
}

func (f workerFiles) Hash(ctx context.Context, name string) ([sha256.Size]byte, error) {
	return with(ctx, f.t, func(ctx context.Context, files transport.Files) ([sha256.Size]byte, error) {
		return files.Hash(ctx, name)
	})
}
