package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cgroup holds one command, where the worker may make one: it ends all that the command started in one step, and
// counts kills for lack of memory. A nil Cgroup is none.
type Cgroup struct {
	dir string
	v2  bool
	fd  *os.File // of dir, for v2
}

// cgroupRoot is where cgroups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// ErrNoCgroup says that the worker may not make cgroups here.
var ErrNoCgroup = errors.New("this worker cannot make cgroups")

// NewCgroup makes a cgroup below the worker's own. memory is the limit in bytes, zero for none; without one a cgroup
// is only made where there is version 2. Errors wrap ErrNoCgroup.
func NewCgroup(name string, memory int64) (c *Cgroup, err error) {
	err = AsSelf(func() error {
		c, err = newCgroup(name, memory)
		return err
	})
	return c, err
}

func newCgroup(name string, memory int64) (*Cgroup, error) {
	own, v2, err := ownCgroup()
	if err != nil || (!v2 && memory == 0) {
		return nil, errors.Join(ErrNoCgroup, err)
	}
	c := &Cgroup{dir: filepath.Join(own, "sandbus-"+name), v2: v2}
	if v2 && memory > 0 {
		if err := enableMemory(own); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoCgroup, err)
		}
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	if memory > 0 {
		if err := c.limit(memory); err != nil {
			c.Close()
			return nil, fmt.Errorf("%w: %w", ErrNoCgroup, err)
		}
	}
	if v2 {
		if c.fd, err = os.Open(c.dir); err != nil {
			c.Close()
			return nil, fmt.Errorf("%w: %w", ErrNoCgroup, err)
		}
	}
	return c, nil
}

// ownCgroup is the directory of the worker's own cgroup: of version 2, else that of version 1's memory controller.
func ownCgroup() (dir string, v2 bool, err error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(b)) { // hierarchy:controllers:path (cgroups(7))
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && st.Type == unix.CGROUP2_SUPER_MAGIC:
			return filepath.Join(cgroupRoot, f[2]), true, nil
		case f[1] == "memory":
			return filepath.Join(cgroupRoot, "memory", f[2]), false, nil
		}
	}
	return "", false, errors.New("no cgroup with a memory controller")
}

// enableMemory lets children of a cgroup have memory limits. A cgroup that has processes of its own cannot; then the
// worker moves into a child first.
func enableMemory(own string) error {
	control := filepath.Join(own, "cgroup.subtree_control")
	if b, err := os.ReadFile(control); err == nil && bytes.Contains(b, []byte("memory")) {
		return nil
	}
	err := os.WriteFile(control, []byte("+memory"), 0)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	leaf := filepath.Join(own, "sandbus-worker")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	return os.WriteFile(control, []byte("+memory"), 0)
}

func (c *Cgroup) limit(memory int64) error {
	value := []byte(strconv.FormatInt(memory, 10))
	if !c.v2 {
		return os.WriteFile(filepath.Join(c.dir, "memory.limit_in_bytes"), value, 0)
	}
	_ = os.WriteFile(filepath.Join(c.dir, "memory.swap.max"), []byte("0"), 0) // where swap is accounted
	return os.WriteFile(filepath.Join(c.dir, "memory.max"), value, 0)
}

// prepare has a child start inside the cgroup, where the kernel can do that.
func (c *Cgroup) prepare(attr *syscall.SysProcAttr) {
	if c != nil && c.v2 {
		attr.UseCgroupFD, attr.CgroupFD = true, int(c.fd.Fd())
	}
}

// around runs start, which forks a child, so that the child is inside from its birth. Version 1 has no call for that;
// but there a thread can be in a cgroup by itself, and a child is where the thread is that forks it.
func (c *Cgroup) around(start func() error) error {
	if c == nil || c.v2 {
		return start()
	}
	runtime.LockOSThread()
	tid := []byte(strconv.Itoa(unix.Gettid()))
	if err := os.WriteFile(filepath.Join(c.dir, "tasks"), tid, 0); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	err := start()
	if back := os.WriteFile(filepath.Join(filepath.Dir(c.dir), "tasks"), tid, 0); back == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine, and takes the cgroup with it
	}
	return err
}

// kill ends all that is inside.
func (c *Cgroup) kill() {
	if c != nil && c.v2 {
		_ = AsSelf(func() error { // before Linux 5.14 there is no such file: the walk does it
			return os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0)
		})
	}
}

// OOMKills is how many processes inside were killed for lack of memory.
func (c *Cgroup) OOMKills() int {
	if c == nil {
		return 0
	}
	file := "memory.oom_control"
	if c.v2 {
		file = "memory.events"
	}
	return oomKills(filepath.Join(c.dir, file))
}

// oomKills reads the counter of a cgroup's file.
func oomKills(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			k, _ := strconv.Atoi(n)
			return k
		}
	}
	return 0
}

// OwnOOMKills is the counter of the worker's own cgroup: the sandbox's limit shows there.
func OwnOOMKills() int {
	own, v2, err := ownCgroup()
	if err != nil {
		return 0
	}
	if v2 {
		return oomKills(filepath.Join(own, "memory.events"))
	}
	return oomKills(filepath.Join(own, "memory.oom_control"))
}

// Close removes the cgroup, which must be empty: what still lives in it moves up.
func (c *Cgroup) Close() {
	if c == nil {
		return
	}
	if c.fd != nil {
		_ = c.fd.Close() // a directory
	}
	_ = AsSelf(c.remove) // kept by what could not be moved
}

func (c *Cgroup) remove() error {
	if b, err := os.ReadFile(filepath.Join(c.dir, "cgroup.procs")); err == nil {
		for pid := range strings.FieldsSeq(string(b)) {
			_ = os.WriteFile(filepath.Join(filepath.Dir(c.dir), "cgroup.procs"), []byte(pid), 0) // it may have ended
		}
	}
	return os.Remove(c.dir)
}
