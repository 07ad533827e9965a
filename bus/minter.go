package bus

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// Minter issues and checks the tokens of an embedded hub: the proof in a token is a keyed hash of its identity, so
// that minting needs no register and a hub needs only its key.
type Minter struct{ key []byte }

// minterKeyBytes is the length of a key: as long as the hash.
const minterKeyBytes = sha256.Size

// NewMinter makes a minter with a random key.
func NewMinter() *Minter {
	key := make([]byte, minterKeyBytes)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	return &Minter{key: key}
}

// ParseMinter reads the key that Key printed.
func ParseMinter(key string) (*Minter, error) {
	b, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil || len(b) != minterKeyBytes {
		return nil, fmt.Errorf("hub key: want %d bytes in unpadded URL base64", minterKeyBytes)
	}
	return &Minter{key: b}, nil
}

// Key is the secret from which all tokens of the hub follow.
func (m *Minter) Key() string { return base64.RawURLEncoding.EncodeToString(m.key) }

// Issue makes the credential of an identity. Errors: an illegal name or role.
func (m *Minter) Issue(id Identity) (Credential, error) { return NewCredential(id, m.proof(id)) }

// ErrForged is a token that this minter did not issue.
var ErrForged = errors.New("credential was not issued by this hub")

// Verify checks a token. Errors: ErrCredential, ErrForged.
func (m *Minter) Verify(token string) (Identity, error) {
	c, err := ParseCredential(token)
	if err != nil {
		return Identity{}, err
	}
	if !hmac.Equal([]byte(c.Proof()), []byte(m.proof(c.Identity()))) {
		return Identity{}, ErrForged
	}
	return c.Identity(), nil
}

func (m *Minter) proof(id Identity) string {
	h := hmac.New(sha256.New, m.key)
	_, _ = fmt.Fprintf(h, "%s.%s.%s.%s", tokenPrefix, id.Role, id.zonePart(), id.Name) // a hash never fails
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
