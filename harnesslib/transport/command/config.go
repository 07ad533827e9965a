package command

import (
	"errors"
	"log/slog"
	"strings"
	"time"
)

// Config says how to reach a sandbox.
type Config struct {
	// Prefix is the program and the arguments behind which a shell's command line stands, such as docker exec -i C. It
	// must pass on bytes as they are: without a terminal.
	Prefix []string
	// Shell is the command line of a POSIX shell that reads its commands from its standard input; its words must mean
	// themselves to a shell, as ssh hands them to one. Empty means sh, which makes way for bash where there is one.
	Shell []string
	// PrefixIsShell says that Prefix ends in such a shell already, as "env -i bash" and plain "ssh HOST" do.
	PrefixIsShell bool
	// Dir is where commands and relative paths begin, in the sandbox; empty means where the prefix leads.
	Dir string
	// Env is added to the environment of the prefix's processes here, not in the sandbox; nil adds nothing.
	Env []string
	// StartTimeout is how long a shell may take to answer; zero means 30 s.
	StartTimeout time.Duration
	// Logger gets a line for each fallback and each line that was given up; nil means none.
	Logger *slog.Logger
}

func (c *Config) check() error {
	switch {
	case len(c.Prefix) == 0 || c.Prefix[0] == "":
		return errors.New("command transport: want a Prefix, such as docker exec -i NAME")
	case c.PrefixIsShell && len(c.Shell) > 0:
		return errors.New("command transport: PrefixIsShell and Shell: want one of them")
	case strings.IndexByte(c.Dir, 0) >= 0:
		return errors.New("command transport: Dir has a NUL byte")
	case c.StartTimeout < 0:
		return errors.New("command transport: StartTimeout below zero: want zero (30s) or more")
	}
	return nil
}

// argv is the whole command line; upgrade says that what it starts is to make way for bash.
func (c *Config) argv() (argv []string, upgrade bool) {
	argv = append(argv, c.Prefix...)
	switch {
	case c.PrefixIsShell:
		return argv, false
	case len(c.Shell) > 0:
		return append(argv, c.Shell...), false
	}
	return append(argv, "sh"), true
}

func (c *Config) startTimeout() time.Duration {
	if c.StartTimeout == 0 {
		return 30 * time.Second
	}
	return c.StartTimeout
}
