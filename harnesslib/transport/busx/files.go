package busx

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"

	"github.com/sandbus/sandbus/harnesslib/transport"
)

// files are the sandbox's own operations, for as long as the transport lives.
type files struct{ t *Transport }

// do runs an operation that has nothing but an error.
func (f files) do(ctx context.Context, op func(ctx context.Context) error) error {
	_, err := get(ctx, f.t, func(ctx context.Context) (struct{}, error) { return struct{}{}, op(ctx) })
	return err
}

// get runs an operation that has a result.
func get[R any](ctx context.Context, t *Transport, op func(ctx context.Context) (R, error)) (R, error) {
	ctx, leave, err := t.enter(ctx)
	if err != nil {
		var none R
		return none, err
	}
	defer leave()
	res, err := op(ctx)
	if err != nil && errors.Is(context.Cause(ctx), transport.ErrClosed) {
		err = errors.Join(transport.ErrClosed, err)
	}
	return res, err
}

func (f files) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return get(ctx, f.t, func(ctx context.Context) ([]byte, error) { return f.t.sb.ReadFile(ctx, name) })
}

func (f files) CopyFrom(ctx context.Context, name string, w io.Writer) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.CopyFrom(ctx, name, w) })
}

func (f files) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.WriteFile(ctx, name, data, perm) })
}

func (f files) AppendFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.AppendFile(ctx, name, data, perm) })
}

func (f files) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.CopyTo(ctx, name, r, perm) })
}

func (f files) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return get(ctx, f.t, func(ctx context.Context) (fs.FileInfo, error) { return f.t.sb.Stat(ctx, name) })
}

func (f files) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return get(ctx, f.t, func(ctx context.Context) (fs.FileInfo, error) { return f.t.sb.Lstat(ctx, name) })
}

func (f files) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	return get(ctx, f.t, func(ctx context.Context) ([]fs.DirEntry, error) { return f.t.sb.ReadDir(ctx, name) })
}

func (f files) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.Mkdir(ctx, name, perm) })
}

func (f files) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.MkdirAll(ctx, name, perm) })
}

func (f files) Remove(ctx context.Context, name string) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.Remove(ctx, name) })
}

func (f files) RemoveAll(ctx context.Context, name string) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.RemoveAll(ctx, name) })
}

func (f files) Rename(ctx context.Context, oldName, newName string) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.Rename(ctx, oldName, newName) })
}

func (f files) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.Chmod(ctx, name, mode) })
}

func (f files) Symlink(ctx context.Context, oldName, newName string) error {
	return f.do(ctx, func(ctx context.Context) error { return f.t.sb.Symlink(ctx, oldName, newName) })
}

func (f files) ReadLink(ctx context.Context, name string) (string, error) {
	return get(ctx, f.t, func(ctx context.Context) (string, error) { return f.t.sb.ReadLink(ctx, name) })
}

func (f files) Hash(ctx context.Context, name string) ([sha256.Size]byte, error) {
	return get(ctx, f.t, func(ctx context.Context) ([sha256.Size]byte, error) { return f.t.sb.Hash(ctx, name) })
}
