// Package command is the command line of a worker: flags and environment to a workerd.Config. The binary workerd and
// the verb "sandbus worker" are both made of it.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/telemetry"
	"github.com/sandbus/sandbus/workerd"
	"github.com/sandbus/sandbus/workerd/proc"
)

// Local finds a hub on this machine, for a worker that was told of none, and sets how to reach it and a credential for
// the sandbox. ok is false when there is none.
type Local func(cfg *workerd.Config, zone bus.Zone, id bus.SandboxID) (ok bool, err error)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// setting is a flag that also has an environment variable.
type setting struct {
	name, help string
	set        func(string) error
	variable   string // empty means SANDBUS_ and the name in capitals
	value      string // as it was given, for messages
}

func (s *setting) String() string { return s.value }

func (s *setting) Set(v string) error {
	s.value = v
	return s.set(v)
}

func (s *setting) env() string {
	if s.variable != "" {
		return s.variable
	}
	return "SANDBUS_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// options is what the settings say.
type options struct {
	cfg              workerd.Config
	zone             bus.Zone
	id               bus.SandboxID
	credsFile, token string
	credsCommand     []string
	insecure         bool
	tokenFD          int // descriptor that the credential is read from; zero means none
	level            slog.Level
	format           telemetry.LogFormat
	metrics          string // HOST:PORT; empty means none
}

func (o *options) settings() []*setting {
	text := func(p *string) func(string) error {
		return func(v string) error { *p = v; return nil }
	}
	return []*setting{
		{name: "url", help: "the hub's address, such as nats://hub:4222", set: text(&o.cfg.URL)},
		{name: "sandbox-id", help: "the id to serve; the credential must be for it", set: func(v string) (err error) {
			o.id, err = bus.ParseSandboxID(v)
			return err
		}},
		{name: "zone", help: `the zone of the sandbox (default "main")`, set: func(v string) (err error) {
			o.zone, err = bus.ParseZone(v)
			return err
		}},
		{name: "creds", help: "file with the sandbox's credential", set: text(&o.credsFile)},
		{name: "token", help: "the credential itself; the worker takes it out of its environment and arguments at once", set: text(&o.token)},
		{name: "token-fd", help: "descriptor from which the credential is read up to its end, 3 or more", set: descriptor(&o.tokenFD)},
		{name: "creds-command", help: "program that prints the credential, words separated by spaces, run without a shell and again before the credential expires", set: func(v string) error {
			o.credsCommand = strings.Fields(v)
			return nil
		}},
		{name: "tls-ca", variable: "SANDBUS_CA", help: "file with the certificates of the authorities to trust for the hub's (default: the system's)", set: text(&o.cfg.CA)},
		{name: "insecure-no-auth", help: "show no credential, to a hub that believes everybody: true or false (default false)", set: boolean(&o.insecure)},
		{name: "dir", help: "where relative paths and commands begin (default: the current directory)", set: text(&o.cfg.Dir)},
		{name: "root", help: "confine file operations to this directory; commands are not confined (default: not at all)", set: text(&o.cfg.Root)},
		{name: "read-only", help: "refuse file operations that change something: true or false (default false)", set: boolean(&o.cfg.ReadOnly)},
		{name: "shell", help: "the shell's binary (default: bash, else sh)", set: text(&o.cfg.Shell)},
		{name: "shells", help: "how many warm shells may live at once, 1 to 1024 (default: twice the CPUs, at least 4)", set: number(&o.cfg.Shells, 1024)},
		{name: "slots", help: "how many leases are granted at once, 1 to 65535 (default: one per CPU)", set: number(&o.cfg.Slots, 65535)},
		{name: "require-lease", help: "serve holders of leases only: true or false (default false)", set: boolean(&o.cfg.RequireLease)},
		{name: "lease-keep", help: "how long sessions and detached commands outlive their harness's last lease, such as 30m (default 10m)", set: duration(&o.cfg.LeaseKeep)},
		{name: "label", help: "NAME=VALUE marks, separated by commas", set: o.labels},
		{name: "image", help: "what the sandbox was made from", set: text(&o.cfg.Image)},
		{name: "trusted", help: "the operator vouches for the sandbox: true or false (default false)", set: boolean(&o.cfg.Trusted)},
		{name: "run-as", help: "UID:GID under which commands run and files are touched, in numbers; sets no_new_privs (default: the worker's own)", set: o.runAs},
		{name: "no-new-privs", help: "commands gain nothing by set-user-id programs such as sudo: true or false (default false)", set: boolean(&o.cfg.NoNewPrivs)},
		{name: "max-procs", help: "processes that the user of commands may have on this machine (default: the worker's own limit)", set: size(&o.cfg.MaxProcs)},
		{name: "max-files", help: "files that a command may have open, 32 or more (default: the worker's own limit)", set: size(&o.cfg.MaxFiles)},
		{name: "max-file-size", help: "bytes of a file that a command writes, such as 2G (default: the worker's own limit)", set: size(&o.cfg.MaxFileSize)},
		{name: "max-execs", help: "streaming execs alive at once, 1 to 65535 (default 1024)", set: number(&o.cfg.MaxExecs, 65535)},
		{name: "max-output", help: "the highest output limit of an exec in bytes, such as 64M (default: none)", set: size(&o.cfg.MaxOutput)},
		{name: "spool-total", help: "bytes that the files with full output take together; the oldest go first (default 4G)", set: size(&o.cfg.SpoolTotal)},
		{name: "dial-anywhere", help: "harnesses may connect to every address that the sandbox reaches, not only to its loopback: true or false (default false)", set: boolean(&o.cfg.DialAnywhere)},
		{name: "connect-timeout", help: "how long to try to reach the hub at the start, such as 30s (default: for ever)", set: duration(&o.cfg.ConnectTimeout)},
		{name: "state-dir", help: "where a name is kept by which the next worker finds what a crash has left (default: the user's state directory)", set: text(&o.cfg.StateDir)},
		{name: "spool-dir", help: "where files with the full output of execs go (default: the temporary directory)", set: text(&o.cfg.SpoolDir)},
		{name: "take-over", help: "how long to stand by while another worker of this id is live, such as 5m; it is replaced as soon as it is told to end (default: fail at once)", set: duration(&o.cfg.TakeOver)},
		{name: "stop-grace", help: "how long running commands may go on after TERM, such as 10s (default 5s)", set: duration(&o.cfg.StopGrace)},
		{name: "log-level", help: "debug, info, warn or error (default info)", set: func(v string) error {
			if err := o.level.UnmarshalText([]byte(v)); err != nil {
				return errors.New("want debug, info, warn or error")
			}
			return nil
		}},
		{name: "log-format", help: "text or json (default text)", set: o.format.Set},
		{name: "metrics-addr", help: "HOST:PORT for metrics (/metrics) and health (/healthz); open to all who reach it (default: none)", set: address(&o.metrics)},
	}
}

// address reads HOST:PORT.
func address(p *string) func(string) error {
	return func(v string) error {
		if _, _, err := net.SplitHostPort(v); err != nil {
			return errors.New("want HOST:PORT, such as 127.0.0.1:9464")
		}
		*p = v
		return nil
	}
}

func number(p *int, bound int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > bound {
			return fmt.Errorf("want a number from 1 to %d", bound)
		}
		*p = n
		return nil
	}
}

