// Package local is the transport to this machine: a persistent shell for commands and file operations, and a process for
// each streaming command. It is the command transport with a shell of this machine for its prefix.
package local

import (
	"errors"
	"os/exec"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
)

// Config says where commands run. Its zero value is this process's directory and environment.
type Config struct {
	// Dir is where commands and relative paths begin; empty means this process's directory.
	Dir string
	// Env is added to this process's environment for all commands, NAME=value each.
	Env []string
	// Shell is the path of bash or another POSIX shell; empty means bash of PATH, else sh.
	Shell string
}

// Transport reaches this machine. Use New.
type Transport struct{ *command.Transport }

var _ transport.Transport = Transport{}

// New makes a transport. It starts nothing.
func New(cfg Config) (Transport, error) {
	prefix := []string{cfg.Shell}
	if cfg.Shell == "" {
		prefix = []string{"sh"}
		if path, err := exec.LookPath("bash"); err == nil {
			prefix = []string{path, "--norc", "--noprofile"}
		} else if _, err := exec.LookPath("sh"); err != nil {
			return Transport{}, errors.New("local transport: this machine has neither bash nor sh in PATH")
		}
	}
	t, err := command.New(command.Config{Prefix: prefix, PrefixIsShell: true, Dir: cfg.Dir, Env: cfg.Env})
	return Transport{t}, err
}
