package harnesslib

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// transferPatience is how long a transfer that makes no progress is tried again.
	transferPatience = 2 * time.Minute
	transferPause    = 250 * time.Millisecond // before the first new try; it doubles up to
	transferMaxPause = 5 * time.Second
)

// UploadOptions says how to upload.
type UploadOptions struct {
	// ID names the content for all attempts to send it, one token [a-z0-9][a-z0-9_-]{0,62}: with the same ID an upload
	// goes on where another call, or another process, was cut off. Empty means one for this call.
	ID string
	// Perm is what a new file gets, less the sandbox's umask; zero means 0666. A file that is replaced keeps its own.
	Perm fs.FileMode
	// ModTime is the modification time to set; zero means now.
	ModTime time.Time
	// Parents makes missing parent directories.
	Parents bool
	// NoSync leaves out the sync to the disk.
	NoSync bool
	// Progress is told how many bytes are in the sandbox; nil means nobody.
	Progress func(done, total int64)
}

// Upload replaces a file's content with size bytes of src, in constant memory. A lost connection or a worker that is
// replaced does not end it: it goes on where it was cut off, for as long as there is progress at least every two
// minutes. The sandbox's SHA-256 of the whole is compared with ours before it counts as done. Errors: as WriteFile;
// src's; when it fails, what has arrived stays in the sandbox beside the file, for another Upload with the same ID.
func (s *Sandbox) Upload(ctx context.Context, name string, src io.ReaderAt, size int64, o UploadOptions) error {
	if o.ID == "" {
		o.ID = string(bus.NewOpID())
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	u := &uploader{sb: s, name: name, src: src, size: size, o: o}
	return s.persevere(ctx, "upload", name, func() (int64, error) { return u.attempt(ctx) })
}

// persevere repeats attempts that end with a loss. An attempt says how far it came.
func (s *Sandbox) persevere(ctx context.Context, op, name string, attempt func() (int64, error)) error {
	var best int64
	pause, since := transferPause, time.Now()
	for {
		at, err := attempt()
		if err == nil || ctx.Err() != nil || !transient(err) {
			return pathError(op, name, err)
		}
		if best == 0 && at == 0 && errors.Is(err, ErrUnknownSandbox) {
			return err // it has not gone: it was never there
		}
		if at > best {
			best, pause, since = at, transferPause, time.Now()
		} else if time.Since(since) > transferPatience {
			return pathError(op, name, err)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
		pause = min(2*pause, transferMaxPause)
	}
}

// transient says whether the fabric failed in a way that may pass.
func transient(err error) bool {
	for _, e := range []error{bus.ErrPeerSilent, bus.ErrPublish, ErrUnreachable, ErrUnknownSandbox, ErrLost, errCut} {
		if errors.Is(err, e) {
			return true
		}
	}
	if _, ok := errors.AsType[*bus.StreamError](err); ok {
		return true
	}
	be, ok := errors.AsType[*bus.Error](err)
	return ok && (be.Code == sandbusv1.Code_CODE_DRAINING || be.Code == sandbusv1.Code_CODE_BUSY)
}

// errCut says that a transfer ended before its end, and nobody said why.
var errCut = errors.New("the transfer was cut off")

// uploader is one upload.
type uploader struct {
	sb      *Sandbox
	name    string
	src     io.ReaderAt
	size    int64
	o       UploadOptions
	restart bool
}

// attempt sends what is missing. at is how far it came.
func (u *uploader) attempt(ctx context.Context) (at int64, err error) {
	req := &sandbusv1.UploadRequest{
		Id: u.o.ID, Size: u.size, Mode: uint32(u.o.Perm.Perm()), Parents: u.o.Parents, NoSync: u.o.NoSync, Restart: u.restart,
	}
	if !u.o.ModTime.IsZero() {
		req.MtimeNs = u.o.ModTime.UnixNano()
	}
	req.Path, req.PathRaw = bus.ToText(u.name)
	err = u.sb.do(ctx, func(t bus.Target) error {
		op := bus.NewOpID()
		req.Meta = &sandbusv1.RequestMeta{Op: string(op)}
		st, err := u.sb.hub.caller.Open(ctx, t, "fs.upload", op, req, 0, true)
		if err != nil {
			return err
		}
		defer st.Close()
		at, err = u.send(ctx, st)
		u.sb.abandon(ctx, t, op, err)
		return err
	})
	return at, err
}

// send follows one stream to its end.
func (u *uploader) send(ctx context.Context, st *bus.Stream) (at int64, err error) {
	f, err := st.Next(ctx)
	if err != nil {
		return 0, err
	}
	var started sandbusv1.UploadStarted
	if f.Kind != bus.FrameStarted || proto.Unmarshal(f.Body, &started) != nil || started.GetOffset() < 0 || started.GetOffset() > u.size {
		return 0, fmt.Errorf("the sandbox answered the upload of %d bytes with offset %d", u.size, started.GetOffset())
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(u.src, 0, started.GetOffset())); err != nil {
		return 0, err
	}
	if !bytes.Equal(sum.Sum(nil), started.GetSha256()) {
		if u.restart {
			return 0, errors.New("the sandbox keeps other bytes than were sent")
		}
		u.restart = true // the ID was used for other content
		return 0, errCut
	}
	u.restart = false
	// The end frame, or the error that takes its place, ends the sending too.
	sending, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, 1)
	var end sandbusv1.StreamEnd
	go func() {
		err := takeEnd(ctx, st, &end)
		ended <- err
		if err != nil {
			stop(err)
		}
	}()
	at, serr := u.sendFrom(sending, st, started.GetOffset(), sum)
	if serr != nil && !errors.Is(serr, bus.ErrClosed) && sending.Err() == nil {
		st.Close() // so that takeEnd returns
		return at, errors.Join(serr, ignoreClosed(<-ended))
	}
	if err := <-ended; err != nil {
		return at, err
	}
	if serr != nil && !errors.Is(serr, bus.ErrEnded) { // its end may come before the ack of ours: the sums tell
		return at, serr
	}
	if !bytes.Equal(end.GetSha256(), sum.Sum(nil)) {
		return at, fmt.Errorf("the sandbox wrote bytes with SHA-256 %x, sent were %x", end.GetSha256(), sum.Sum(nil))
	}
	return at, nil
}

// ignoreClosed drops the error of a stream that we closed.
func ignoreClosed(err error) error {
	if errors.Is(err, bus.ErrClosed) {
		return nil
	}
	return err
}

// takeEnd waits for the end frame of a stream that has no other.
func takeEnd(ctx context.Context, st *bus.Stream, end *sandbusv1.StreamEnd) error {
	f, err := st.Next(ctx)
	if err != nil {
		return err
	}
	if f.Kind != bus.FrameEnd || proto.Unmarshal(f.Body, end) != nil {
		return &bus.StreamError{Rule: fmt.Sprintf("a frame of kind %d came where the end was expected", f.Kind)}
	}
	return bus.FromWire(end.GetError())
}

// sendFrom sends the content from an offset to its end.
func (u *uploader) sendFrom(ctx context.Context, st *bus.Stream, at int64, sum hash.Hash) (int64, error) {
	u.o.Progress(at, u.size)
	buf := make([]byte, sendBuffer)
	for at < u.size {
		n, err := u.src.ReadAt(buf[:min(int64(len(buf)), u.size-at)], at)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				err = fmt.Errorf("the source ends at %d, its size is %d: %w", at, u.size, io.ErrUnexpectedEOF)
			}
			return at, err
		}
		if err := st.Send(ctx, buf[:n]); err != nil {
			return at, err
		}
		sum.Write(buf[:n])
		at += int64(n)
		u.o.Progress(at, u.size)
	}
	return at, st.CloseSend(ctx)
}

