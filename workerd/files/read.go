package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// MaxInline is how many bytes of content a read answers in one message; more is streamed.
const MaxInline = 256 << 10

// Read serves fs.read.
func (r *Root) Read(req *bus.Request) {
	var m sandbusv1.ReadRequest
	if _, err := req.Decode(&m); err != nil {
		req.Fail(err)
		return
	}
	resp, rest, err := r.read(&m)
	switch {
	case err != nil:
		req.Fail(err)
	case rest == nowhere:
		req.Reply(resp)
		recycle(resp.GetData())
	default:
		req.Detach(func() {
			defer rest.close()
			r.stream(req, &m, resp, rest.fd)
		})
	}
}

// openRegular opens a regular file and describes it.
func (r *Root) openRegular(p place) (h handle, st unix.Stat_t, err error) {
	h, err = r.open(p, unix.O_RDONLY)
	if err != nil {
		return nowhere, st, err
	}
	if err = unix.Fstat(h.fd, &st); err == nil {
		err = regular(p.given, st.Mode)
	}
	if err != nil {
		h.close()
		return nowhere, st, err
	}
	return h, st, nil
}

func checkRange(offset, length int64) error {
	if offset < 0 || length < 0 || offset+length < 0 {
		return bus.Errorf(sandbusv1.Code_CODE_INVALID, "offset %d, length %d: both are 0 or more, their sum below 2^63", offset, length)
	}
	return nil
}

// read reads what fits into one message, or returns the open file for a stream.
func (r *Root) read(m *sandbusv1.ReadRequest) (*sandbusv1.ReadResponse, handle, error) {
	p, err := r.placeOf(m)
	if err != nil {
		return nil, nowhere, err
	}
	if err := checkRange(m.GetOffset(), m.GetLength()); err != nil {
		return nil, nowhere, err
	}
	h, st, err := r.openRegular(p)
	if err != nil {
		return nil, nowhere, r.wrap("read", p, err)
	}
	resp := &sandbusv1.ReadResponse{Info: info(filepath.Base(p.given), &st)}
	want := max(0, st.Size-m.GetOffset())
	if n := m.GetLength(); n > 0 {
		want = min(want, n)
	}
	if bound := m.GetMaxBytes(); bound > 0 && want > bound {
		h.close()
		return nil, nowhere, &bus.Error{
			Code: sandbusv1.Code_CODE_TOO_LARGE, Path: p.given,
			Message: tooLong("read", p.given, want, bound, "read a part of it, or copy it as a stream"),
		}
	}
	whole := want <= MaxInline
	switch {
	case st.Size == 0: // files of /proc say that they are empty
		resp.Data, whole, err = readUnsized(h.fd, m.GetOffset(), m.GetLength())
	case whole:
		resp.Data, err = readAt(h.fd, int(want), m.GetOffset())
	}
	if err == nil && !whole {
		resp.Streamed = true
		return resp, h, nil
	}
	h.close()
	if err != nil {
		return nil, nowhere, r.wrap("read", p, err)
	}
	return resp, nowhere, nil
}

// buffers are reused for small files: Reply has copied the content when it returns.
var buffers = sync.Pool{New: func() any { b := make([]byte, maxRecycled); return &b }}

// maxRecycled is the size up to which a buffer comes from the pool, in bytes.
const maxRecycled = 16 << 10

// contents is a buffer for n bytes of content.
func contents(n int) []byte {
	if n > maxRecycled {
		return make([]byte, n)
	}
	return (*buffers.Get().(*[]byte))[:n]
}

func recycle(b []byte) {
	if cap(b) == maxRecycled {
		b = b[:maxRecycled]
		buffers.Put(&b)
	}
}

// readAt reads up to n bytes; fewer only at the end of the file.
func readAt(fd, n int, offset int64) ([]byte, error) {
	buf := contents(n)
	got, err := preadFull(fd, buf, offset)
	return buf[:got], err
}

// preadFull fills buf; got is less than its length only at the end of the file and for an error.
func preadFull(fd int, buf []byte, offset int64) (got int, err error) {
	for got < len(buf) {
		n, err := unix.Pread(fd, buf[got:], offset+int64(got))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return got, err
		}
		got += n
	}
	return got, nil
}

// readUnsized reads a file that does not tell its length. whole is false when there is more than fits into one message;
// then there is no data.
func readUnsized(fd int, offset, length int64) (data []byte, whole bool, err error) {
	for size := 512; ; size *= 8 {
		if size > MaxInline {
			size = MaxInline + 1
		}
		n := size
		if length > 0 {
			n = int(min(int64(n), length))
		}
		data, err = readAt(fd, n, offset)
		switch {
		case err != nil:
			return nil, false, err
		case len(data) > MaxInline:
			return nil, false, nil
		case len(data) < size:
			return data, true, nil
		}
	}
}

// stream sends a file that does not fit into one message. The end frame carries the SHA-256 of what was sent.
func (r *Root) stream(req *bus.Request, m *sandbusv1.ReadRequest, resp *sandbusv1.ReadResponse, fd int) {
	out, err := req.Outgoing(0)
	if err != nil {
		req.Fail(err)
		return
	}
	ctx := req.Context()
	started, err := proto.Marshal(resp)
	if err == nil {
		err = out.Write(ctx, bus.FrameStarted, started)
	}
	sum := sha256.New()
	data := &frames{ctx: ctx, out: out}
	if err == nil {
		length := m.GetLength()
		if length == 0 {
			length = -1
		}
		err = digest(ctx, fd, m.GetOffset(), length, sum, data)
	}
	end := &sandbusv1.StreamEnd{StdoutBytes: data.sent, Sha256: sum.Sum(nil)}
	if err != nil && ctx.Err() != nil {
		req.Fail(wrap("read", bus.FromText(m.GetPath(), m.GetPathRaw()), err)) // nobody may be there to acknowledge an end
		return
	}
	if err != nil {
		end.Error, end.Sha256 = bus.ToWire(wrap("read", bus.FromText(m.GetPath(), m.GetPathRaw()), err)), nil
	}
	req.EndStream(out, end)
}

// digest reads a range of a file into a hash and into others. A length below zero means up to the end. Errors: also the
// context's cause.
func digest(ctx context.Context, fd int, offset, length int64, sum hash.Hash, others ...io.Writer) error {
	buf := make([]byte, copyBuffer)
	for length != 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part := buf
		if length > 0 && length < int64(len(part)) {
			part = part[:length]
		}
		n, err := unix.Pread(fd, part, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		sum.Write(part[:n])
		for _, w := range others {
			if _, err := w.Write(part[:n]); err != nil {
				return err
			}
		}
		offset += int64(n)
		if length > 0 {
			length -= int64(n)
		}
	}
	return nil
}

// frames writes data frames.
type frames struct {
	ctx  context.Context //nolint:containedctx // an io.Writer for the length of one copy
	out  *bus.Sender
	sent int64
}

func (f *frames) Write(b []byte) (int, error) {
	if err := f.out.Write(f.ctx, bus.FrameData, b); err != nil {
		return 0, err
	}
	f.sent += int64(len(b))
	return len(b), nil
}
