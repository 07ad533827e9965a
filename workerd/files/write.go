package files

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Write serves fs.write.
func (r *Root) Write(req *bus.Request) {
	var m sandbusv1.WriteRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	content := io.Reader(bytes.NewReader(m.GetData()))
	if m.GetStreamed() {
		if req.Op == "" || len(m.GetData()) > 0 {
			req.Fail(bus.Errorf(sandbusv1.Code_CODE_INVALID, "a streamed write needs an op and has no data in its request"))
			return
		}
		content = &incoming{ctx: ctx, in: req.Incoming()}
	}
	resp, err := r.write(&m, content)
	if err != nil {
		req.Fail(wrap("write", bus.FromText(m.GetPath(), m.GetPathRaw()), err))
		return
	}
	req.Reply(resp)
}

// incoming reads the data frames of a stream up to its end frame.
type incoming struct {
	ctx  context.Context //nolint:containedctx // an io.Reader for the length of one copy
	in   *bus.Receiver
	rest []byte
	over bool
}

func (s *incoming) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.over {
			return 0, io.EOF
		}
		f, err := s.in.Next(s.ctx)
		if err != nil {
			return 0, err
		}
		switch f.Kind {
		case bus.FrameData:
			s.rest = f.Body
		case bus.FrameEnd:
			s.over = true
		default:
			return 0, &bus.StreamError{Rule: fmt.Sprintf("a file has no frames of kind %d", f.Kind)}
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (r *Root) write(m *sandbusv1.WriteRequest, content io.Reader) (*sandbusv1.WriteResponse, error) {
	given, abs, err := r.resolve(m)
	if err != nil {
		return nil, err
	}
	if m.GetMode() > 0o7777 {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "mode %#o: the bound is 07777", m.GetMode())
	}
	if n := len(m.GetExpectedSha256()); n != 0 && n != sha256.Size {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "expected SHA-256: %d bytes, want %d", n, sha256.Size)
	}
	if strings.HasSuffix(abs, "/") {
		return nil, &bus.Error{Code: sandbusv1.Code_CODE_IS_DIRECTORY, Path: given, Message: printable(given) + ": names a directory"}
	}
	if m.GetParents() {
		if err := mkdirAll(filepath.Dir(abs), 0o777); err != nil {
			return nil, err
		}
	}
	path, st, exists, err := target(abs)
	if err != nil {
		return nil, err
	}
	if exists {
		if err := regular(given, st.Mode); err != nil {
			return nil, err
		}
	}
	if err := precondition(m, given, path, exists); err != nil {
		return nil, err
	}
	if m.GetAppend() {
		return appendTo(m, path, exists, content)
	}
	return replace(m, path, st, exists, content)
}

// target follows symbolic links to the file that a write replaces, which need not exist.
func target(abs string) (path string, st unix.Stat_t, exists bool, err error) {
	path = abs
	for range 40 { // as many as the kernel follows (path_resolution(7))
		err = ignoringEINTR(func() error { return unix.Lstat(path, &st) })
		if errors.Is(err, unix.ENOENT) {
			return path, st, false, nil
		}
		if err != nil {
			return path, st, false, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return path, st, true, nil
		}
		buf := make([]byte, MaxPath+1)
		n, err := unix.Readlink(path, buf)
		if err != nil {
			return path, st, false, err
		}
		link := string(buf[:n])
		if !filepath.IsAbs(link) {
			link = filepath.Dir(path) + "/" + link // not cleaned: ".." means the parent of what a link leads to
		}
		path = link
	}
	return path, st, false, unix.ELOOP
}

func precondition(m *sandbusv1.WriteRequest, given, path string, exists bool) error {
	if m.GetMustNotExist() && exists {
		return wrap("write", given, unix.EEXIST)
	}
	want := m.GetExpectedSha256()
	if len(want) == 0 {
		return nil
	}
	if !exists {
		return &bus.Error{Code: sandbusv1.Code_CODE_CONFLICT, Path: given, Message: printable(given) + ": does not exist, expected content with a given SHA-256"}
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return &bus.Error{
			Code: sandbusv1.Code_CODE_CONFLICT, Path: given,
			Message: fmt.Sprintf("%s: has SHA-256 %x, expected %x", printable(given), sum.Sum(nil), want),
		}
	}
	return nil
}

// newMode is the mode of a file that is created.
func newMode(m *sandbusv1.WriteRequest) uint32 {
	if m.GetMode() == 0 {
		return 0o666
	}
	return m.GetMode()
}

// replace writes a sibling and renames it over the file.
func replace(m *sandbusv1.WriteRequest, path string, st unix.Stat_t, exists bool, content io.Reader) (_ *sandbusv1.WriteResponse, err error) {
	dir := filepath.Dir(path)
	tmp := dir + "/.sandbus-" + rand.Text() // its length does not depend on the file's: 255 bytes are legal there
	var fd int
	err = ignoringEINTR(func() (err error) {
		fd, err = unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, newMode(m))
		return err
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), tmp)
	defer func() {
		if err != nil {
			_ = f.Close()        // the error that counts is err
			_ = unix.Unlink(tmp) // likewise
		}
	}()
	sum := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(f, sum), struct{ io.Reader }{content}, make([]byte, bus.ChunkBytes))
	if err != nil {
		return nil, err
	}
	if exists {
		if err := likeOld(fd, st); err != nil {
			return nil, err
		}
	}
	if !m.GetNoSync() {
		if err := f.Sync(); err != nil {
			return nil, err
		}
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	if m.GetMustNotExist() { // rename would replace what came in between
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // file systems without it
			if err = unix.Link(tmp, path); err == nil {
				err = unix.Unlink(tmp)
			}
		}
	} else {
		err = unix.Rename(tmp, path)
	}
	if err != nil {
		return nil, err
	}
	if !m.GetNoSync() {
		if err := syncDir(dir); err != nil {
			return nil, err
		}
	}
	return &sandbusv1.WriteResponse{Size: n, Sha256: sum.Sum(nil), Created: !exists}, nil
}

// likeOld gives a new file the mode and, where that is allowed, the owner of the file that it replaces.
func likeOld(fd int, st unix.Stat_t) error {
	if int(st.Uid) != unix.Geteuid() || int(st.Gid) != unix.Getegid() {
		_ = unix.Fchown(fd, int(st.Uid), int(st.Gid)) // not ours to give: then it is ours
	}
	return unix.Fchmod(fd, st.Mode&0o7777) // after chown, which clears setuid
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		if errors.Is(err, unix.EACCES) {
			return nil // may be written and not read: there is no descriptor to sync
		}
		return err
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) { // file systems that have no sync for directories
		err = nil
	}
	return errors.Join(err, d.Close())
}

func appendTo(m *sandbusv1.WriteRequest, path string, exists bool, content io.Reader) (*sandbusv1.WriteResponse, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, os.FileMode(newMode(m)))
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	_, err = io.CopyBuffer(io.MultiWriter(f, sum), struct{ io.Reader }{content}, make([]byte, bus.ChunkBytes))
	if err == nil && !m.GetNoSync() {
		err = f.Sync()
	}
	fi, serr := f.Stat()
	if err := errors.Join(err, serr, f.Close()); err != nil {
		return nil, err
	}
	return &sandbusv1.WriteResponse{Size: fi.Size(), Sha256: sum.Sum(nil), Created: !exists}, nil
}