// DownloadOptions says how to download.
type DownloadOptions struct {
	// Progress is told how many bytes are here; nil means nobody.
	Progress func(done, total int64)
}

// Download fills an open local file with a regular file of the sandbox, in constant memory. What the local file holds
// already counts as its beginning when the SHA-256 says so, else it is dropped: so a download goes on where another
// was cut off. As Upload, it survives a lost connection, and compares the SHA-256 of the whole. A file that changes
// while it is downloaded is an error (ErrConflict). Errors: as ReadFile; the local file's.
func (s *Sandbox) Download(ctx context.Context, name string, to *os.File, o DownloadOptions) error {
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	d := &downloader{sb: s, name: name, to: to, o: o}
	return s.persevere(ctx, "download", name, func() (int64, error) { return d.attempt(ctx) })
}

// downloader is one download.
type downloader struct {
	sb   *Sandbox
	name string
	to   *os.File
	o    DownloadOptions

	first fs.FileInfo // the file as it was at the beginning
	at    int64
	sum   hash.Hash // of what is in to
}

func (d *downloader) attempt(ctx context.Context) (int64, error) {
	info, err := d.sb.Stat(ctx, d.name)
	if err != nil {
		return d.at, err
	}
	if d.first == nil {
		if err := d.begin(ctx, info); err != nil {
			return 0, err
		}
	}
	if !d.same(info) {
		return d.at, d.changed()
	}
	whole := d.at == 0
	if d.at < info.Size() || info.Size() == 0 {
		resp, err := d.sb.read(ctx, &sandbusv1.ReadRequest{Offset: d.at}, d.name, d)
		if err == nil {
			_, err = d.Write(resp.GetData())
		}
		if err != nil {
			return d.at, err
		}
	}
	if whole { // the stream was compared with its own SHA-256: what is left to ask is whether the file stood still
		after, err := d.sb.Stat(ctx, d.name)
		if err == nil && !d.same(after) {
			err = d.changed()
		}
		return d.at, err
	}
	// Each piece is what the sandbox read. That they are of one file, its present state says.
	after, err := d.sb.one(ctx, HashOp(d.name, 0, d.at))
	if err != nil {
		return d.at, err
	}
	if !d.same(after.Info) || !bytes.Equal(after.SHA256[:], d.sum.Sum(nil)) {
		return d.at, d.changed()
	}
	return d.at, nil
}

