package harnesslib

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// inlineWrite is how many bytes of content a write carries in its request; more is streamed. It leaves room for the
// path and the rest of the message in a NATS message of 1 MiB.
const inlineWrite = 512 << 10

// ReadFile returns the content of a regular file. Relative paths begin at the sandbox's directory. Errors:
// *fs.PathError, and those of the fabric (see the package's doc).
func (s *Sandbox) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var buf bytes.Buffer
	data, err := s.read(ctx, name, &buf)
	if err != nil {
		return nil, err
	}
	if data != nil {
		return data, nil
	}
	return buf.Bytes(), nil
}

// CopyFrom writes the content of a regular file of the sandbox to w, in constant memory, and checks it against the
// SHA-256 that the sandbox sends behind it. When it fails, w may have got a part. Errors: as ReadFile, and w's.
func (s *Sandbox) CopyFrom(ctx context.Context, name string, w io.Writer) error {
	data, err := s.read(ctx, name, w)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// read returns a file that came in one message, or writes it to w and returns nil.
func (s *Sandbox) read(ctx context.Context, name string, w io.Writer) ([]byte, error) {
	req := &sandbusv1.ReadRequest{}
	req.Path, req.PathRaw = bus.ToText(name)
	var resp *sandbusv1.ReadResponse
	err := s.do(ctx, func(t bus.Target) error {
		resp = &sandbusv1.ReadResponse{}
		return s.hub.caller.Fetch(ctx, t, "fs.read", "", req, resp, w)
	})
	if err != nil {
		return nil, pathError("read", name, err)
	}
	if !resp.GetStreamed() && resp.GetData() == nil {
		return []byte{}, nil
	}
	return resp.GetData(), nil
}

// WriteFile replaces a file's content atomically and syncs it to the disk; a new file gets perm less the sandbox's
// umask. Errors: as ReadFile; ErrLost when the answer did not come.
func (s *Sandbox) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return s.write(ctx, name, perm, func(req *sandbusv1.WriteRequest) (io.Reader, error) {
		if len(data) <= inlineWrite {
			req.Data = data
			return nil, nil //nolint:nilnil // nothing to stream
		}
		return bytes.NewReader(data), nil
	})
}

// CopyTo replaces a file's content with what r gives, as WriteFile does, in constant memory. When r fails the file
// stays as it was.
func (s *Sandbox) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return s.write(ctx, name, perm, func(*sandbusv1.WriteRequest) (io.Reader, error) { return r, nil })
}

func (s *Sandbox) write(ctx context.Context, name string, perm fs.FileMode, content func(*sandbusv1.WriteRequest) (io.Reader, error)) error {
	req := &sandbusv1.WriteRequest{Mode: uint32(perm.Perm())}
	req.Path, req.PathRaw = bus.ToText(name)
	r, err := content(req)
	if err != nil {
		return err
	}
	req.Streamed = r != nil
	resp := &sandbusv1.WriteResponse{}
	err = s.do(ctx, func(t bus.Target) error {
		if r == nil {
			return s.hub.caller.Request(ctx, t, "fs.write", "", req, resp)
		}
		return s.upload(ctx, t, req, r, resp)
	})
	return pathError("write", name, err)
}

func (s *Sandbox) upload(ctx context.Context, t bus.Target, req *sandbusv1.WriteRequest, r io.Reader, resp *sandbusv1.WriteResponse) error {
	op := bus.NewOpID()
	req.Meta = &sandbusv1.RequestMeta{Op: string(op)}
	st, err := s.hub.caller.Open(ctx, t, "fs.write", op, req, 0, true)
	if err != nil {
		return err
	}
	defer st.Close()
	buf := make([]byte, bus.ChunkBytes)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if serr := st.Send(ctx, buf[:n]); serr != nil {
				if errors.Is(serr, bus.ErrClosed) {
					break // it has answered already
				}
				return serr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if err := st.CloseSend(ctx); err != nil && !errors.Is(err, bus.ErrClosed) {
				return err
			}
			break
		}
		if err != nil {
			abort, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWindow)
			defer cancel()
			return errors.Join(err, st.Abort(abort, "the source failed"))
		}
	}
	return st.Answer(ctx, resp)
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

// ReadDir returns a directory's entries, sorted by name; symbolic links are described themselves. It asks as often as
// the directory is long.
func (s *Sandbox) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	req := &sandbusv1.ListRequest{}
	req.Path, req.PathRaw = bus.ToText(name)
	var out []fs.DirEntry
	for {
		resp := &sandbusv1.ListResponse{}
		err := s.do(ctx, func(t bus.Target) error { return s.hub.caller.Request(ctx, t, "fs.list", "", req, resp) })
		if err != nil {
			return nil, pathError("readdir", name, err)
		}
		last := ""
		for _, e := range resp.GetEntries() {
			fi := newFileInfo(e)
			if fi.name == "" || fi.name == "." || fi.name == ".." || bytes.ContainsAny([]byte(fi.name), "/\x00") {
				return nil, &fs.PathError{Op: "readdir", Path: name, Err: fmt.Errorf("the sandbox sent an entry named %q", fi.name)}
			}
			last = fi.name
			out = append(out, fs.FileInfoToDirEntry(fi))
		}
		if !resp.GetMore() || last == "" {
			return out, nil
		}
		req.After, req.AfterRaw = bus.ToText(last)
	}
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
	return &fileInfo{
		name: path.Base(bus.FromText(f.GetName(), f.GetNameRaw())), size: f.GetSize(), mode: fileMode(f.GetType(), f.GetMode()),
		mtime: time.Unix(0, f.GetMtimeNs()),
		sys: FileStat{
			UID: f.GetUid(), GID: f.GetGid(), Links: f.GetNlink(), Inode: f.GetInode(), Device: f.GetDevice(),
			LinkTarget: bus.FromText(f.GetLinkTarget(), f.GetLinkTargetRaw()),
		},
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
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			m |= flag
		}
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
