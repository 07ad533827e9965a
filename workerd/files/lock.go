package files

import (
	"sync"

	"golang.org/x/sys/unix"
)

// locks makes changes of one file follow each other. A file is known by the inode of its directory and its name there,
// which is the same by whatever path and links it was reached.
type locks struct {
	mu   sync.Mutex // guards the field below; taken before no other lock
	held map[lockKey]*fileLock
}

type lockKey struct {
	dev, ino uint64
	name     string
}

type fileLock struct {
	mu    sync.Mutex // guards the file
	users int        // who hold mu or wait for it; guarded by locks.mu
}

// key is how the locks know a target.
func (t *target) key() (lockKey, error) {
	var st unix.Stat_t
	err := unix.Fstat(t.dir.fd, &st)
	return lockKey{uint64(st.Dev), st.Ino, t.name}, err //nolint:unconvert // the types differ by system
}

func (k lockKey) before(other lockKey) bool {
	if k.dev != other.dev {
		return k.dev < other.dev
	}
	if k.ino != other.ino {
		return k.ino < other.ino
	}
	return k.name < other.name
}

// lock waits until the target is ours, and returns what gives it back.
func (l *locks) lock(t *target) (unlock func(), err error) {
	key, err := t.key()
	if err != nil {
		return nil, err
	}
	return l.lockKey(key), nil
}

// lockBoth is lock for two targets. It takes them in one order, so that no two calls wait for each other.
func (l *locks) lockBoth(a, b *target) (unlock func(), err error) {
	first, err := a.key()
	if err != nil {
		return nil, err
	}
	second, err := b.key()
	if err != nil {
		return nil, err
	}
	if first == second {
		return l.lockKey(first), nil
	}
	if second.before(first) {
		first, second = second, first
	}
	unlockFirst := l.lockKey(first)
	unlockSecond := l.lockKey(second)
	return func() {
		unlockSecond()
		unlockFirst()
	}, nil
}

func (l *locks) lockKey(key lockKey) (unlock func()) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[lockKey]*fileLock{}
	}
	f := l.held[key]
	if f == nil {
		f = &fileLock{}
		l.held[key] = f
	}
	f.users++
	l.mu.Unlock()
	f.mu.Lock()
	return func() {
		f.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if f.users--; f.users == 0 {
			delete(l.held, key)
		}
	}
}