// size reads a number of bytes or things, with K, M or G behind it for powers of 1024.
func size(p *int64) func(string) error {
	return func(v string) error {
		digits, shift := v, 0
		if n := len(v); n > 1 {
			if i := strings.IndexByte("KMG", v[n-1]); i >= 0 {
				digits, shift = v[:n-1], 10*(i+1)
			}
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || n > math.MaxInt64>>shift {
			return errors.New("want a number above zero, with K, M or G behind it for powers of 1024")
		}
		*p = n << shift
		return nil
	}
}

// descriptor reads the number of an inherited descriptor; the first three are the standard ones.
func descriptor(p *int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 3 || n > 65535 {
			return errors.New("want a descriptor, 3 to 65535")
		}
		*p = n
		return nil
	}
}

// runAs reads UID:GID.
func (o *options) runAs(v string) error {
	uid, gid, ok := strings.Cut(v, ":")
	u, err1 := strconv.ParseUint(uid, 10, 32)
	g, err2 := strconv.ParseUint(gid, 10, 32)
	if !ok || err1 != nil || err2 != nil || u == math.MaxUint32 || g == math.MaxUint32 { // -1 means "unchanged" to the kernel
		return errors.New("want UID:GID in numbers, such as 1000:1000")
	}
	o.cfg.RunAs = &proc.ID{UID: uint32(u), GID: uint32(g)}
	return nil
}

func boolean(p *bool) func(string) error {
	return func(v string) (err error) {
		if *p, err = strconv.ParseBool(v); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}
}

func duration(p *time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return errors.New("want a time above zero with its unit, such as 500ms or 10s")
		}
		*p = d
		return nil
	}
}

