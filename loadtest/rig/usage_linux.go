package rig

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the kernel's unit of processor time in /proc (USER_HZ, which is 100 everywhere).
const tick = 10 * time.Millisecond

// procStat is one process in /proc.
type procStat struct {
	parent int
	cpu    time.Duration // its own
	waited time.Duration // that of the children that it has waited for, and theirs
	rss    int64         // bytes
}

// processes reads all processes of the machine.
func processes() map[int]procStat {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	all := map[int]procStat{}
	page := int64(os.Getpagesize())
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		b, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the third field of proc(5) on
		if len(f) < 22 {
			continue
		}
		num := func(i int) int64 {
			n, _ := strconv.ParseInt(f[i-3], 10, 64) // the kernel writes numbers
			return n
		}
		all[pid] = procStat{
			parent: int(num(4)), cpu: time.Duration(num(14)+num(15)) * tick,
			waited: time.Duration(num(16)+num(17)) * tick, rss: num(24) * page,
		}
	}
	return all
}

// below is what the descendants of a process have used, those that are alive and those that were waited for, without the
// process itself; ok is false when there is no such process.
func below(all map[int]procStat, root int) (cpu time.Duration, rss int64, ok bool) {
	top, ok := all[root]
	if !ok {
		return 0, 0, false
	}
	cpu = top.waited
	for pid, p := range all {
		if pid != root && descends(all, pid, root) {
			cpu += p.cpu + p.waited
			rss += p.rss
		}
	}
	return cpu, rss, true
}

func descends(all map[int]procStat, pid, root int) bool {
	for range 64 { // no tree of ours is deeper; ids that were used again meanwhile might make a ring
		p, ok := all[pid]
		if !ok {
			return false
		}
		if p.parent == root {
			return true
		}
		pid = p.parent
	}
	return false
}
