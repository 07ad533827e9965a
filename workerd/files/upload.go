package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// uploads are the uploads under way, by what they are kept in. A new attempt takes over from an old one, whose caller
// has lost its connection and cannot say so.
type uploads struct {
	mu  sync.Mutex // guards the field below
	run map[lockKey]*uploading
}

type uploading struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

var errTakenOver = errors.New("another attempt has taken the upload over")

// begin ends the attempt that is under way, and makes this one it.
func (u *uploads) begin(ctx context.Context, key lockKey) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	run := &uploading{cancel, make(chan struct{})}
	for {
		u.mu.Lock()
		if u.run == nil {
			u.run = map[lockKey]*uploading{}
		}
		other := u.run[key]
		if other == nil {
			u.run[key] = run
			u.mu.Unlock()
			return ctx, func() {
				u.mu.Lock()
				delete(u.run, key)
				u.mu.Unlock()
				cancel(nil)
				close(run.done)
			}
		}
		u.mu.Unlock()
		other.cancel(errTakenOver)
		<-other.done
	}
}

// Upload serves fs.upload.
func (r *Root) Upload(req *bus.Request) {
	var m sandbusv1.UploadRequest
	ctx, err := req.Decode(&m)
	if err != nil {
		req.Fail(err)
		return
	}
	p, err := r.changing("upload", &m)
	if err == nil {
		err = checkUpload(&m)
	}
	if err != nil {
		req.Fail(err)
		return
	}
	sum, err := r.upload(ctx, req, p, &m)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), bus.ErrAborted) {
			err = bus.Errorf(sandbusv1.Code_CODE_DRAINING, "upload %s: %v; it can be resumed", printable(p.given), context.Cause(ctx))
		}
		req.Fail(r.wrap("upload", p, err))
		return
	}
	out, err := req.Outgoing(0)
	if err != nil {
		req.Fail(err)
		return
	}
	req.EndStream(out, &sandbusv1.StreamEnd{Sha256: sum})
}

func checkUpload(m *sandbusv1.UploadRequest) error {
	if _, err := bus.ParseOpID(m.GetId()); err != nil { // the same alphabet
		return bus.Errorf(sandbusv1.Code_CODE_INVALID, "upload id %.80q: want one token ([a-z0-9][a-z0-9_-]{0,62})", m.GetId())
	}
	if m.GetSize() < 0 {
		return bus.Errorf(sandbusv1.Code_CODE_INVALID, "size %d: want 0 or more bytes", m.GetSize())
	}
	return checkMode(m.GetMode())
}

// upload receives the content and puts it in place. What has arrived stays when it fails, for the next attempt.
func (r *Root) upload(ctx context.Context, req *bus.Request, p place, m *sandbusv1.UploadRequest) ([]byte, error) {
	t, err := r.targetMakingParents(p, m.GetParents())
	if err != nil {
		return nil, err
	}
	defer t.close()
	if err := t.regular(); err != nil {
		return nil, err
	}
	s := &staged{target: t, name: stagePrefix + "upload-" + m.GetId(), fd: -1}
	key, err := (&target{dir: t.dir, name: s.name}).key()
	if err != nil {
		return nil, err
	}
	ctx, end := r.uploads.begin(ctx, key)
	defer end()
	flags := unix.O_CREAT | unix.O_NONBLOCK
	if m.GetRestart() {
		flags |= unix.O_TRUNC
	}
	if err := s.openFile(flags, newMode(m.GetMode())); err != nil {
		return nil, err
	}
	defer s.close()
	sum := sha256.New()
	have, err := s.resume(ctx, m.GetSize(), sum)
	if err != nil {
		return nil, err
	}
	started, err := proto.Marshal(&sandbusv1.UploadStarted{Offset: have, Sha256: sum.Sum(nil)})
	if err != nil {
		return nil, err
	}
	out, err := req.Outgoing(0)
	if err != nil {
		return nil, err
	}
	if err := out.Write(ctx, bus.FrameStarted, started); err != nil {
		return nil, err
	}
	n, err := fill(s.fd, &bounded{c: &incoming{ctx: ctx, in: req.Incoming()}, left: m.GetSize() - have}, sum)
	if err != nil {
		return nil, err
	}
	if have+n != m.GetSize() {
		return nil, bus.Errorf(sandbusv1.Code_CODE_PROTOCOL, "%d bytes came, the size is %d", have+n, m.GetSize())
	}
	return sum.Sum(nil), r.finishUpload(s, m)
}

// resume stands behind what an earlier attempt has left, and digests it.
func (s *staged) resume(ctx context.Context, size int64, sum hash.Hash) (have int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return 0, err
	}
	if err := regular(s.name, st.Mode); err != nil {
		return 0, err
	}
	if st.Size > size { // another file's: begin anew
		st.Size = 0
		if err := unix.Ftruncate(s.fd, 0); err != nil {
			return 0, err
		}
	}
	if err := digest(ctx, s.fd, 0, st.Size, sum); err != nil {
		return 0, err
	}
	return unix.Seek(s.fd, st.Size, io.SeekStart)
}

// bounded is content of at most so many bytes.
type bounded struct {
	c    content
	left int64
}

func (b *bounded) next() ([]byte, error) {
	data, err := b.c.next()
	if err == nil {
		if b.left -= int64(len(data)); b.left < 0 {
			return nil, bus.Errorf(sandbusv1.Code_CODE_PROTOCOL, "%d bytes more came than the size says", -b.left)
		}
	}
	return data, err
}

func (r *Root) finishUpload(s *staged, m *sandbusv1.UploadRequest) error {
	t := s.target
	unlock, err := r.locks.lock(t)
	if err != nil {
		return err
	}
	defer unlock()
	if err := t.look(); err != nil {
		return err
	}
	if err := t.regular(); err != nil {
		return err
	}
	if ns := m.GetMtimeNs(); ns != 0 {
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(ns)}
		if err := unix.UtimesNanoAt(t.dir.fd, s.name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return s.commit(placing{sync: !m.GetNoSync()})
}
