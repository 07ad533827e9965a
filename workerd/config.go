package workerd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/workerd/leases"
	"github.com/sandbus/sandbus/workerd/proc"
)

// Config says what to serve, and where.
type Config struct {
	// URL is the hub's address, such as nats://hub:4222. Must not be empty, unless Dial is set.
	URL string
	// Credential must be a sandbox's; it gives zone and sandbox id.
	Credential bus.Credential
	// Renew gives a newer credential before the present one expires, see bus.Config; nil means that there is none.
	Renew func(context.Context) (bus.Credential, error)
	// CA is a file with the certificates of the authorities to trust for the hub's; empty means the system's.
	CA string
	// ServerName is the name that the hub's certificate must have; empty means the URL's host.
	ServerName string
	// Dial connects to a hub in this process instead of URL; nil means URL.
	Dial func() (net.Conn, error)
	// ConnectTimeout is how long to try to reach the hub at the start; zero means for ever.
	ConnectTimeout time.Duration
	// Dir is where relative paths and commands without a directory of their own begin; empty means the process's.
	Dir string
	// Root confines file operations to the tree below this directory: paths and links that lead out are refused. Commands
	// are not confined by it: what they may touch is the system's to say. Empty means that file operations go
	// everywhere. Dir must be below it; when Dir is empty it is Root.
	Root string
	// ReadOnly refuses file operations that change something. Commands are not held by it.
	ReadOnly bool
	// Shell is the shell's binary; empty means bash of PATH, else sh, else none: then scripts are refused and all else
	// works.
	Shell string
	// Shells is how many warm shells may live at once; zero means twice the number of CPUs, at least 4.
	Shells int
	// Sessions is how many shell sessions may be open at once; zero means 64.
	Sessions int
	// SessionIdle is when a session ends that is not used; zero means 10 min.
	SessionIdle time.Duration
	// Slots is how many leases are granted at once; zero means one per CPU.
	Slots int
	// RequireLease refuses requests without a lease; false means that who has none is served too.
	RequireLease bool
	// LeaseKeep is for how long sessions and detached execs outlive the last lease of the harness that left them; zero means
	// 10 min.
	LeaseKeep time.Duration
	// Labels are the operator's own marks, at most 64 with names of at most 64 and values of at most 256 bytes.
	Labels map[string]string
	// Image names what the sandbox was made from, at most 256 bytes; empty means unknown.
	Image string
	// Trusted says that the operator vouches for the sandbox.
	Trusted bool
	// RunAs is the identity of commands and shells, without supplementary groups and with no_new_privs; file operations
	// are made as it, too. It needs OwnProcess, a worker that may change identities, and a binary without cgo. Nil means
	// the worker's own.
	RunAs *proc.ID
	// NoNewPrivs keeps commands from gaining privileges by set-user-id programs such as sudo. RunAs implies it.
	NoNewPrivs bool
	// MaxProcs, MaxFiles and MaxFileSize are limits for commands, as setrlimit(2) has them: processes of their user on
	// this machine, open files of each process, bytes of a file that a process writes. Zero means the worker's own.
	MaxProcs, MaxFiles, MaxFileSize int64
	// MaxExecs is how many streaming execs may be alive at once; zero means 1024.
	MaxExecs int
	// MaxOutput is the highest output limit of an exec, in bytes: one that asks for more, or for none, gets that. Zero
	// means what the protocol has: 1 GiB or no limit when streaming, 32 MiB on the fast tier.
	MaxOutput int64
	// SpoolTotal is how many bytes the files with the full output of execs may take together: when a new one needs room,
	// the oldest of execs that have ended go. Zero means 4 GiB.
	SpoolTotal int64
	// DialAnywhere lets harnesses connect to every address that the sandbox reaches; false means to its loopback
	// addresses only.
	DialAnywhere bool
	// OwnProcess says that the process is this worker's alone: then it reaps the orphans below it, as a PID 1 must, and
	// has the kernel's memory killer prefer others. Nothing else in the process may start children.
	OwnProcess bool
	// StateDir is where a name is kept by which the next worker of this sandbox finds what a crash has left; empty means
	// that it is not looked for.
	StateDir string
	// SpoolDir is where files with the full output of execs go; empty means the system's temporary directory.
	SpoolDir string
	// StopGrace is how long running commands may go on after the end was asked for; zero means 5 s.
	StopGrace time.Duration
	// Version is the build that presence shows; empty means "dev".
	Version string
	// OnReady is called when the worker is known at the hub; nil means nobody.
	OnReady func()
	// Logger gets what happens, never what commands say; nil discards.
	Logger *slog.Logger
}