func (d *downloader) same(info fs.FileInfo) bool {
	return info.Size() == d.first.Size() && info.ModTime().Equal(d.first.ModTime())
}

func (d *downloader) changed() error {
	return fmt.Errorf("%w: the file was changed while it was downloaded", ErrConflict)
}

// begin sees what the local file holds already.
func (d *downloader) begin(ctx context.Context, info fs.FileInfo) error {
	have, err := d.to.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	d.sum = sha256.New()
	if have > 0 && have <= info.Size() {
		if _, err := io.Copy(d.sum, io.NewSectionReader(d.to, 0, have)); err != nil {
			return err
		}
		theirs, err := d.sb.HashRange(ctx, d.name, 0, have)
		if err != nil {
			return err
		}
		if !bytes.Equal(theirs[:], d.sum.Sum(nil)) {
			have = 0
		}
	} else {
		have = 0
	}
	if have == 0 {
		d.sum.Reset()
	}
	if err := d.to.Truncate(have); err != nil {
		return err
	}
	if _, err := d.to.Seek(have, io.SeekStart); err != nil {
		return err
	}
	d.at, d.first = have, info
	return nil
}

// Write takes what arrives.
func (d *downloader) Write(b []byte) (int, error) {
	n, err := d.to.Write(b)
	d.sum.Write(b[:n])
	d.at += int64(n)
	d.o.Progress(d.at, max(d.at, d.first.Size()))
	return n, err
}
