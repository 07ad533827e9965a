package files

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/treetar"
)

// maxPackNames bounds the names of one fs.pack.
const maxPackNames = 65_536

// openTree opens the directory that a path leads to.
func (r *Root) openTree(p place) (*os.Root, error) {
	if r.cage != nil {
		return r.cage.root.OpenRoot(p.path)
	}
	return os.OpenRoot(p.path)
}

// Pack serves fs.pack.
func (r *Root) Pack(req *bus.Request) {
	var m sandbusv1.PackRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	p, root, started, err := r.packing(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	defer func() { _ = root.Close() }() // read only
	out, err := req.Outgoing(0)
	if err != nil {
		req.Fail(err)
		return
	}
	sum := sha256.New()
	data := &frames{ctx: ctx, out: out}
	err = out.Write(ctx, bus.FrameStarted, started)
	if err == nil {
		w := bufio.NewWriterSize(io.MultiWriter(sum, data), copyBuffer)
		_, err = treetar.Pack(ctx, w, root, treetar.PackOptions{Names: bus.FromTexts(m.GetNames(), m.GetNamesRaw())})
		if err == nil {
			err = w.Flush()
		}
	}
	end := &sandbusv1.StreamEnd{StdoutBytes: data.sent, Sha256: sum.Sum(nil)}
	if err != nil {
		if ctx.Err() != nil {
			req.Fail(r.wrap("pack", p, err)) // nobody may be there to acknowledge an end
			return
		}
		end.Error, end.Sha256 = bus.ToWire(r.wrap("pack", p, err)), nil
	}
	req.EndStream(out, end)
}

// packing opens what a request names, and makes the body of the started frame.
func (r *Root) packing(m *sandbusv1.PackRequest) (p place, root *os.Root, started []byte, err error) {
	if p, err = r.placeOf(m); err != nil {
		return p, nil, nil, err
	}
	if n := len(m.GetNames()) + len(m.GetNamesRaw()); n > maxPackNames {
		return p, nil, nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "%d names: the bound is %d, ask for the rest in another request", n, maxPackNames)
	}
	var st unix.Stat_t
	if err = r.stat(p, false, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return p, nil, nil, r.wrap("pack", p, err)
	}
	if root, err = r.openTree(p); err != nil {
		return p, nil, nil, r.wrap("pack", p, err)
	}
	started, err = proto.Marshal(&sandbusv1.PackResponse{Info: info(filepath.Base(p.given), &st)})
	return p, root, started, err
}

// Unpack serves fs.unpack.
func (r *Root) Unpack(req *bus.Request) {
	var m sandbusv1.UnpackRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	p, err := r.changing("unpack", &m)
	if err != nil {
		req.Fail(err)
		return
	}
	resp, err := r.unpack(ctx, p, &m, &incoming{ctx: ctx, in: req.Incoming()})
	if err != nil {
		req.Fail(r.wrap("unpack", p, err))
		return
	}
	req.Reply(resp)
}

func (r *Root) unpack(ctx context.Context, p place, m *sandbusv1.UnpackRequest, archive io.Reader) (*sandbusv1.UnpackResponse, error) {
	if err := r.mkdirAll(p, 0o777); err != nil {
		return nil, err
	}
	root, err := r.openTree(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // what was written is synced below
	sum := sha256.New()
	src := io.TeeReader(archive, sum)
	// Outside of confinement a link may lead anywhere: the tree is the sandbox's own.
	stats, err := treetar.Extract(ctx, src, root, treetar.ExtractOptions{AnyLink: r.cage == nil})
	if unsafe, ok := errors.AsType[*treetar.UnsafeError](err); ok {
		return nil, &bus.Error{Code: sandbusv1.Code_CODE_PERMISSION, Path: p.given, Message: "unpack " + printable(p.given) + ": " + unsafe.Error() + " (rule: safe extraction)"}
	}
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, src); err != nil { // what pads the archive is part of its sum
		return nil, err
	}
	if !m.GetNoSync() {
		dir, err := root.Open(".")
		if err != nil {
			return nil, err
		}
		err = unix.Syncfs(int(dir.Fd())) // one call for all files
		if err := errors.Join(err, dir.Close()); err != nil {
			return nil, err
		}
	}
	return &sandbusv1.UnpackResponse{Entries: stats.Entries, Bytes: stats.Bytes, Sha256: sum.Sum(nil)}, nil
}
