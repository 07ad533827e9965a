package harnesslib

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// inlineWrite is how many bytes of content a write carries in its request; more is streamed. It leaves room for the
// path and the rest of the message in a NATS message of 1 MiB.
const inlineWrite = 512 << 10

// maxReadFile bounds what ReadFile holds in memory, in bytes.
const maxReadFile = 1 << 30

// ReadFile returns the content of a regular file of at most 1 GiB. Relative paths begin at the sandbox's directory.
// Errors: *fs.PathError, and those of the fabric (see the package's doc).
func (s *Sandbox) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var buf bytes.Buffer
	resp, err := s.read(ctx, &sandbusv1.ReadRequest{MaxBytes: maxReadFile}, name, &atMost{&buf, maxReadFile})
	if err != nil {
		return nil, err
	}
	if resp.GetStreamed() {
		return buf.Bytes(), nil
	}
	if data := resp.GetData(); data != nil {
		return data, nil
	}
	return []byte{}, nil
}

// ReadRange returns up to length bytes of a regular file from an offset on, fewer only at its end; length is 1 byte to
// 1 GiB. Errors: as ReadFile.
func (s *Sandbox) ReadRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if length < 1 || length > maxReadFile {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("length %d: want 1 to %d bytes", length, maxReadFile)}
	}
	var buf bytes.Buffer
	resp, err := s.read(ctx, &sandbusv1.ReadRequest{Offset: offset, Length: length}, name, &atMost{&buf, length})
	if err != nil {
		return nil, err
	}
	if resp.GetStreamed() {
		return buf.Bytes(), nil
	}
	if n := int64(len(resp.GetData())); n > length {
		return nil, &fs.PathError{Op: "read", Path: name, Err: &bus.StreamError{Rule: fmt.Sprintf("%d bytes were asked for, %d came", length, n)}}
	}
	return resp.GetData(), nil
}

// atMost takes so many bytes and no more: a sandbox may send more than was asked for.
type atMost struct {
	to   *bytes.Buffer
	left int64
}

func (w *atMost) Write(b []byte) (int, error) {
	if int64(len(b)) > w.left {
		return 0, &bus.StreamError{Rule: fmt.Sprintf("more bytes came than the %d that were asked for", int64(w.to.Len())+w.left)}
	}
	w.left -= int64(len(b))
	return w.to.Write(b)
}

// CopyFrom writes the content of a regular file of the sandbox to w, in constant memory, and checks it against the
// SHA-256 that the sandbox sends behind it. When it fails, w may have got a part. Errors: as ReadFile, and w's.
func (s *Sandbox) CopyFrom(ctx context.Context, name string, w io.Writer) error {
	resp, err := s.read(ctx, &sandbusv1.ReadRequest{}, name, w)
	if err != nil {
		return err
	}
	_, err = w.Write(resp.GetData())
	return err
}

// read reads a file that comes in one message, or writes what is streamed to w.
func (s *Sandbox) read(ctx context.Context, req *sandbusv1.ReadRequest, name string, w io.Writer) (*sandbusv1.ReadResponse, error) {
	req.Path, req.PathRaw = bus.ToText(name)
	var resp *sandbusv1.ReadResponse
	err := s.do(ctx, func(t bus.Target) error {
		resp = &sandbusv1.ReadResponse{}
		op := bus.NewOpID()
		err := s.hub.caller.Fetch(ctx, t, "fs.read", op, req, resp, w)
		s.abandon(ctx, t, op, err)
		return err
	})
	if err != nil {
		return nil, pathError("read", name, err)
	}
	return resp, nil
}

// abandonWindow is how long a call that has failed, or that its caller gave up, waits for the worker to note that. A
// worker that does not finds out by itself, after a minute.
const abandonWindow = 2 * time.Second

// abandon ends an op that failed on our side, so that the worker does not go on sending.
func (s *Sandbox) abandon(ctx context.Context, t bus.Target, op bus.OpID, err error) {
	if err == nil || errors.Is(err, bus.ErrNoResponders) || errors.Is(err, bus.ErrPeerSilent) || errors.Is(err, bus.ErrClosed) {
		return
	}
	if _, said := errors.AsType[*bus.Error](err); said {
		return // the worker's own word: it is over there
	}
	if s.hub.caller.Gone(err) != nil {
		return // there is no way to tell it
	}
	abort, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonWindow)
	defer cancel()
	// What it fails with says no more than err does.
	_ = s.hub.caller.Control(abort, t, op, "abort", &sandbusv1.AbortRequest{Reason: "the harness gave up"}, &sandbusv1.AbortResponse{})
}

