package files

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// entry is the target of what does not follow a link: the path's last name itself.
func (r *Root) entry(p place) (*target, error) {
	dir, name, err := r.openParent(p)
	if err != nil {
		return nil, err
	}
	t := &target{place: p, dir: dir, name: name}
	if err := t.look(); err != nil {
		t.close()
		return nil, err
	}
	if t.exists && strings.HasSuffix(p.path, "/") && t.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.close()
		return nil, unix.ENOTDIR
	}
	return t, nil
}

// Rename answers fs.rename.
func (r *Root) Rename(req *sandbusv1.RenameRequest) (*sandbusv1.RenameResponse, error) {
	from, err := r.changing("rename", req)
	if err != nil {
		return nil, err
	}
	to, err := r.placeTo(req)
	if err != nil {
		return nil, err
	}
	src, err := r.entry(from)
	if err == nil && !src.exists {
		src.close()
		err = unix.ENOENT
	}
	if err != nil {
		return nil, r.wrap("rename", from, err)
	}
	defer src.close()
	dst, err := r.entry(to)
	if errors.Is(err, unix.ENOENT) && req.GetParents() {
		dir, _ := to.split()
		if err = r.mkdirAll(dir, 0o777); err == nil {
			dst, err = r.entry(to)
		}
	}
	if err != nil {
		return nil, r.wrap("rename", to, err)
	}
	defer dst.close()
	unlock, err := r.locks.lockBoth(src, dst)
	if err != nil {
		return nil, r.wrap("rename", from, err)
	}
	defer unlock()
	if req.GetNoReplace() {
		err = renameNoReplace(src.dir.fd, src.name, dst.dir.fd, dst.name)
	} else {
		err = unix.Renameat(src.dir.fd, src.name, dst.dir.fd, dst.name)
	}
	if err != nil {
		at := from
		if !errors.Is(err, unix.ENOENT) { // EEXIST, ENOTEMPTY, EISDIR: the new name is in the way
			at = to
		}
		return nil, r.wrap("rename", at, err)
	}
	return &sandbusv1.RenameResponse{}, nil
}

// Copy answers fs.copy.
func (r *Root) Copy(ctx context.Context, req *sandbusv1.CopyRequest) (*sandbusv1.CopyResponse, error) {
	from, err := r.changing("copy", req)
	if err != nil {
		return nil, err
	}
	to, err := r.placeTo(req)
	if err != nil {
		return nil, err
	}
	src, st, err := r.openRegular(from)
	if err != nil {
		return nil, r.wrap("copy", from, err)
	}
	defer src.close()
	dst, err := r.targetMakingParents(to, req.GetParents())
	if err != nil {
		return nil, r.wrap("copy", to, err)
	}
	defer dst.close()
	resp, err := r.copyTo(ctx, req, src.fd, st.Mode&0o777, dst)
	return resp, r.wrap("copy", to, err)
}

func (r *Root) copyTo(ctx context.Context, req *sandbusv1.CopyRequest, src int, mode uint32, dst *target) (*sandbusv1.CopyResponse, error) {
	admits := func() error {
		if dst.exists && req.GetNoReplace() {
			return unix.EEXIST
		}
		return dst.regular()
	}
	if err := admits(); err != nil {
		return nil, err
	}
	s, err := dst.stage(0o600)
	if err != nil {
		return nil, err
	}
	defer s.discard()
	n, err := copyContent(ctx, src, s.fd)
	if err != nil {
		return nil, err
	}
	if err := unix.Fchmod(s.fd, mode); err != nil {
		return nil, err
	}
	unlock, err := r.locks.lock(dst)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := dst.look(); err != nil {
		return nil, err
	}
	if err := admits(); err != nil {
		return nil, err
	}
	created := !dst.exists
	if err := s.commit(placing{noReplace: req.GetNoReplace(), sync: !req.GetNoSync(), ownMode: true}); err != nil {
		return nil, err
	}
	return &sandbusv1.CopyResponse{Size: n, Created: created}, nil
}

// copyContent copies from where src stands to its end, in the kernel where that can be done.
func copyContent(ctx context.Context, src, dst int) (n int64, err error) {
	const atOnce = 16 << 20 // so that an abort is not late
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		k, err := unix.CopyFileRange(src, nil, dst, nil, atOnce, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil && n == 0, err == nil && k == 0 && n == 0:
			// Not on these file systems; or a file of /proc, of which copy_file_range(2) says that it is empty.
			return copyByHand(ctx, src, dst)
		case err != nil || k == 0:
			return n, err
		}
		n += int64(k)
	}
}

func copyByHand(ctx context.Context, src, dst int) (n int64, err error) {
	c := &descriptor{fd: src, buf: make([]byte, copyBuffer)}
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		b, err := c.next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if err := writeAll(dst, b); err != nil {
			return n, err
		}
		n += int64(len(b))
	}
}

// Chmod answers fs.chmod.
func (r *Root) Chmod(req *sandbusv1.ChmodRequest) (*sandbusv1.ChmodResponse, error) {
	p, err := r.changing("chmod", req)
	if err != nil {
		return nil, err
	}
	if err := checkMode(req.GetMode()); err != nil {
		return nil, err
	}
	if r.cage != nil {
		err = r.cage.root.Chmod(p.path, fileMode(req.GetMode()))
	} else {
		err = ignoringEINTR(func() error { return unix.Fchmodat(unix.AT_FDCWD, p.path, req.GetMode(), 0) })
	}
	if err != nil {
		return nil, r.wrap("chmod", p, err)
	}
	return &sandbusv1.ChmodResponse{}, nil
}

// Symlink answers fs.symlink.
func (r *Root) Symlink(req *sandbusv1.SymlinkRequest) (*sandbusv1.SymlinkResponse, error) {
	p, err := r.changing("symlink", req)
	if err != nil {
		return nil, err
	}
	link := bus.FromText(req.GetTarget(), req.GetTargetRaw())
	if link == "" || len(link) > MaxPath || strings.IndexByte(link, 0) >= 0 {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "link text %.200q: want 1 to %d bytes without NUL", link, MaxPath)
	}
	if r.cage != nil && (link[0] == '/' || !staysBelow(path.Dir(p.path), link)) {
		return nil, r.cage.refusal("symlink to "+printable(link)+" at", p.given)
	}
	dir, fd, name, err := r.at(p)
	if err == nil {
		err = unix.Symlinkat(link, fd, name)
		dir.close()
	} else if errors.Is(err, unix.EISDIR) {
		err = unix.EEXIST
	}
	if err != nil {
		return nil, r.wrap("symlink", p, err)
	}
	return &sandbusv1.SymlinkResponse{}, nil
}

// staysBelow says whether a link in dir, which is relative to a root, leads to a place below that root as far as its
// text tells.
func staysBelow(dir, link string) bool {
	to := path.Join(dir, link)
	return to != ".." && !strings.HasPrefix(to, "../") && !strings.HasPrefix(to, "/")
}