// check fills in what zero means, and refuses what cannot be right with its name, its value and what would be.
func (c *Config) check() error {
	if c.URL == "" && c.Dial == nil {
		return fmt.Errorf("hub URL: is empty, want one such as nats://127.0.0.1:4222")
	}
	if c.Credential.IsZero() {
		return fmt.Errorf("credential: there is none, want a sandbox's")
	}
	if id := c.Credential.Identity(); id.Role != bus.RoleSandbox {
		return fmt.Errorf("credential: is a %s's, want a sandbox's", id.Role)
	}
	if c.Root != "" {
		abs, err := filepath.Abs(c.Root)
		if err != nil {
			return fmt.Errorf("root %q: %w", c.Root, err)
		}
		c.Root = abs
		if c.Dir == "" {
			c.Dir = abs
		}
	}
	if c.Dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("directory: %w", err)
		}
		c.Dir = wd
	}
	abs, err := filepath.Abs(c.Dir)
	if err != nil {
		return fmt.Errorf("directory %q: %w", c.Dir, err)
	}
	c.Dir = abs
	if err := proc.CheckDir(c.Dir); err != nil {
		return err
	}
	if c.Shell == "" {
		c.Shell = findShell()
	} else {
		path, err := proc.LookPath(c.Shell, c.Dir, os.Environ())
		if err != nil {
			return fmt.Errorf("shell %q: %w", c.Shell, err)
		}
		c.Shell = path
	}
	if c.Shells < 0 || c.Shells > 1024 {
		return fmt.Errorf("shells %d: want 1 to 1024, or 0 for the default", c.Shells)
	}
	if c.Shells == 0 {
		c.Shells = max(4, 2*runtime.NumCPU())
	}
	if c.Sessions < 0 || c.Sessions > 4096 {
		return fmt.Errorf("sessions %d: want 1 to 4096, or 0 for 64", c.Sessions)
	}
	if c.SessionIdle < 0 || c.SessionIdle > maxTimeout {
		return fmt.Errorf("idle limit of sessions %s: want more than 0, at most %s, or 0 for 10m", c.SessionIdle, maxTimeout)
	}
	if c.SessionIdle == 0 {
		c.SessionIdle = 10 * time.Minute
	}
	if c.Slots < 0 || c.Slots > leases.MaxSlots {
		return fmt.Errorf("slots %d: want 1 to 65535, or 0 for one per CPU", c.Slots)
	}
	if c.Slots == 0 {
		c.Slots = runtime.NumCPU()
	}
	if c.LeaseKeep < 0 {
		return fmt.Errorf("lease keep %s: want more than 0, or 0 for %s", c.LeaseKeep, leases.DefaultKeep)
	}
	if err := c.checkLimits(); err != nil {
		return err
	}
	if c.StopGrace < 0 {
		return fmt.Errorf("stop grace %s: want 0 or more", c.StopGrace)
	}
	if c.StopGrace == 0 {
		c.StopGrace = 5 * time.Second
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = -1
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

const (
	defaultExecs      = 1024
	defaultSpoolTotal = 4 << 30
)

// checkLimits checks what holds commands.
func (c *Config) checkLimits() error {
	for what, n := range map[string]int64{
		"processes": c.MaxProcs, "open files": c.MaxFiles, "file size": c.MaxFileSize, "output": c.MaxOutput, "spool total": c.SpoolTotal,
	} {
		if n < 0 {
			return fmt.Errorf("limit of %s %d: want 1 or more, or 0 for none", what, n)
		}
	}
	if c.MaxFiles > 0 && c.MaxFiles < minFiles {
		return fmt.Errorf("limit of open files %d: want %d or more, a shell needs some itself", c.MaxFiles, minFiles)
	}
	if c.MaxExecs < 0 || c.MaxExecs > 65535 {
		return fmt.Errorf("execs %d: want 1 to 65535, or 0 for %d", c.MaxExecs, defaultExecs)
	}
	if c.MaxExecs == 0 {
		c.MaxExecs = defaultExecs
	}
	if c.SpoolTotal == 0 {
		c.SpoolTotal = defaultSpoolTotal
	}
	if c.RunAs != nil && !c.OwnProcess {
		return fmt.Errorf("run as %d:%d: the identity is the whole process's, want a worker in a process of its own", c.RunAs.UID, c.RunAs.GID)
	}
	return c.rules().Check()
}

// minFiles is what a shell needs to run a command: the three standard descriptors, those of the worker, and copies that
// it keeps at 10 and above.
const minFiles = 32

// rules are under what commands run.
func (c *Config) rules() *proc.Rules {
	return &proc.Rules{
		RunAs: c.RunAs, NoNewPrivs: c.NoNewPrivs,
		Processes: uint64(c.MaxProcs), Files: uint64(c.MaxFiles), FileSize: uint64(c.MaxFileSize),
	}
}

// findShell returns bash, else sh, else nothing.
func findShell() string {
	for _, name := range []string{"bash", "sh"} {
		if path, err := proc.LookPath(name, "/", os.Environ()); err == nil {
			return path
		}
	}
	return ""
}
