package bus

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// MaxToken is the longest subject token, in bytes.
const MaxToken = 63

// The names that stand in subjects. Each is one token, [a-z0-9][a-z0-9_-]{0,62}; a value that did not come from the
// type's Parse or New function must not reach this package.
type (
	// Zone is a site or a tenant's pool.
	Zone string
	// SandboxID names a sandbox within its zone.
	SandboxID string
	// InstanceID tells two starts of a worker apart.
	InstanceID string
	// HarnessID is the identity of a harness, as its credential states it.
	HarnessID string
	// ConnID tells two processes of one harness identity apart.
	ConnID string
	// SessionID names a shell session of one harness in one sandbox. It stands in no subject.
	SessionID string
	// OpID names one request for good. An exec's ExecID is the op of the request that started it.
	OpID string
)

// DefaultZone is the zone of those who name none.
const DefaultZone Zone = "main"

// IDError is a name that cannot be a subject token.
type IDError struct {
	What  string // what the name was to be: "sandbox id", "zone"
	Value string // the name that was given
}

func (e *IDError) Error() string {
	v := e.Value
	if len(v) > 80 {
		v = v[:80] + "…"
	}
	return fmt.Sprintf("%s %q: want 1 to %d of a-z, 0-9, '_' and '-', beginning with a letter or digit", e.What, v, MaxToken)
}

func isToken(s string) bool {
	if s == "" || len(s) > MaxToken || s[0] == '_' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func parseToken[T ~string](what, s string) (T, error) {
	if !isToken(s) {
		return "", &IDError{What: what, Value: s}
	}
	return T(s), nil
}

// CheckToken checks a name of another kind, such as a tenant's, by the rule of all names. Errors: *[IDError].
func CheckToken(what, s string) error {
	_, err := parseToken[string](what, s)
	return err
}

// ParseZone checks a zone's name. Errors: *[IDError].
func ParseZone(s string) (Zone, error) { return parseToken[Zone]("zone", s) }

// ParseSandboxID checks a sandbox id. Errors: *[IDError].
func ParseSandboxID(s string) (SandboxID, error) { return parseToken[SandboxID]("sandbox id", s) }

// ParseInstanceID checks an instance id. Errors: *[IDError].
func ParseInstanceID(s string) (InstanceID, error) { return parseToken[InstanceID]("instance", s) }

// ParseHarnessID checks a harness id. Errors: *[IDError].
func ParseHarnessID(s string) (HarnessID, error) { return parseToken[HarnessID]("harness id", s) }

// ParseSessionID checks a session's name. Errors: *[IDError].
func ParseSessionID(s string) (SessionID, error) { return parseToken[SessionID]("session", s) }

// ParseOpID checks an op. Errors: *[IDError].
func ParseOpID(s string) (OpID, error) { return parseToken[OpID]("op", s) }

// NewInstanceID makes the id of one start of a worker.
func NewInstanceID() InstanceID { return InstanceID(uuid.NewString()) }

// NewConnID makes the id of one connection of a harness.
func NewConnID() ConnID { return ConnID(strings.ReplaceAll(uuid.NewString(), "-", "")[:12]) }

// NewOpID makes an op that nobody has used: a UUIDv7, so that ops sort by their time.
func NewOpID() OpID {
	id, err := uuid.NewV7()
	if err != nil { // the system's random source is gone: nothing can be named safely
		panic(fmt.Sprintf("bus: no random numbers: %v", err))
	}
	return OpID(id.String())
}