func (o *options) labels(v string) error {
	o.cfg.Labels = map[string]string{}
	for part := range strings.SplitSeq(v, ",") {
		name, value, ok := strings.Cut(part, "=")
		if !ok || name == "" || len(name) > 64 || len(value) > 256 {
			return fmt.Errorf("%.80q: want NAME=VALUE with a name of 1 to 64 bytes and a value of at most 256", part)
		}
		o.cfg.Labels[name] = value
	}
	if len(o.cfg.Labels) > 64 {
		return fmt.Errorf("%d labels: the bound is 64", len(o.cfg.Labels))
	}
	return nil
}

// Run runs a worker until ctx ends and returns its exit status: 0, 1 for a failure, 2 for a wrong setting. args are
// the flags; getenv looks a variable up; local may be nil.
func Run(ctx context.Context, name string, args []string, getenv func(string) string, stdout, stderr io.Writer, local Local, version string) int {
	if len(args) > 0 && args[0] == "install" {
		return install(name, args[1:], stdout, stderr)
	}
	o := &options{zone: bus.DefaultZone}
	settings := o.settings()
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	stdio := fs.Bool("stdio", false, stdioHelp)
	showVersion := fs.Bool("version", false, "print the version and exit")
	for _, s := range settings {
		fs.Var(s, s.name, s.help)
	}
	// The environment first: flags overrule it.
	for _, s := range settings {
		if v := getenv(s.env()); v != "" {
			if err := s.Set(v); err != nil {
				return fail(stderr, name, exitUsage, fmt.Errorf("%s=%.80q: %w", s.env(), s.shown(), err))
			}
		}
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(stdout, name, settings)
		return 0
	case err != nil:
		return fail(stderr, name, exitUsage, fmt.Errorf("%w; see %s --help", err, name))
	case fs.NArg() > 0:
		return fail(stderr, name, exitUsage, fmt.Errorf("argument %q: want flags only; see %s --help", fs.Arg(0), name))
	case *showVersion:
		_, _ = fmt.Fprintln(stdout, name, version)
		return 0
	}
	if err := o.hideToken(args, given(fs)); err != nil {
		return fail(stderr, name, exitUsage, err)
	}
	o.cfg.Version, o.cfg.OwnProcess = version, true
	if *stdio {
		return o.stdio(ctx, name, stderr)
	}
	if o.cfg.StateDir == "" {
		o.cfg.StateDir = stateDir(getenv)
	}
	if err := o.readToken(); err != nil {
		return fail(stderr, name, exitUsage, err)
	}
	keepInherited()
	if getenv("GOGC") == "" {
		// A small heap that answers many requests would be collected every few milliseconds.
		debug.SetGCPercent(400)
	}
	o.cfg.Logger = o.format.Logger(stderr, o.level)
	if err := o.credential(ctx, local); err != nil {
		status := exitUsage
		if _, bad := errors.AsType[*credentialError](err); bad {
			status = exitFailed
		}
		return fail(stderr, name, status, err)
	}
	w, err := workerd.New(o.cfg)
	if err != nil {
		return fail(stderr, name, exitUsage, err)
	}
	id := o.cfg.Credential.Identity()
	o.cfg.Logger.Info("worker starts", "zone", string(id.Zone), "sandbox", id.Name, "instance", string(w.Target().Instance), "url", o.cfg.URL)
	metrics, err := o.serveMetrics(w)
	if err != nil {
		return fail(stderr, name, exitFailed, err)
	}
	defer metrics.Stop()
	if err := w.Run(ctx); err != nil && ctx.Err() == nil {
		return fail(stderr, name, exitFailed, err)
	}
	return 0
}