// WriteOptions says how to write a file.
type WriteOptions struct {
	// Perm is what a new file gets, less the sandbox's umask; zero means 0666. A file that is replaced keeps its own.
	Perm fs.FileMode
	// Parents makes missing parent directories.
	Parents bool
	// MustNotExist refuses with fs.ErrExist when there is a file already.
	MustNotExist bool
	// ExpectedSHA256 refuses with ErrConflict unless the present content has this SHA-256; nil means no condition.
	ExpectedSHA256 *[sha256.Size]byte
	// Append adds at the end of the file instead of replacing it.
	Append bool
	// NoSync leaves out the sync to the disk: faster, and not safe against a power cut of the sandbox.
	NoSync bool
}

// WriteResult is what a write did.
type WriteResult struct {
	Size    int64             // of the file now
	SHA256  [sha256.Size]byte // of the content that was written
	Created bool              // there was no file before
}

// WriteFile replaces a file's content atomically and syncs it to the disk; a new file gets perm less the sandbox's
// umask. Errors: as ReadFile; ErrLost when the answer did not come.
func (s *Sandbox) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	_, err := s.Write(ctx, name, data, WriteOptions{Perm: perm})
	return err
}

// AppendFile adds data at the end of a file, which it makes when it is missing: all of it, or none.
func (s *Sandbox) AppendFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	_, err := s.Write(ctx, name, data, WriteOptions{Perm: perm, Append: true})
	return err
}

// CopyTo replaces a file's content with what r gives, as WriteFile does, in constant memory. When r fails the file
// stays as it was. For content that can be read again, Upload goes on after a lost connection.
func (s *Sandbox) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	_, err := s.WriteFrom(ctx, name, r, WriteOptions{Perm: perm})
	return err
}

// Write writes data as the options say. Errors: as WriteFile.
func (s *Sandbox) Write(ctx context.Context, name string, data []byte, o WriteOptions) (WriteResult, error) {
	if len(data) > inlineWrite {
		return s.WriteFrom(ctx, name, bytes.NewReader(data), o)
	}
	req := o.request(name)
	req.Data = data
	return s.write(ctx, name, func(t bus.Target, resp *sandbusv1.WriteResponse) error {
		return s.hub.caller.Request(ctx, t, "fs.write", "", req, resp)
	})
}

// WriteFrom is Write of what r gives, in constant memory. Errors: also r's.
func (s *Sandbox) WriteFrom(ctx context.Context, name string, r io.Reader, o WriteOptions) (WriteResult, error) {
	req := o.request(name)
	req.Streamed = true
	sum := sha256.New()
	src := &onceReader{Reader: io.TeeReader(r, sum)}
	res, err := s.write(ctx, name, func(t bus.Target, resp *sandbusv1.WriteResponse) error {
		op := bus.NewOpID()
		req.Meta = &sandbusv1.RequestMeta{Op: string(op)}
		return s.upload(ctx, t, "fs.write", op, req, src, resp)
	})
	if err == nil && res.SHA256 != [sha256.Size]byte(sum.Sum(nil)) {
		err = &fs.PathError{Op: "write", Path: name, Err: fmt.Errorf("the sandbox wrote bytes with SHA-256 %x, sent were %x", res.SHA256, sum.Sum(nil))}
	}
	return res, err
}

// onceReader knows whether something was taken: then a request must not be repeated.
type onceReader struct {
	io.Reader
	used bool
}

func (r *onceReader) Read(b []byte) (int, error) {
	r.used = true
	return r.Reader.Read(b)
}

func (o WriteOptions) request(name string) *sandbusv1.WriteRequest {
	req := &sandbusv1.WriteRequest{
		Mode: uint32(o.Perm.Perm()), Parents: o.Parents, MustNotExist: o.MustNotExist, NoSync: o.NoSync, Append: o.Append,
	}
	if o.ExpectedSHA256 != nil {
		req.ExpectedSha256 = o.ExpectedSHA256[:]
	}
	req.Path, req.PathRaw = bus.ToText(name)
	return req
}

func (s *Sandbox) write(ctx context.Context, name string, request func(bus.Target, *sandbusv1.WriteResponse) error) (WriteResult, error) {
	resp := &sandbusv1.WriteResponse{}
	err := s.do(ctx, func(t bus.Target) error { return request(t, resp) })
	res := WriteResult{Size: resp.GetSize(), Created: resp.GetCreated()}
	copy(res.SHA256[:], resp.GetSha256())
	return res, pathError("write", name, err)
}

