package workerd

import (
	"os/user"
	"strconv"
	"strings"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// ownPrefix marks the worker's own variables, which no child gets.
const ownPrefix = "SANDBUS_"

// defaults keep programs from waiting for a person. Where only is set, an existing value stays.
var defaults = []struct {
	name, value string
	only        bool // when it is not set
}{
	{"LANG", "C.UTF-8", true},
	{"PAGER", "cat", false},
	{"GIT_PAGER", "cat", false},
	{"GIT_EDITOR", "true", false},
	{"GIT_TERMINAL_PROMPT", "0", false},
	{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", true},
}

// childEnv is the environment of every command, made of the worker's. Commands that run as somebody else have that
// user's home and name.
func childEnv(as *proc.ID, own []string) []string {
	var env []string
	for _, v := range own {
		if !strings.HasPrefix(v, ownPrefix) {
			env = append(env, v)
		}
	}
	for _, d := range defaults {
		if !d.only || proc.Getenv(env, d.name) == "" {
			env = setenv(env, d.name, d.value)
		}
	}
	if as != nil {
		home, name := "/", strconv.FormatUint(uint64(as.UID), 10)
		if u, err := user.LookupId(name); err == nil { // else nobody has given it a name
			home, name = u.HomeDir, u.Username
		}
		env = setenv(setenv(setenv(env, "HOME", home), "USER", name), "LOGNAME", name)
	}
	return env
}

// setenv is a new environment in which a variable has one value.
func setenv(env []string, name, value string) []string {
	out := make([]string, 0, len(env)+1)
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			out = append(out, v)
		}
	}
	return append(out, name+"="+value)
}

// maxVariable is what the kernel takes as one string of an environment or argument list (MAX_ARG_STRLEN, 32 pages),
// with its NUL.
const maxVariable = 128<<10 - 1

// checkEnv returns the variables of a request as NAME=value. For a shell names must be shell names: it could not set
// others.
func checkEnv(vars []*sandbusv1.EnvVar, forShell bool) ([]string, error) {
	env := make([]string, 0, len(vars))
	for _, v := range vars {
		name, value := v.GetName(), bus.FromText(v.GetValue(), v.GetValueRaw())
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return nil, invalid("environment variable %.80q: a name is not empty and has no '=' and no NUL", name)
		case forShell && !isShellName(name):
			return nil, invalid("environment variable %.80q: a script's variables are named [A-Za-z_][A-Za-z0-9_]*", name)
		case strings.IndexByte(value, 0) >= 0:
			return nil, invalid("environment variable %s: the value has a NUL byte", name)
		case len(name)+1+len(value) > maxVariable:
			return nil, invalid("environment variable %.80s: %d bytes with its name, the bound is %d", name, len(name)+1+len(value), maxVariable)
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

func isShellName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func invalid(format string, args ...any) error {
	return bus.Errorf(sandbusv1.Code_CODE_INVALID, format, args...)
}
