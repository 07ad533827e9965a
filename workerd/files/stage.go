package files

import (
	"crypto/rand"
	"errors"

	"golang.org/x/sys/unix"
)

// stagePrefix begins the names of files that are not yet at their place.
const stagePrefix = ".sandbus-"

// staged is the new content of a target, in a file beside it. Its maker calls discard, which does nothing after commit.
type staged struct {
	target *target
	name   string
	fd     int
}

// stage makes an empty file beside the target. Its name's length does not depend on the target's: 255 bytes are legal
// there.
func (t *target) stage(mode uint32) (*staged, error) {
	s := &staged{target: t, name: stagePrefix + rand.Text(), fd: -1}
	return s, s.openFile(unix.O_CREAT|unix.O_EXCL, mode)
}

func (s *staged) openFile(flags int, mode uint32) error {
	return ignoringEINTR(func() (err error) {
		s.fd, err = unix.Openat(s.target.dir.fd, s.name, flags|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
		return err
	})
}

// discard removes what was not committed.
func (s *staged) discard() {
	if s.fd < 0 {
		return
	}
	s.close()
	_ = unix.Unlinkat(s.target.dir.fd, s.name, 0) // the error that counts is the one for which it is discarded
}

// close lets the file go and leaves it where it is.
func (s *staged) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd) // what was written is synced or given up
		s.fd = -1
	}
}

// write adds to the content.
func (s *staged) write(b []byte) error { return writeAll(s.fd, b) }

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// placing says how staged content gets to its place.
type placing struct {
	noReplace bool // fail with EEXIST when there is something
	sync      bool // to the disk, file and directory
	ownMode   bool // the mode is not the one of the file that is replaced
}

// commit renames the content over the target, whose mode and, where that is allowed, owner it gets.
func (s *staged) commit(how placing) error {
	t := s.target
	if t.exists && !how.ownMode {
		if err := s.likeOld(); err != nil {
			return err
		}
	}
	if how.sync {
		if err := ignoringEINTR(func() error { return unix.Fsync(s.fd) }); err != nil {
			return err
		}
	}
	if err := s.place(how); err != nil {
		return err
	}
	s.close()
	if how.sync {
		return syncDir(t.dir)
	}
	return nil
}

// likeOld gives the new file the mode and, where that is allowed, the owner of the one that it replaces.
func (s *staged) likeOld() error {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return err
	}
	old := &s.target.st
	if st.Uid != old.Uid || st.Gid != old.Gid {
		_ = unix.Fchown(s.fd, int(old.Uid), int(old.Gid)) // not ours to give: then it is ours
	} else if st.Mode&0o7777 == old.Mode&0o7777 {
		return nil
	}
	return unix.Fchmod(s.fd, old.Mode&0o7777) // after chown, which clears setuid
}

// place gives the file the target's name.
func (s *staged) place(how placing) error {
	dir := s.target.dir.fd
	switch {
	case how.noReplace: // rename would replace what came in between
		return renameNoReplace(dir, s.name, dir, s.target.name)
	case !how.sync && s.target.exists:
		// ext4 writes a file to the disk when rename makes it replace another (auto_da_alloc, ext4(5)): milliseconds that
		// the caller did not ask for. To exchange the two is as atomic and does not.
		if unix.Renameat2(dir, s.name, dir, s.target.name, unix.RENAME_EXCHANGE) == nil {
			err := unix.Unlinkat(dir, s.name, 0)
			if err != nil { // a directory has come in between
				_ = unix.Renameat2(dir, s.name, dir, s.target.name, unix.RENAME_EXCHANGE) // the error that counts is err
			}
			return err
		}
	}
	return unix.Renameat(dir, s.name, dir, s.target.name)
}

// renameNoReplace fails with EEXIST instead of replacing a file.
func renameNoReplace(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // file systems without it
		if err = unix.Linkat(fromDir, from, toDir, to, 0); err == nil {
			err = unix.Unlinkat(fromDir, from, 0)
		}
	}
	return err
}

// syncDir brings a directory's names to the disk.
func syncDir(dir handle) error {
	err := ignoringEINTR(func() error { return unix.Fsync(dir.fd) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBADF) {
		// File systems that have no sync for directories, and a directory that may be written and not read: its
		// descriptor cannot be synced.
		return nil
	}
	return err
}
