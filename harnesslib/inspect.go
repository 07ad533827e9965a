package harnesslib

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// ReadLink returns the text of a symbolic link. Errors: as ReadFile.
func (s *Sandbox) ReadLink(ctx context.Context, name string) (string, error) {
	r, err := s.one(ctx, ReadLinkOp(name))
	return r.Text, err
}

// Hash returns the SHA-256 of a regular file, computed in the sandbox. Errors: as ReadFile.
func (s *Sandbox) Hash(ctx context.Context, name string) ([sha256.Size]byte, error) {
	return s.HashRange(ctx, name, 0, 0)
}

// HashRange is Hash of the bytes from an offset on; a length of zero means up to the end.
func (s *Sandbox) HashRange(ctx context.Context, name string, offset, length int64) ([sha256.Size]byte, error) {
	r, err := s.one(ctx, HashOp(name, offset, length))
	return r.SHA256, err
}

// MIMEType tells by its first bytes what a regular file holds, such as "image/png"; text says that it is text. Errors:
// as ReadFile.
func (s *Sandbox) MIMEType(ctx context.Context, name string) (mime string, text bool, err error) {
	r, err := s.one(ctx, MIMEOp(name))
	return r.Text, r.IsText, err
}

func (s *Sandbox) one(ctx context.Context, op BatchOp) (BatchResult, error) {
	results, err := s.Batch(ctx, op)
	if err != nil {
		return BatchResult{}, err
	}
	return results[0], results[0].Err
}

// BatchOp is one operation of a batch. StatOp and its siblings make it.
type BatchOp struct {
	verb, name string
	item       *sandbusv1.BatchItem
}

// BatchResult is what one operation of a batch gave: Err, or the fields that its constructor names.
type BatchResult struct {
	Err     error // as the method of that name returns it
	Info    fs.FileInfo
	Data    []byte
	Entries []fs.DirEntry
	More    bool // there are entries behind the last one
	Text    string
	IsText  bool
	SHA256  [sha256.Size]byte
}

// StatOp describes what a path leads to, in Info.
func StatOp(name string) BatchOp { return statOp("stat", name, false) }

// LstatOp is StatOp that describes a symbolic link itself.
func LstatOp(name string) BatchOp { return statOp("lstat", name, true) }

func statOp(verb, name string, noFollow bool) BatchOp {
	req := &sandbusv1.StatRequest{NoFollow: noFollow}
	req.Path, req.PathRaw = bus.ToText(name)
	return BatchOp{verb, name, &sandbusv1.BatchItem{Operation: &sandbusv1.BatchItem_Stat{Stat: req}}}
}

// ReadOp reads up to length bytes from an offset on into Data; a length of zero means up to the end. Over 256 KiB is
// ErrTooLarge.
func ReadOp(name string, offset, length int64) BatchOp {
	req := &sandbusv1.ReadRequest{Offset: offset, Length: length}
	req.Path, req.PathRaw = bus.ToText(name)
	return BatchOp{"read", name, &sandbusv1.BatchItem{Operation: &sandbusv1.BatchItem_Read{Read: req}}}
}

// ListOp reads a directory into Entries, at most limit of them (zero means 10,000), and says in More whether that was
// all.
func ListOp(name string, limit int) BatchOp {
	req := &sandbusv1.ListRequest{Limit: int32(max(-1, min(limit, 1<<30)))}
	req.Path, req.PathRaw = bus.ToText(name)
	return BatchOp{"readdir", name, &sandbusv1.BatchItem{Operation: &sandbusv1.BatchItem_List{List: req}}}
}

// ReadLinkOp reads a link into Text.
func ReadLinkOp(name string) BatchOp {
	req := &sandbusv1.ReadlinkRequest{}
	req.Path, req.PathRaw = bus.ToText(name)
	return BatchOp{"readlink", name, &sandbusv1.BatchItem{Operation: &sandbusv1.BatchItem_Readlink{Readlink: req}}}
}

// HashOp digests a range of a file into SHA256, and describes the file in Info.
func HashOp(name string, offset, length int64) BatchOp {
	req := &sandbusv1.HashRequest{Offset: offset, Length: length}
	req.Path, req.PathRaw = bus.ToText(name)
	return BatchOp{"hash", name, &sandbusv1.BatchItem{Operation: &sandbusv1.BatchItem_Hash{Hash: req}}}
}