// upload sends what src gives as the input of a request, and waits for its answer.
func (s *Sandbox) upload(ctx context.Context, t bus.Target, verb string, op bus.OpID, req proto.Message, src *onceReader, resp answer) error {
	if src.used {
		return fmt.Errorf("%w: the sandbox's worker was replaced", ErrLost)
	}
	st, err := s.hub.caller.Open(ctx, t, verb, op, req, 0, true)
	if err != nil {
		return err
	}
	defer st.Close()
	buf := make([]byte, sendBuffer)
	for {
		n, err := io.ReadFull(src, buf)
		if n > 0 {
			if serr := st.Send(ctx, buf[:n]); serr != nil {
				if errors.Is(serr, bus.ErrClosed) {
					break // it has answered already
				}
				s.abandon(ctx, t, op, serr)
				return serr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if err := st.CloseSend(ctx); err != nil && !errors.Is(err, bus.ErrClosed) {
				s.abandon(ctx, t, op, err)
				return err
			}
			break
		}
		if err != nil {
			abort, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWindow)
			defer cancel()
			_, aerr := st.Abort(abort, "the source failed")
			return errors.Join(err, aerr)
		}
	}
	err = st.Answer(ctx, resp)
	s.abandon(ctx, t, op, err)
	return err
}

// sendBuffer is how many bytes are read from a source at once.
const sendBuffer = 128 << 10

// answer is a message that has its error in field 1.
type answer interface {
	proto.Message
	GetError() *sandbusv1.Error
}

// Stat describes what a path leads to. The FileInfo's Sys is a *[FileStat].
func (s *Sandbox) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return s.stat(ctx, "stat", name, false)
}

// Lstat is Stat that describes a symbolic link itself.
func (s *Sandbox) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return s.stat(ctx, "lstat", name, true)
}

func (s *Sandbox) stat(ctx context.Context, op, name string, noFollow bool) (fs.FileInfo, error) {
	req := &sandbusv1.StatRequest{NoFollow: noFollow}
	req.Path, req.PathRaw = bus.ToText(name)
	resp := &sandbusv1.StatResponse{}
	err := s.do(ctx, func(t bus.Target) error { return s.hub.caller.Request(ctx, t, "fs.stat", "", req, resp) })
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return newFileInfo(resp.GetInfo()), nil
}

// maxReadDir bounds what ReadDir holds in memory.
const maxReadDir = 1_000_000

// ReadDir returns a directory's entries, sorted by name; symbolic links are described themselves. It asks as often as
// the directory is long, and refuses one of more than a million entries, for which there is Entries.
func (s *Sandbox) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	out := []fs.DirEntry{}
	for e, err := range s.Entries(ctx, name) {
		if err != nil {
			return nil, err
		}
		if len(out) == maxReadDir {
			return nil, &fs.PathError{Op: "readdir", Path: name, Err: fmt.Errorf("%w: more than %d entries, take them one by one", ErrTooLarge, maxReadDir)}
		}
		out = append(out, e)
	}
	return out, nil
}

// Entries yields a directory's entries in the order of their names, holding one page of them in memory. Entries that
// come or go meanwhile may be missing. An error is the last pair. Errors: as ReadFile.
func (s *Sandbox) Entries(ctx context.Context, name string) iter.Seq2[fs.DirEntry, error] {
	return func(yield func(fs.DirEntry, error) bool) {
		req := &sandbusv1.ListRequest{}
		req.Path, req.PathRaw = bus.ToText(name)
		last := ""
		for {
			resp := &sandbusv1.ListResponse{}
			err := s.do(ctx, func(t bus.Target) error { return s.hub.caller.Request(ctx, t, "fs.list", "", req, resp) })
			if err != nil {
				yield(nil, pathError("readdir", name, err))
				return
			}
			entries, err := dirEntries(resp.GetEntries(), last)
			if err != nil {
				yield(nil, &fs.PathError{Op: "readdir", Path: name, Err: err})
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if !resp.GetMore() {
				return
			}
			next := bus.FromText(resp.GetNext(), resp.GetNextRaw())
			if next == "" && len(entries) > 0 { // a worker from before next
				next = entries[len(entries)-1].Name()
			}
			if next <= last {
				yield(nil, &fs.PathError{Op: "readdir", Path: name, Err: fmt.Errorf("the sandbox's list goes on at %q behind %q", next, last)})
				return
			}
			last = next
			req.After, req.AfterRaw = bus.ToText(next)
		}
	}
}

// dirEntries checks a page of a directory: names that can be joined to a path, in order and behind one.
func dirEntries(infos []*sandbusv1.FileInfo, after string) ([]fs.DirEntry, error) {
	out := make([]fs.DirEntry, len(infos))
	block := make([]fileInfo, len(infos)) // one allocation for all
	for i, e := range infos {
		name := bus.FromText(e.GetName(), e.GetNameRaw())
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return nil, fmt.Errorf("the sandbox sent an entry named %q", name)
		}
		if name <= after {
			return nil, fmt.Errorf("the sandbox sent the entry %q behind %q", name, after)
		}
		after = name
		block[i].set(name, e)
		out[i] = fs.FileInfoToDirEntry(&block[i])
	}
	return out, nil
}

