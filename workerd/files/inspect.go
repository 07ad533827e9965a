package files

import (
	"context"
	"crypto/sha256"
	"io/fs"
	"path/filepath"

	"github.com/gabriel-vasile/mimetype"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Readlink answers fs.readlink.
func (r *Root) Readlink(req *sandbusv1.ReadlinkRequest) (*sandbusv1.ReadlinkResponse, error) {
	p, err := r.placeOf(req)
	if err != nil {
		return nil, err
	}
	link, err := r.readlink(p)
	if err != nil {
		return nil, r.wrap("readlink", p, err)
	}
	resp := &sandbusv1.ReadlinkResponse{}
	resp.Target, resp.TargetRaw = bus.ToText(link)
	return resp, nil
}

// Hash answers fs.hash.
func (r *Root) Hash(ctx context.Context, req *sandbusv1.HashRequest) (*sandbusv1.HashResponse, error) {
	p, err := r.placeOf(req)
	if err != nil {
		return nil, err
	}
	if err := checkRange(req.GetOffset(), req.GetLength()); err != nil {
		return nil, err
	}
	h, st, err := r.openRegular(p)
	if err != nil {
		return nil, r.wrap("hash", p, err)
	}
	defer h.close()
	length := req.GetLength()
	if length == 0 {
		length = -1
	}
	sum := sha256.New()
	var n counter
	if err := digest(ctx, h.fd, req.GetOffset(), length, sum, &n); err != nil {
		return nil, r.wrap("hash", p, err)
	}
	return &sandbusv1.HashResponse{Sha256: sum.Sum(nil), Bytes: int64(n), Info: info(filepath.Base(p.given), &st)}, nil
}

// counter counts the bytes that are written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// mimeBytes is how many bytes at the start tell a file's type: what mimetype looks at.
const mimeBytes = 3072

// Mime answers fs.mime.
func (r *Root) Mime(req *sandbusv1.MimeRequest) (*sandbusv1.MimeResponse, error) {
	p, err := r.placeOf(req)
	if err != nil {
		return nil, err
	}
	h, st, err := r.openRegular(p)
	if err != nil {
		return nil, r.wrap("mime", p, err)
	}
	defer h.close()
	head, err := readAt(h.fd, mimeBytes, 0)
	if err != nil {
		return nil, r.wrap("mime", p, err)
	}
	t := mimetype.Detect(head)
	resp := &sandbusv1.MimeResponse{Type: t.String(), Size: st.Size}
	for ; t != nil && !resp.GetText(); t = t.Parent() { // JSON, HTML and source are kinds of text/plain there
		resp.Text = t.Is("text/plain")
	}
	return resp, nil
}

// The bounds of a batch.
const (
	maxBatch      = 4096
	maxBatchBytes = 16 << 20
)

// Batch answers fs.batch.
func (r *Root) Batch(ctx context.Context, req *sandbusv1.BatchRequest) (*sandbusv1.BatchResponse, error) {
	n := len(req.GetItems())
	if n == 0 || n > maxBatch {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "a batch of %d operations: want 1 to %d", n, maxBatch)
	}
	resp := &sandbusv1.BatchResponse{Results: make([]*sandbusv1.BatchResult, n)}
	size := 0
	for i, item := range req.GetItems() {
		if ctx.Err() != nil {
			return nil, wrap("batch", "", context.Cause(ctx))
		}
		if size >= maxBatchBytes {
			resp.Results[i] = failure(bus.Errorf(sandbusv1.Code_CODE_TOO_LARGE,
				"the answer to the batch has reached %d bytes: ask for operation %d and those behind it in another", maxBatchBytes, i))
			continue
		}
		result := r.one(ctx, item)
		resp.Results[i] = result
		size += proto.Size(result)
	}
	return resp, nil
}

func failure(err error) *sandbusv1.BatchResult {
	return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Failure{Failure: &sandbusv1.Failure{Error: bus.ToWire(err)}}}
}

// one does one operation of a batch.
func (r *Root) one(ctx context.Context, item *sandbusv1.BatchItem) *sandbusv1.BatchResult {
	switch op := item.GetOperation().(type) {
	case *sandbusv1.BatchItem_Stat:
		resp, err := r.Stat(op.Stat)
		if err != nil {
			resp = &sandbusv1.StatResponse{Error: bus.ToWire(err)}
		}
		return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Stat{Stat: resp}}
	case *sandbusv1.BatchItem_Read:
		resp, err := r.readSmall(op.Read)
		if err != nil {
			resp = &sandbusv1.ReadResponse{Error: bus.ToWire(err)}
		}
		return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Read{Read: resp}}
	case *sandbusv1.BatchItem_List:
		resp, err := r.List(op.List)
		if err != nil {
			resp = &sandbusv1.ListResponse{Error: bus.ToWire(err)}
		}
		return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_List{List: resp}}
	case *sandbusv1.BatchItem_Readlink:
		resp, err := r.Readlink(op.Readlink)
		if err != nil {
			resp = &sandbusv1.ReadlinkResponse{Error: bus.ToWire(err)}
		}
		return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Readlink{Readlink: resp}}
	case *sandbusv1.BatchItem_Hash:
		resp, err := r.Hash(ctx, op.Hash)
		if err != nil {
			resp = &sandbusv1.HashResponse{Error: bus.ToWire(err)}
		}
		return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Hash{Hash: resp}}
	case *sandbusv1.BatchItem_Mime:
		resp, err := r.Mime(op.Mime)
		if err != nil {
			resp = &sandbusv1.MimeResponse{Error: bus.ToWire(err)}
		}
		return &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Mime{Mime: resp}}
	}
	return failure(bus.Errorf(sandbusv1.Code_CODE_UNKNOWN_VERB, "this worker does not know the operation in a batch"))
}

// readSmall is read for content that must fit into one message.
func (r *Root) readSmall(m *sandbusv1.ReadRequest) (*sandbusv1.ReadResponse, error) {
	resp, rest, err := r.read(m)
	if err != nil || rest == nowhere {
		return resp, err
	}
	rest.close()
	given := bus.FromText(m.GetPath(), m.GetPathRaw())
	return nil, &bus.Error{
		Code: sandbusv1.Code_CODE_TOO_LARGE, Path: given,
		Message: tooLong("read", given, resp.GetInfo().GetSize(), MaxInline, "read it outside of a batch, or a part of it"),
	}
}

// fileMode is io/fs's form of the bits of chmod(2).
func fileMode(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	if bits&0o4000 != 0 {
		m |= fs.ModeSetuid
	}
	if bits&0o2000 != 0 {
		m |= fs.ModeSetgid
	}
	if bits&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}
