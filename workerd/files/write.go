package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

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
	var content content = &inline{m.GetData()}
	if m.GetStreamed() {
		if req.Op == "" || len(m.GetData()) > 0 {
			req.Fail(bus.Errorf(sandbusv1.Code_CODE_INVALID, "a streamed write needs an op and has no data in its request"))
			return
		}
		content = &incoming{ctx: ctx, in: req.Incoming()}
	}
	resp, err := r.write(&m, content)
	if err != nil {
		req.Fail(err)
		return
	}
	req.Reply(resp)
}

// content is what a file is to hold; next returns io.EOF behind the last piece.
type content interface {
	next() ([]byte, error)
}

// inline is content that came in one piece.
type inline struct{ data []byte }

func (c *inline) next() ([]byte, error) {
	if len(c.data) == 0 {
		return nil, io.EOF
	}
	b := c.data
	c.data = nil
	return b, nil
}

// incoming is the content of a stream's data frames up to its end frame.
type incoming struct {
	ctx  context.Context //nolint:containedctx // for the length of one copy
	in   *bus.Receiver
	rest []byte // of Read
}

func (s *incoming) next() ([]byte, error) {
	f, err := s.in.Next(s.ctx)
	switch {
	case err != nil:
		return nil, err
	case f.Kind == bus.FrameData:
		return f.Body, nil
	case f.Kind == bus.FrameEnd:
		return nil, io.EOF
	}
	return nil, &bus.StreamError{Rule: fmt.Sprintf("a file has no frames of kind %d", f.Kind)}
}

// Read makes it an io.Reader. After io.EOF it must not be called again.
func (s *incoming) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		var err error
		if s.rest, err = s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (r *Root) write(m *sandbusv1.WriteRequest, c content) (*sandbusv1.WriteResponse, error) {
	p, err := r.changing("write", m)
	if err != nil {
		return nil, err
	}
	if err := checkMode(m.GetMode()); err != nil {
		return nil, err
	}
	if n := len(m.GetExpectedSha256()); n != 0 && n != sha256.Size {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "expected SHA-256: %d bytes, want %d", n, sha256.Size)
	}
	t, err := r.targetMakingParents(p, m.GetParents())
	if err != nil {
		return nil, r.wrap("write", p, err)
	}
	defer t.close()
	resp, err := r.put(m, t, c)
	return resp, r.wrap("write", p, err)
}

func checkMode(mode uint32) error {
	if mode > 0o7777 {
		return bus.Errorf(sandbusv1.Code_CODE_INVALID, "mode %#o: the bound is 07777", mode)
	}
	return nil
}

// newMode is the mode of a file that is created.
func newMode(mode uint32) uint32 {
	if mode == 0 {
		return 0o666
	}
	return mode
}

// put replaces the target, or appends to it. The lock is held for what is done at the target only: content that
// arrives slowly keeps nobody from the file.
func (r *Root) put(m *sandbusv1.WriteRequest, t *target, c content) (_ *sandbusv1.WriteResponse, err error) {
	if err := t.admits(m); err != nil {
		return nil, err
	}
	sum := sha256.New()
	if m.GetAppend() && !m.GetStreamed() {
		return r.append(m, t, c, sum)
	}
	s, err := t.stage(newMode(m.GetMode()))
	if err != nil {
		return nil, err
	}
	defer s.discard()
	n, err := fill(s.fd, c, sum)
	if err != nil {
		return nil, err
	}
	if m.GetAppend() {
		if _, err := unix.Seek(s.fd, 0, io.SeekStart); err != nil {
			return nil, err
		}
		return r.append(m, t, &descriptor{fd: s.fd, buf: make([]byte, copyBuffer)}, sha256.New())
	}
	unlock, err := r.locks.lock(t)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := t.look(); err != nil {
		return nil, err
	}
	if err := t.admits(m); err != nil {
		return nil, err
	}
	if err := t.hasSum("write", m.GetExpectedSha256()); err != nil {
		return nil, err
	}
	created := !t.exists
	if err := s.commit(placing{noReplace: m.GetMustNotExist(), sync: !m.GetNoSync()}); err != nil {
		return nil, err
	}
	return &sandbusv1.WriteResponse{Size: n, Sha256: sum.Sum(nil), Created: created}, nil
}

// admits refuses a write by what is there.
func (t *target) admits(m *sandbusv1.WriteRequest) error {
	if err := t.regular(); err != nil {
		return err
	}
	if m.GetMustNotExist() && t.exists {
		return unix.EEXIST
	}
	return nil
}

// copyBuffer is how many bytes are read from a file at once.
const copyBuffer = 128 << 10

// descriptor is the content of an open file.
type descriptor struct {
	fd  int
	buf []byte
}

func (d *descriptor) next() ([]byte, error) {
	for {
		n, err := unix.Read(d.fd, d.buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return nil, io.EOF
		default:
			return d.buf[:n], nil
		}
	}
}

// fill writes content to a file and returns its length.
func fill(fd int, c content, sum hash.Hash) (n int64, err error) {
	for {
		b, err := c.next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		sum.Write(b)
		if err := writeAll(fd, b); err != nil {
			return n, err
		}
		n += int64(len(b))
	}
}

// hasSum refuses a target whose content is not the one that is expected; an empty want expects nothing.
func (t *target) hasSum(verb string, want []byte) error {
	if len(want) == 0 {
		return nil
	}
	given := t.place.given
	if !t.exists {
		return &bus.Error{
			Code: sandbusv1.Code_CODE_CONFLICT, Path: given,
			Message: fmt.Sprintf("%s %s: does not exist, expected content with SHA-256 %x", verb, printable(given), want),
		}
	}
	fd, err := t.open(unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	sum := sha256.New()
	if err := digest(context.Background(), fd, 0, -1, sum); err != nil {
		return err
	}
	return checkSum(verb, given, sum.Sum(nil), want)
}

func checkSum(verb, given string, got, want []byte) error {
	if len(want) == 0 || bytes.Equal(got, want) {
		return nil
	}
	return &bus.Error{
		Code: sandbusv1.Code_CODE_CONFLICT, Path: given,
		Message: fmt.Sprintf("%s %s: has SHA-256 %x, expected %x", verb, printable(given), got, want),
	}
}

// append adds content at the end; when that fails in the middle the file gets its old length back.
func (r *Root) append(m *sandbusv1.WriteRequest, t *target, c content, sum hash.Hash) (_ *sandbusv1.WriteResponse, err error) {
	unlock, err := r.locks.lock(t)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := t.look(); err != nil {
		return nil, err
	}
	if err := t.admits(m); err != nil {
		return nil, err
	}
	if err := t.hasSum("append", m.GetExpectedSha256()); err != nil {
		return nil, err
	}
	flags := unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT
	if !t.exists {
		flags |= unix.O_EXCL
	}
	fd, err := t.open(flags, newMode(m.GetMode()))
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := unix.Close(fd); err == nil {
			err = cerr
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if err := regular(t.place.given, st.Mode); err != nil { // something else has come in between
		return nil, err
	}
	n, err := fill(fd, c, sum)
	if err != nil {
		_ = unix.Ftruncate(fd, st.Size) // the error that counts is err
		return nil, err
	}
	if !m.GetNoSync() {
		if err := ignoringEINTR(func() error { return unix.Fsync(fd) }); err != nil {
			return nil, err
		}
		if !t.exists {
			if err := syncDir(t.dir); err != nil {
				return nil, err
			}
		}
	}
	return &sandbusv1.WriteResponse{Size: st.Size + n, Sha256: sum.Sum(nil), Created: !t.exists}, nil
}