// Mkdir makes a directory, with perm less the sandbox's umask.
func (s *Sandbox) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return s.mkdir(ctx, name, perm, false)
}

// MkdirAll makes a directory and its missing parents, and is content with one that is there.
func (s *Sandbox) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return s.mkdir(ctx, name, perm, true)
}

func (s *Sandbox) mkdir(ctx context.Context, name string, perm fs.FileMode, parents bool) error {
	req := &sandbusv1.MkdirRequest{Mode: uint32(perm.Perm()), Parents: parents}
	req.Path, req.PathRaw = bus.ToText(name)
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "fs.mkdir", "", req, &sandbusv1.MkdirResponse{})
	})
	return pathError("mkdir", name, err)
}

// Remove removes a file, a link itself, or an empty directory.
func (s *Sandbox) Remove(ctx context.Context, name string) error {
	return s.remove(ctx, name, false)
}

// RemoveAll removes a path and all below it; it is content when there is nothing.
func (s *Sandbox) RemoveAll(ctx context.Context, name string) error {
	return s.remove(ctx, name, true)
}

func (s *Sandbox) remove(ctx context.Context, name string, recursive bool) error {
	req := &sandbusv1.RemoveRequest{Recursive: recursive}
	req.Path, req.PathRaw = bus.ToText(name)
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "fs.remove", "", req, &sandbusv1.RemoveResponse{})
	})
	return pathError("remove", name, err)
}

// FileStat is what a FileInfo's Sys tells beyond io/fs.
type FileStat struct {
	UID, GID   uint32
	Links      uint64
	Inode      uint64
	Device     uint64
	LinkTarget string // the text of a symbolic link; empty for all else
}

type fileInfo struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
	sys   FileStat
}

func newFileInfo(f *sandbusv1.FileInfo) *fileInfo {
	fi := &fileInfo{}
	fi.set(path.Base(bus.FromText(f.GetName(), f.GetNameRaw())), f)
	return fi
}

func (f *fileInfo) set(name string, w *sandbusv1.FileInfo) {
	f.name, f.size, f.mode, f.mtime = name, w.GetSize(), fileMode(w.GetType(), w.GetMode()), time.Unix(0, w.GetMtimeNs())
	f.sys = FileStat{
		UID: w.GetUid(), GID: w.GetGid(), Links: w.GetNlink(), Inode: w.GetInode(), Device: w.GetDevice(),
		LinkTarget: bus.FromText(w.GetLinkTarget(), w.GetLinkTargetRaw()),
	}
}

func (f *fileInfo) Name() string       { return f.name }
func (f *fileInfo) Size() int64        { return f.size }
func (f *fileInfo) Mode() fs.FileMode  { return f.mode }
func (f *fileInfo) ModTime() time.Time { return f.mtime }
func (f *fileInfo) IsDir() bool        { return f.mode.IsDir() }
func (f *fileInfo) Sys() any           { return &f.sys }
func (f *fileInfo) String() string     { return fs.FormatFileInfo(f) }

// fileMode is io/fs's form of a type and the bits of chmod(2).
func fileMode(t sandbusv1.FileType, bits uint32) fs.FileMode {
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
	switch t {
	case sandbusv1.FileType_FILE_TYPE_REGULAR:
	case sandbusv1.FileType_FILE_TYPE_DIRECTORY:
		m |= fs.ModeDir
	case sandbusv1.FileType_FILE_TYPE_SYMLINK:
		m |= fs.ModeSymlink
	case sandbusv1.FileType_FILE_TYPE_FIFO:
		m |= fs.ModeNamedPipe
	case sandbusv1.FileType_FILE_TYPE_SOCKET:
		m |= fs.ModeSocket
	case sandbusv1.FileType_FILE_TYPE_CHAR_DEVICE:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case sandbusv1.FileType_FILE_TYPE_BLOCK_DEVICE:
		m |= fs.ModeDevice
	default:
		m |= fs.ModeIrregular
	}
	return m
}
