package proc

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Process is a process that was seen: the start time tells it from a later one with the same id.
type Process struct {
	PID   int
	start uint64 // in clock ticks since boot
}

// readProc reads a file of /proc into buf, with three system calls: a walk reads hundreds. It returns what fits.
func readProc(pid int, file string, buf []byte) ([]byte, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = unix.Close(fd) }() // read only
	n := 0
	for n < len(buf) {
		k, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, false
		}
		if k == 0 || n+k < 4096 { // these files come whole, or in pages
			n += k
			break
		}
		n += k
	}
	return buf[:n], true
}

// stat reads parent and start time of a process; ok is false when there is none.
func stat(pid int) (ppid int, start uint64, state byte, ok bool) {
	var buf [1024]byte // names are short, and all else are numbers
	b, ok := readProc(pid, "/stat", buf[:])
	if !ok {
		return 0, 0, 0, false
	}
	// pid (comm) state ppid …: comm may hold anything, so begin behind the last bracket (proc_pid_stat(5)).
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, 0, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return 0, 0, 0, false
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	start, err2 := strconv.ParseUint(string(f[19]), 10, 64)
	return ppid, start, f[0][0], err1 == nil && err2 == nil
}

// table reads the living processes of this system, by parent.
func table() map[int][]Process {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = d.Close() }() // read only
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	children := map[int][]Process{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if ppid, start, state, ok := stat(pid); ok && state != 'Z' && state != 'X' {
			children[ppid] = append(children[ppid], Process{pid, start})
		}
	}
	return children
}

// Find is the process that has an id now.
func Find(pid int) Process {
	_, start, _, _ := stat(pid)
	return Process{pid, start}
}

// Alive says whether the process is still there and no zombie.
func (p Process) Alive() bool {
	_, start, state, ok := stat(p.PID)
	return ok && start == p.start && state != 'Z' && state != 'X'
}

// Signal sends a signal to the process if it is still the one that was seen.
func (p Process) Signal(sig unix.Signal) {
	if _, start, _, ok := stat(p.PID); ok && start == p.start {
		_ = unix.Kill(p.PID, sig) // gone in this moment: that was the aim
	}
}

// environBytes is how much of an environment is looked at. The worker's marks stand at its end, so it is larger than any
// that is usual.
const environBytes = 256 << 10

// hasMark says whether a process was started with a variable.
func hasMark(p Process, mark string, buf []byte) bool {
	b, ok := readProc(p.PID, "/environ", buf)
	if !ok {
		return false // gone, or not ours to look at
	}
	rest := b
	for len(rest) > 0 {
		var v []byte
		v, rest, _ = bytes.Cut(rest, []byte{0})
		if string(v) == mark {
			return p.Alive()
		}
	}
	return false
}
