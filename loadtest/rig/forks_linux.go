package rig

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// forks counts the processes that begin below some others, by the kernel's process connector (CN_PROC in
// linux/cn_proc.h). It needs root in the machine's first namespaces.
type forks struct {
	sock *os.File
	done chan struct{}

	mu    sync.Mutex  // guards the fields below
	roots map[int]int // process → the root that it is below; a root is below itself
	count map[int]int // by root
	lost  bool        // events were dropped: counts are too low
}

// Of the connector's messages.
const (
	cnIdxProc    = 1
	cnListen     = 1
	cnHeader     = 16 + 20 // nlmsghdr and cn_msg
	cnEventData  = cnHeader + 16
	cnEventFork  = 1
	cnEventExit  = 1 << 31
	cnReceiveBuf = 4 << 20
)

// watchForks begins to count. Errors: this process may not.
func watchForks() (*forks, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, fmt.Errorf("process connector: %w", err)
	}
	sock := os.NewFile(uintptr(fd), "process connector")
	fail := func(err error) (*forks, error) {
		return nil, fmt.Errorf("process connector: %w", errors.Join(err, sock.Close()))
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: cnIdxProc}); err != nil {
		return fail(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, cnReceiveBuf); err != nil {
		return fail(err)
	}
	var m bytes.Buffer
	_ = binary.Write(&m, binary.NativeEndian, struct { // into memory
		Len              uint32
		Type, Flags      uint16
		Seq, Pid         uint32
		Idx, Val, CSeq   uint32
		Ack              uint32
		DataLen, CnFlags uint16
		Op               uint32
	}{Len: cnHeader + 4, Type: unix.NLMSG_DONE, Idx: cnIdxProc, Val: 1, DataLen: 4, Op: cnListen})
	if err := unix.Sendto(fd, m.Bytes(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail(err)
	}
	f := &forks{sock: sock, done: make(chan struct{}), roots: map[int]int{}, count: map[int]int{}}
	go f.read()
	return f, nil
}

func (f *forks) read() {
	defer close(f.done)
	buf := make([]byte, 4096)
	for {
		n, err := f.sock.Read(buf)
		if errors.Is(err, unix.ENOBUFS) {
			f.mu.Lock()
			f.lost = true
			f.mu.Unlock()
			continue
		}
		if err != nil {
			return // closed
		}
		f.take(buf[:n])
	}
}

func (f *forks) take(m []byte) {
	if len(m) < cnEventData+8 {
		return
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(m[i:]) }
	f.mu.Lock()
	defer f.mu.Unlock()
	switch word(cnHeader) {
	case cnEventFork:
		if len(m) < cnEventData+16 {
			return
		}
		parent, child, group := int(word(cnEventData+4)), int(word(cnEventData+8)), int(word(cnEventData+12))
		if root, ok := f.roots[parent]; ok && child == group { // else it is a thread
			f.roots[child] = root
			f.count[root]++
		}
	case cnEventExit:
		if pid, group := int(word(cnEventData)), int(word(cnEventData+4)); pid == group && f.roots[pid] != pid {
			delete(f.roots, pid)
		}
	}
}

// add begins to count below a process, those that are there already included.
func (f *forks) add(root int) {
	if f == nil {
		return
	}
	f.mu.Lock()
	f.roots[root] = root
	f.mu.Unlock()
	all := processes()
	f.mu.Lock()
	defer f.mu.Unlock()
	for pid := range all {
		if descends(all, pid, root) {
			f.roots[pid] = root
		}
	}
}

// started is how many processes have begun below a root since add; nil when that is not known.
func (f *forks) started(root int) *float64 {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.roots[root]; !ok || f.lost {
		return nil
	}
	return new(float64(f.count[root]))
}

func (f *forks) close() {
	if f == nil {
		return
	}
	_ = f.sock.Close() // only read from
	<-f.done
}
