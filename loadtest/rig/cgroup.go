package rig

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandbus/sandbus/loadtest/record"
)

// cgroupOf is the directory of a container's control group, version 2; empty when there is none.
func cgroupOf(ctx context.Context, id string) string {
	pid, err := docker(ctx, "inspect", "-f", "{{.State.Pid}}", id)
	if err != nil {
		return ""
	}
	b, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", path)
		}
	}
	return ""
}

// cgroupUse is what a control group has used so far.
type cgroupUse struct {
	cpu *time.Duration
	rss *float64
}

func (c container) use() (u cgroupUse) {
	if c.cgroup == "" {
		return u
	}
	if b, err := os.ReadFile(filepath.Join(c.cgroup, "cpu.stat")); err == nil {
		for line := range strings.SplitSeq(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, "usage_usec "); ok {
				if n, err := strconv.ParseInt(v, 10, 64); err == nil {
					d := time.Duration(n) * time.Microsecond
					u.cpu = &d
				}
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(c.cgroup, "memory.stat")); err == nil {
		for line := range strings.SplitSeq(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, "anon "); ok {
				if n, err := strconv.ParseFloat(v, 64); err == nil {
					u.rss = &n
				}
			}
		}
	}
	return u
}

// process is what a container used between two moments.
func (c container) process(before, after cgroupUse) record.Process {
	p := record.Process{Name: c.name, RSS: after.rss}
	if before.cpu != nil && after.cpu != nil {
		p.CPU = ptr((*after.cpu - *before.cpu).Seconds())
	}
	return p
}
