package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// tokenPrefix is the version mark of a token.
const tokenPrefix = "sbt1"

// Credential is what a client shows to the hub. Its zero value is no credential, with which a hub refuses everybody.
type Credential struct {
	id    Identity
	token string
}

// NewCredential is a token for an identity, with the proof that the issuer computed. The token's form is
// sbt1.<role>.<zone>.<name>.<proof>.
func NewCredential(id Identity, proof string) (Credential, error) {
	if err := id.Check(); err != nil {
		return Credential{}, err
	}
	return Credential{id: id, token: join(tokenPrefix, string(id.Role), string(id.Zone), id.Name, proof)}, nil
}

// ErrCredential is a credential that has no readable form. Its text never contains the credential.
var ErrCredential = errors.New("not a sandbus credential")

// ParseCredential reads a token. Errors wrap [ErrCredential].
func ParseCredential(token string) (Credential, error) {
	t := strings.Split(strings.TrimSpace(token), ".")
	if len(t) != 5 || t[0] != tokenPrefix || t[4] == "" {
		return Credential{}, fmt.Errorf("%w: want %s.<role>.<zone>.<name>.<proof>, got %d parts", ErrCredential, tokenPrefix, len(t))
	}
	id := Identity{Role: Role(t[1]), Zone: Zone(t[2]), Name: t[3]}
	if err := id.Check(); err != nil {
		return Credential{}, fmt.Errorf("%w: %w", ErrCredential, err)
	}
	return Credential{id: id, token: strings.TrimSpace(token)}, nil
}

// maxCredentialFile bounds what is read of a credential file, in bytes.
const maxCredentialFile = 64 << 10

// LoadCredential reads a token from a file. Errors name the file, and wrap [ErrCredential] or the system's error.
func LoadCredential(path string) (Credential, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Credential{}, fmt.Errorf("credential file: %w", err)
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxCredentialFile {
		return Credential{}, fmt.Errorf("credential file %s: %w: want a regular file of at most %d bytes", path, ErrCredential, maxCredentialFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Credential{}, fmt.Errorf("credential file: %w", err)
	}
	c, err := ParseCredential(string(b))
	if err != nil {
		return Credential{}, fmt.Errorf("credential file %s: %w", path, err)
	}
	return c, nil
}

// WriteFile stores the credential for LoadCredential, readable by its owner only.
func (c Credential) WriteFile(path string, perm fs.FileMode) error {
	return os.WriteFile(path, []byte(c.token+"\n"), perm)
}

// Identity is what the credential says of its holder. The hub checks it; the client uses it to choose its subjects.
func (c Credential) Identity() Identity { return c.id }

// IsZero says that there is no credential.
func (c Credential) IsZero() bool { return c.token == "" }

// Token is the secret text. It belongs into no log, no argument list and no child's environment.
func (c Credential) Token() string { return c.token }

// Proof is the issuer's part of the token.
func (c Credential) Proof() string { return c.token[strings.LastIndexByte(c.token, '.')+1:] }

// String hides the secret, so that a credential that is printed by mistake tells nothing.
func (c Credential) String() string { return c.id.String() + " (secret hidden)" }

// GoString hides the secret like String.
func (c Credential) GoString() string { return c.String() }
