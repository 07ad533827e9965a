package files

import (
	"context"
	"crypto/sha256"
	"io"
	"os"
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
	resp, rest, err := r.open(&m)
	switch {
	case err != nil:
		req.Fail(err)
	case rest == nil:
		req.Reply(resp)
		recycle(resp.GetData())
	default:
		req.Detach(func() {
			defer func() { _ = rest.Close() }() // read only
			r.stream(req, &m, resp, rest)
		})
	}
}

// open reads what fits into one message, or returns the file for a stream.
func (r *Root) open(m *sandbusv1.ReadRequest) (*sandbusv1.ReadResponse, *os.File, error) {
	given, abs, err := r.resolve(m)
	if err != nil {
		return nil, nil, err
	}
	if m.GetOffset() < 0 || m.GetLength() < 0 {
		return nil, nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "offset %d, length %d: both are 0 or more", m.GetOffset(), m.GetLength())
	}
	var fd int
	// Without O_NONBLOCK a FIFO would block here, and a device might act on the open.
	err = ignoringEINTR(func() (err error) {
		fd, err = unix.Open(abs, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return nil, nil, wrap("read", given, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = regular(given, st.Mode)
	}
	if err != nil {
		_ = unix.Close(fd) // read only
		return nil, nil, wrap("read", given, err)
	}
	resp := &sandbusv1.ReadResponse{Info: info(filepath.Base(given), &st)}
	want := max(0, st.Size-m.GetOffset())
	if st.Size == 0 {
		want = MaxInline // files of /proc say that they are empty
	}
	if n := m.GetLength(); n > 0 {
		want = min(want, n)
	}
	if want > MaxInline {
		resp.Streamed = true
		return resp, os.NewFile(uintptr(fd), abs), nil
	}
	resp.Data, err = readAt(fd, int(want), m.GetOffset())
	_ = unix.Close(fd) // read only
	if err != nil {
		return nil, nil, wrap("read", given, err)
	}
	return resp, nil, nil
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
	for got := 0; got < n; {
		k, err := unix.Pread(fd, buf[got:], offset+int64(got))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if k == 0 {
			return buf[:got], nil
		}
		got += k
	}
	return buf, nil
}

// stream sends a file that does not fit into one message. The end frame carries the SHA-256 of what was sent.
func (r *Root) stream(req *bus.Request, m *sandbusv1.ReadRequest, resp *sandbusv1.ReadResponse, f *os.File) {
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
	var sent int64
	if err == nil {
		length := m.GetLength()
		if length == 0 {
			length = 1<<62 - 1
		}
		src := io.NewSectionReader(f, m.GetOffset(), length)
		sent, err = io.CopyBuffer(io.MultiWriter(sum, frames{ctx, out}), struct{ io.Reader }{src}, make([]byte, bus.ChunkBytes))
	}
	end := &sandbusv1.StreamEnd{StdoutBytes: sent, Sha256: sum.Sum(nil)}
	if err != nil {
		end.Error, end.Sha256 = bus.ToWire(wrap("read", bus.FromText(m.GetPath(), m.GetPathRaw()), err)), nil
	}
	req.EndStream(out, end)
}

// frames writes data frames.
type frames struct {
	ctx context.Context //nolint:containedctx // an io.Writer for the length of one copy
	out *bus.Sender
}

func (f frames) Write(b []byte) (int, error) {
	if err := f.out.Write(f.ctx, bus.FrameData, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
