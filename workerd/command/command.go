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
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/workerd"
)

// Local finds a hub on this machine, for a worker that was told of none: its URL and a credential for the sandbox.
// ok is false when there is none.
type Local func(zone bus.Zone, id bus.SandboxID) (url string, cred bus.Credential, ok bool, err error)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// setting is a flag that also has an environment variable, SANDBUS_ and its name in capitals.
type setting struct {
	name, help string
	set        func(string) error
	value      string // as it was given, for messages
}

func (s *setting) String() string { return s.value }

func (s *setting) Set(v string) error {
	s.value = v
	return s.set(v)
}

func (s *setting) env() string {
	return "SANDBUS_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// options is what the settings say.
type options struct {
	cfg              workerd.Config
	zone             bus.Zone
	id               bus.SandboxID
	credsFile, token string
	level            slog.Level
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
		{name: "token", help: "the credential itself; set it in the environment, where ps does not show it", set: text(&o.token)},
		{name: "dir", help: "where relative paths and commands begin (default: the current directory)", set: text(&o.cfg.Dir)},
		{name: "root", help: "confine file operations to this directory; commands are not confined (default: not at all)", set: text(&o.cfg.Root)},
		{name: "read-only", help: "refuse file operations that change something: true or false (default false)", set: boolean(&o.cfg.ReadOnly)},
		{name: "shell", help: "the shell's binary (default: bash, else sh)", set: text(&o.cfg.Shell)},
		{name: "shells", help: "how many warm shells may live at once, 1 to 1024 (default: twice the CPUs, at least 4)", set: number(&o.cfg.Shells, 1024)},
		{name: "slots", help: "how many leases are granted at once, 1 to 65535 (default: one per CPU)", set: number(&o.cfg.Slots, 65535)},
		{name: "label", help: "NAME=VALUE marks, separated by commas", set: o.labels},
		{name: "image", help: "what the sandbox was made from", set: text(&o.cfg.Image)},
		{name: "trusted", help: "the operator vouches for the sandbox: true or false (default false)", set: boolean(&o.cfg.Trusted)},
		{name: "dial-anywhere", help: "harnesses may connect to every address that the sandbox reaches, not only to its loopback: true or false (default false)", set: boolean(&o.cfg.DialAnywhere)},
		{name: "connect-timeout", help: "how long to try to reach the hub at the start, such as 30s (default: for ever)", set: duration(&o.cfg.ConnectTimeout)},
		{name: "state-dir", help: "where a name is kept by which the next worker finds what a crash has left (default: the user's state directory)", set: text(&o.cfg.StateDir)},
		{name: "spool-dir", help: "where files with the full output of execs go (default: the temporary directory)", set: text(&o.cfg.SpoolDir)},
		{name: "stop-grace", help: "how long running commands may go on after TERM, such as 10s (default 5s)", set: duration(&o.cfg.StopGrace)},
		{name: "log-level", help: "debug, info, warn or error (default info)", set: func(v string) error {
			if err := o.level.UnmarshalText([]byte(v)); err != nil {
				return errors.New("want debug, info, warn or error")
			}
			return nil
		}},
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
	o.cfg.Version, o.cfg.OwnProcess = version, true
	if o.cfg.StateDir == "" {
		o.cfg.StateDir = stateDir(getenv)
	}
	keepInherited()
	if getenv("GOGC") == "" {
		// A small heap that answers many requests would be collected every few milliseconds.
		debug.SetGCPercent(400)
	}
	o.cfg.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: o.level}))
	if err := o.credential(local); err != nil {
		return fail(stderr, name, exitUsage, err)
	}
	w, err := workerd.New(o.cfg)
	if err != nil {
		return fail(stderr, name, exitUsage, err)
	}
	id := o.cfg.Credential.Identity()
	o.cfg.Logger.Info("worker starts", "zone", string(id.Zone), "sandbox", id.Name, "instance", string(w.Target().Instance), "url", o.cfg.URL)
	if err := w.Run(ctx); err != nil && ctx.Err() == nil {
		return fail(stderr, name, exitFailed, err)
	}
	return 0
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
	_, _ = fmt.Fprintf(w, "  --%-16s %-24s %s\n", "version", "", "print the version and exit")
}

// credential settles who the worker is, and takes secrets out of the environment that children would get.
func (o *options) credential(local Local) (err error) {
	_ = os.Unsetenv("SANDBUS_TOKEN") // fails for an empty name only
	switch {
	case o.token != "" && o.credsFile != "":
		return errors.New("both a token and a credential file are set: want one")
	case o.token != "":
		o.cfg.Credential, err = bus.ParseCredential(o.token)
	case o.credsFile != "":
		o.cfg.Credential, err = bus.LoadCredential(o.credsFile)
	case local != nil && o.cfg.URL == "":
		return o.findLocal(local)
	default:
		return errors.New("no credential: set --creds or SANDBUS_CREDS to its file, or SANDBUS_TOKEN to its text")
	}
	if err != nil {
		return err
	}
	if id := o.cfg.Credential.Identity(); o.id != "" && string(o.id) != id.Name {
		return fmt.Errorf("sandbox id %q: the credential is for %q", o.id, id.Name)
	}
	if o.cfg.URL == "" {
		return errors.New("no hub: set --url or SANDBUS_URL to its address, such as nats://hub:4222")
	}
	return nil
}

func (o *options) findLocal(local Local) error {
	if o.id == "" {
		return errors.New("no sandbox id: set --sandbox-id or SANDBUS_SANDBOX_ID")
	}
	url, cred, ok, err := local(o.zone, o.id)
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("no hub: none runs on this machine (sandbus hub); set --url and --creds for one elsewhere")
	}
	o.cfg.URL, o.cfg.Credential = url, cred
	return nil
}