// given are the flags that were set, as arguments.
func given(fs *flag.FlagSet) (args []string) {
	fs.Visit(func(f *flag.Flag) {
		if f.Name != "token" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

var errBothSet = errors.New("several of a token, a descriptor with one, a credential file, a credential command and insecure-no-auth are set: want one")

// maxToken bounds what is read of a descriptor, in bytes.
const maxToken = 64 << 10

// readToken reads the credential from the descriptor that was named, and closes it.
func (o *options) readToken() error {
	if o.tokenFD == 0 {
		return nil
	}
	if o.token != "" || o.credsFile != "" {
		return errBothSet
	}
	f := os.NewFile(uintptr(o.tokenFD), "credential")
	if f == nil {
		return fmt.Errorf("credential descriptor %d: is none", o.tokenFD)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("credential descriptor %d: %w", o.tokenFD, err)
	}
	if len(b) > maxToken {
		return fmt.Errorf("credential descriptor %d: more than %d bytes", o.tokenFD, maxToken)
	}
	if o.token = strings.TrimSpace(string(b)); o.token == "" {
		return fmt.Errorf("credential descriptor %d: is empty", o.tokenFD)
	}
	return nil
}

// shown is a setting's value for a message: never the secret.
func (s *setting) shown() string {
	if s.name == "token" {
		return "…"
	}
	return s.value
}

// stateDir is the user's state directory, as XDG has it; empty when there is none.
func stateDir(getenv func(string) string) string {
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sandbus")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "sandbus")
	}
	return ""
}

func fail(stderr io.Writer, name string, status int, err error) int {
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return status
}

func usage(w io.Writer, name string, settings []*setting) {
	_, _ = fmt.Fprintf(w, `%[1]s serves one sandbox: it dials out to the hub and runs what harnesses ask for.

Usage: %[1]s [flags]
       %[1]s install DIR      copy this binary into DIR, for images that lack it

Each flag can be set by the environment variable beside it instead.

`, name)
	for _, s := range settings {
		_, _ = fmt.Fprintf(w, "  --%-16s %-24s %s\n", s.name, s.env(), s.help)
	}
	_, _ = fmt.Fprintf(w, "  --%-16s %-24s %s\n", "stdio", "", stdioHelp)
	_, _ = fmt.Fprintf(w, "  --%-16s %-24s %s\n", "version", "", "print the version and exit")
}

// credentialError is a credential that cannot be used, as opposed to a setting that is missing.
type credentialError struct{ err error }

func (e *credentialError) Error() string { return e.err.Error() }
func (e *credentialError) Unwrap() error { return e.err }

// credential settles who the worker is, and takes secrets out of the environment that children would get.
func (o *options) credential(ctx context.Context, local Local) (err error) {
	_ = os.Unsetenv("SANDBUS_TOKEN") // fails for an empty name only
	set := 0
	for _, is := range []bool{o.token != "", o.credsFile != "", len(o.credsCommand) > 0, o.insecure} {
		if is {
			set++
		}
	}
	switch {
	case set > 1:
		return errBothSet
	case o.token != "":
		o.cfg.Credential, err = bus.ParseCredential(o.token)
	case o.credsFile != "":
		o.cfg.Renew = func(context.Context) (cred bus.Credential, err error) {
			err = proc.AsSelf(func() error { // the file is not for the user that commands run as
				cred, err = bus.LoadCredential(o.credsFile)
				return err
			})
			return cred, err
		}
		o.cfg.Credential, err = o.cfg.Renew(ctx)
	case len(o.credsCommand) > 0:
		o.cfg.Renew = bus.CommandCredential(o.credsCommand, runChild)
		o.cfg.Credential, err = o.cfg.Renew(ctx)
	case o.insecure && o.id == "":
		return errNoID
	case o.insecure:
		o.cfg.Credential, err = bus.Anonymous(bus.Identity{Role: bus.RoleSandbox, Zone: o.zone, Name: string(o.id)})
	case local != nil && o.cfg.URL == "":
		return o.findLocal(local)
	default:
		return errors.New("no credential: set --creds or SANDBUS_CREDS to its file, SANDBUS_TOKEN to its text, or --token-fd to a descriptor that has it")
	}
	if err != nil {
		return &credentialError{err}
	}
	if id := o.cfg.Credential.Identity(); id.Role != bus.RoleSandbox {
		return &credentialError{fmt.Errorf("credential: it is a %s's, want a sandbox's", id.Role)}
	}
	if id := o.cfg.Credential.Identity(); o.id != "" && string(o.id) != id.Name {
		return &credentialError{fmt.Errorf("sandbox id %q: the credential is for %q", o.id, id.Name)}
	}
	if o.cfg.URL == "" {
		return errors.New("no hub: set --url or SANDBUS_URL to its address, such as nats://hub:4222")
	}
	return nil
}

var errNoID = errors.New("no sandbox id: set --sandbox-id or SANDBUS_SANDBOX_ID")

// runChild runs a program in a process that reaps orphans.
func runChild(cmd *exec.Cmd) error {
	if err := proc.StartChild(cmd, nil); err != nil {
		return err
	}
	return proc.WaitChild(cmd)
}

func (o *options) findLocal(local Local) error {
	if o.id == "" {
		return errNoID
	}
	ok, err := local(&o.cfg, o.zone, o.id)
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("no hub: none runs on this machine (sandbus hub); set --url and --creds for one elsewhere")
	}
	return nil
}
