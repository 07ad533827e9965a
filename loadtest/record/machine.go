package record

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// Machine is where and with what a run was made.
type Machine struct {
	CPUs     int               `json:"cpus"`
	CPU      string            `json:"cpu,omitempty"`
	Memory   int64             `json:"memory_bytes,omitempty"`
	OS       string            `json:"os"`
	Arch     string            `json:"arch"`
	Kernel   string            `json:"kernel,omitempty"`
	Load     string            `json:"load,omitempty"` // averages at the start of the run: others on the machine show here
	Versions map[string]string `json:"versions"`
}

// ThisMachine describes the machine; hub is the release of the NATS server.
func ThisMachine(hub string) Machine {
	m := Machine{
		CPUs: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPU: field("/proc/cpuinfo", "model name"), Kernel: first("/proc/sys/kernel/osrelease"), Load: first("/proc/loadavg"),
		Versions: map[string]string{"go": runtime.Version(), "nats-server": hub},
	}
	if kib := strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"); kib != "" {
		for _, c := range kib {
			if c < '0' || c > '9' {
				m.Memory = 0
				break
			}
			m.Memory = m.Memory*10 + int64(c-'0')
		}
		m.Memory *= 1024
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		m.Versions["sandbus"] = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				m.Versions["sandbus"] = s.Value
			}
		}
		for _, d := range info.Deps {
			if strings.HasSuffix(d.Path, "/nats.go") {
				m.Versions["nats.go"] = d.Version
			}
		}
	}
	return m
}

// first line of a file; empty when there is none.
func first(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

// field is the value of the first line "name: value"; empty when there is none.
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
