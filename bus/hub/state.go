package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
)

// State is what a running hub leaves in its directory, for other programs of the same user.
type State struct {
	URL string `json:"url"`
	Key string `json:"key,omitempty"` // the minter's: whoever reads it may be anybody at this hub
	PID int    `json:"pid"`
	// Keys is the directory of the operator's keys that the hub trusts instead of a key of its own.
	Keys       string `json:"keys,omitempty"`
	CA         string `json:"ca,omitempty"`          // file of the authorities to trust for the hub's certificate
	ServerName string `json:"server_name,omitempty"` // that its certificate has
}

// Issuer makes credentials for a hub.
type Issuer interface {
	Issue(id bus.Identity) (bus.Credential, error)
}

// keysIssuer makes credentials of an operator for programs of this machine.
type keysIssuer struct{ keys *auth.Keys }

// commandLife is how long the credential of one command of a harness lives: each is entered into the register.
const commandLife = 24 * time.Hour

// Issue implements Issuer: a harness gets a credential for a day, all others one without end.
func (k *keysIssuer) Issue(id bus.Identity) (bus.Credential, error) {
	var ttl time.Duration
	if id.Role == bus.RoleHarness {
		ttl = commandLife
	}
	return k.keys.Issue(auth.DefaultTenant, id, ttl)
}

const (
	stateFile = "hub.json" // mode 0600
	lockFile  = "lock"
	keyFile   = "key" // mode 0600; it stays, so that tokens outlive a hub that was killed or stopped
)

// DefaultDir is where a user's own hub keeps its state: $SANDBUS_STATE_DIR, else $XDG_STATE_HOME/sandbus, else
// ~/.local/state/sandbus.
func DefaultDir() (string, error) {
	if d := os.Getenv("SANDBUS_STATE_DIR"); d != "" {
		return d, nil
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sandbus"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the hub's state: %w; set SANDBUS_STATE_DIR", err)
	}
	return filepath.Join(home, ".local", "state", "sandbus"), nil
}

// absolute is a path as programs in other directories find it.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// stateDir is a directory that this process has locked.
type stateDir struct {
	dir  string
	lock *os.File
}

// lockState takes a directory for one hub. Two servers on one JetStream directory would both start without complaint.
func lockState(dir string) (*stateDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("hub directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hub directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // was not ours
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("hub directory %s: %w", dir, ErrRunning)
		}
		return nil, fmt.Errorf("lock hub directory %s: %w", dir, err)
	}
	return &stateDir{dir: dir, lock: f}, nil
}

// minter is that of the hub that was here before, or a new one. Errors: the key cannot be read or written, or is none.
func (s *stateDir) minter() (*bus.Minter, error) {
	path := filepath.Join(s.dir, keyFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		m := bus.NewMinter()
		return m, s.write(keyFile, []byte(m.Key()))
	}
	if err != nil {
		return nil, fmt.Errorf("hub key: %w", err)
	}
	m, err := bus.ParseMinter(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file to begin with a new key, which no present token fits", path, err)
	}
	return m, nil
}

func (s *stateDir) publish(st State) error {
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("hub state: %w", err)
	}
	return s.write(stateFile, b)
}

// write puts a line into a file of the directory, whole or not at all.
func (s *stateDir) write(name string, line []byte) error {
	tmp, err := os.CreateTemp(s.dir, name+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("hub state: %w", err)
	}
	_, err = tmp.Write(append(line, '\n'))
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(s.dir, name))
	}
	if err != nil {
		return fmt.Errorf("hub state: %w", errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

func (s *stateDir) release() {
	_ = os.Remove(filepath.Join(s.dir, stateFile)) // may not be there
	_ = s.lock.Close()                             // releases the lock
}

// Find returns the state of the hub that runs on a directory, with who issues credentials for it, and whether there is
// one.
func Find(dir string) (State, Issuer, bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil, false, nil
	}
	if err != nil {
		return State{}, nil, false, fmt.Errorf("hub state: %w", err)
	}
	if s, err := lockState(dir); err == nil { // nobody holds it: the file is left from a hub that was killed
		_ = s.lock.Close()
		return State{}, nil, false, nil
	}
	var st State
	if err := json.Unmarshal(b, &st); err != nil {
		return State{}, nil, false, fmt.Errorf("hub state %s: %w", filepath.Join(dir, stateFile), err)
	}
	if st.Keys != "" {
		keys, err := auth.Open(st.Keys, "")
		if err != nil {
			return State{}, nil, false, fmt.Errorf("hub state %s: %w", filepath.Join(dir, stateFile), err)
		}
		return st, &keysIssuer{keys}, true, nil
	}
	m, err := bus.ParseMinter(st.Key)
	if err != nil {
		return State{}, nil, false, fmt.Errorf("hub state %s: %w", filepath.Join(dir, stateFile), err)
	}
	return st, m, true, nil
}
