package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/sandbus/sandbus/bus"
)

// Minter makes the credentials of one role of one tenant, and enters each into the register. It may be used by many
// goroutines.
type Minter struct {
	tenant  string
	role    bus.Role
	account string
	mark    string
	key     nkeys.KeyPair

	mu       sync.Mutex // guards the field below
	register *os.File
}

// Minter reads a role's key. The minter must be closed. Errors: the tenant has no account or no key for the role, the
// key is not the one that the account names, the register cannot be written.
func (k *Keys) Minter(tenant string, role bus.Role) (*Minter, error) {
	switch {
	case role.InSystemAccount():
		tenant = systemTenant
	default:
		if err := bus.CheckToken("tenant", tenant); err != nil {
			return nil, err
		}
	}
	account, _, err := k.account(tenant)
	if err != nil {
		return nil, err
	}
	key, err := readSeed(k.roleKey(tenant, role))
	if err != nil {
		return nil, err
	}
	pub, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k.roleKey(tenant, role), err)
	}
	if scope, ok := account.SigningKeys.GetScope(pub); !ok || scope == nil {
		return nil, fmt.Errorf("key %s: account %s does not name it for a role", k.roleKey(tenant, role), tenant)
	}
	register, err := os.OpenFile(k.register, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("register of what was issued: %w", err)
	}
	return &Minter{
		tenant: tenant, role: role, account: account.Subject, mark: bus.OperatorMark(k.Operator()), key: key, register: register,
	}, nil
}

// Close forgets the key. It may be called twice.
func (m *Minter) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.register == nil {
		return nil
	}
	m.key.Wipe()
	err := m.register.Close()
	m.register = nil
	return err
}

// minTTL is the shortest life of a credential: times in a JWT are whole seconds.
const minTTL = time.Second

// Issue makes a credential; ttl zero means that it does not expire. There is no "not before": a hub whose clock is
// behind takes it too; one whose clock is ahead ends it that much earlier. Errors: an illegal name, another role than
// the minter's, a ttl that is too short, the register cannot be written.
func (m *Minter) Issue(id bus.Identity, ttl time.Duration) (bus.Credential, error) {
	if id.Role != m.role {
		return bus.Credential{}, fmt.Errorf("issue for %s: the key is that of role %s", id, m.role)
	}
	// The hub puts the name into subjects as it is: one such as "*" would be a key to everything.
	if err := id.Check(); err != nil {
		return bus.Credential{}, err
	}
	if ttl != 0 && ttl < minTTL {
		return bus.Credential{}, fmt.Errorf("life of a credential %s: want at least %s, or 0 for one without end", ttl, minTTL)
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		return bus.Credential{}, fmt.Errorf("issue: %w", err)
	}
	defer key.Wipe()
	pub, err := key.PublicKey()
	if err != nil {
		return bus.Credential{}, fmt.Errorf("issue: %w", err)
	}
	claims := jwt.NewUserClaims(pub)
	claims.SetScoped(true)
	claims.IssuerAccount, claims.Name = m.account, id.Name
	claims.Tags.Add(append(id.Tags(), bus.TagOperator+m.mark)...)
	now := time.Now()
	if ttl != 0 {
		claims.Expires = now.Add(ttl).Unix()
	}
	text, err := claims.Encode(m.key)
	if err != nil {
		return bus.Credential{}, fmt.Errorf("issue: %w", err)
	}
	seed, err := key.Seed()
	if err != nil {
		return bus.Credential{}, fmt.Errorf("issue: %w", err)
	}
	cred := bus.MintedCredential(claims, text, string(seed))
	if err := m.enter(cred); err != nil { // what nobody could revoke is not handed out
		return bus.Credential{}, err
	}
	return cred, nil
}

// Entry is one line of the register: a credential that was issued. It holds no secret.
type Entry struct {
	Tenant  string     `json:"tenant"`
	Role    bus.Role   `json:"role"`
	Zone    bus.Zone   `json:"zone"`
	Zones   []bus.Zone `json:"zones,omitempty"`
	Name    string     `json:"name"`
	Key     string     `json:"key"` // the holder's public key
	Issued  time.Time  `json:"issued"`
	Expires time.Time  `json:"expires,omitzero"`
	Revoked bool       `json:"revoked,omitempty"` // not in the file: the account's claims say it
}

func (m *Minter) enter(cred bus.Credential) error {
	id := cred.Identity()
	d, _ := cred.Details()
	line, err := json.Marshal(Entry{
		Tenant: m.tenant, Role: id.Role, Zone: id.Zone, Zones: id.Zones, Name: id.Name,
		Key: d.Key, Issued: d.Issued.UTC(), Expires: utc(d.Expires),
	})
	if err != nil {
		return fmt.Errorf("register of what was issued: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.register == nil {
		return errors.New("issue: the minter is closed")
	}
	if _, err := m.register.Write(append(line, '\n')); err != nil { // one write: other processes append too
		return fmt.Errorf("register of what was issued: %w", err)
	}
	return nil
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// Issue makes one credential of any role.
func (k *Keys) Issue(tenant string, id bus.Identity, ttl time.Duration) (cred bus.Credential, err error) {
	m, err := k.Minter(tenant, id.Role)
	if err != nil {
		return bus.Credential{}, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return m.Issue(id, ttl)
}