// MIMEOp tells a file's media type in Text, and in IsText whether it is text.
func MIMEOp(name string) BatchOp {
	req := &sandbusv1.MimeRequest{}
	req.Path, req.PathRaw = bus.ToText(name)
	return BatchOp{"mime", name, &sandbusv1.BatchItem{Operation: &sandbusv1.BatchItem_Mime{Mime: req}}}
}

// Batch does 1 to 4,096 operations in one request; results has one element for each, in their order. The results
// behind the one with which the answer reaches 16 MiB are ErrTooLarge. Errors: those of the fabric; the operations' own
// are in the results.
func (s *Sandbox) Batch(ctx context.Context, ops ...BatchOp) ([]BatchResult, error) {
	req := &sandbusv1.BatchRequest{Items: make([]*sandbusv1.BatchItem, len(ops))}
	for i, op := range ops {
		req.Items[i] = op.item
	}
	resp := &sandbusv1.BatchResponse{}
	err := s.do(ctx, func(t bus.Target) error {
		op := bus.NewOpID()
		err := s.hub.caller.Request(ctx, t, "fs.batch", op, req, resp)
		s.abandon(ctx, t, op, err)
		return err
	})
	if err != nil {
		return nil, pathError("batch", "", err)
	}
	if len(resp.GetResults()) != len(ops) {
		return nil, fmt.Errorf("sandbox %s: %d results for a batch of %d operations", s.id, len(resp.GetResults()), len(ops))
	}
	results := make([]BatchResult, len(ops))
	for i, op := range ops {
		results[i] = batchResult(op, resp.GetResults()[i])
	}
	return results, nil
}

// batchResult reads one result, which must be of the operation's kind.
func batchResult(op BatchOp, r *sandbusv1.BatchResult) (out BatchResult) {
	var said *sandbusv1.Error
	ok := false
	switch w := r.GetResult().(type) {
	case *sandbusv1.BatchResult_Stat:
		ok, said = op.item.GetStat() != nil, w.Stat.GetError()
		out.Info = newFileInfo(w.Stat.GetInfo())
	case *sandbusv1.BatchResult_Read:
		ok, said = op.item.GetRead() != nil, w.Read.GetError()
		out.Info, out.Data = newFileInfo(w.Read.GetInfo()), w.Read.GetData()
	case *sandbusv1.BatchResult_List:
		ok, said = op.item.GetList() != nil, w.List.GetError()
		out.Entries, out.Err = dirEntries(w.List.GetEntries(), "")
		out.More = w.List.GetMore()
	case *sandbusv1.BatchResult_Readlink:
		ok, said = op.item.GetReadlink() != nil, w.Readlink.GetError()
		out.Text = bus.FromText(w.Readlink.GetTarget(), w.Readlink.GetTargetRaw())
	case *sandbusv1.BatchResult_Hash:
		ok, said = op.item.GetHash() != nil && len(w.Hash.GetSha256()) == sha256.Size || w.Hash.GetError() != nil, w.Hash.GetError()
		out.Info = newFileInfo(w.Hash.GetInfo())
		copy(out.SHA256[:], w.Hash.GetSha256())
	case *sandbusv1.BatchResult_Mime:
		ok, said = op.item.GetMime() != nil, w.Mime.GetError()
		out.Text, out.IsText = w.Mime.GetType(), w.Mime.GetText()
	case *sandbusv1.BatchResult_Failure:
		ok, said = w.Failure.GetError() != nil, w.Failure.GetError()
	}
	switch {
	case !ok:
		return BatchResult{Err: &fs.PathError{Op: op.verb, Path: op.name, Err: fmt.Errorf("the sandbox sent a result of another kind")}}
	case said != nil:
		return BatchResult{Err: pathError(op.verb, op.name, bus.FromWire(said))}
	case out.Err != nil:
		return BatchResult{Err: &fs.PathError{Op: op.verb, Path: op.name, Err: out.Err}}
	}
	return out
}
