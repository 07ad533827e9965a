package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
)

// DefaultTenant is the tenant of those who name none.
const DefaultTenant = "main"

// systemTenant is the folder of the system account; no tenant can have its name.
const systemTenant = "_system"

// The files of a directory of keys. A host that only mints needs tenants/<tenant>/account.jwt and the keys of the roles
// that it mints for; only the host that revokes needs operator.nk.
const (
	operatorKey  = "operator.nk"
	operatorJWT  = "operator.jwt"
	accountJWT   = "account.jwt"
	registerFile = "issued.jsonl"
	lockFile     = "lock"
)

// Keys is a directory of keys.
type Keys struct {
	dir          string
	register     string
	operator     *jwt.OperatorClaims
	operatorText string // the claims, signed
}

// ErrNoKeys says that a directory holds no keys.
var ErrNoKeys = errors.New("no keys there")

// Open uses a directory of keys. register is the file that lists what was issued; empty means one in the directory.
// Errors: ErrNoKeys, an unreadable or damaged file.
func Open(dir, register string) (*Keys, error) {
	text, err := os.ReadFile(filepath.Join(dir, operatorJWT))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("keys in %s: %w; make them by \"sandbus auth init\"", dir, ErrNoKeys)
	}
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	op, err := jwt.DecodeOperatorClaims(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", filepath.Join(dir, operatorJWT), err)
	}
	if register == "" {
		register = filepath.Join(dir, registerFile)
	}
	return &Keys{dir: dir, register: register, operator: op, operatorText: strings.TrimSpace(string(text))}, nil
}

// Init makes a directory of keys with an operator and a system account, or uses the one that is there, and makes a
// tenant's account in it. Errors: the tenant exists already, an illegal name, the system's.
func Init(dir, register, tenant string) (*Keys, error) {
	if err := bus.CheckToken("tenant", tenant); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k, err := Open(dir, register)
	if errors.Is(err, ErrNoKeys) {
		if err := makeOperator(dir); err != nil {
			return nil, err
		}
		k, err = Open(dir, register)
	}
	if err != nil {
		return nil, err
	}
	return k, k.addTenant(tenant)
}

// makeOperator writes an operator and its system account. operator.jwt comes last: with it the directory is one.
func makeOperator(dir string) error {
	op, err := nkeys.CreateOperator()
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	defer op.Wipe()
	pub, err := op.PublicKey()
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if err := writeSeed(filepath.Join(dir, operatorKey), op); err != nil {
		return err
	}
	claims := jwt.NewOperatorClaims(pub)
	claims.Name = "sandbus"
	k := &Keys{dir: dir, operator: claims}
	system, err := k.makeAccount(op, systemTenant)
	if err != nil {
		return err
	}
	claims.SystemAccount = system
	text, err := claims.Encode(op)
	if err != nil {
		return fmt.Errorf("keys: operator: %w", err)
	}
	return writeNew(filepath.Join(dir, operatorJWT), text+"\n")
}

func (k *Keys) addTenant(tenant string) error {
	if _, err := os.Stat(k.tenantDir(tenant)); err == nil {
		return fmt.Errorf("tenant %s: there are keys in %s already", tenant, k.tenantDir(tenant))
	}
	op, err := k.operatorSeed()
	if err != nil {
		return err
	}
	defer op.Wipe()
	_, err = k.makeAccount(op, tenant)
	return err
}

// makeAccount writes an account with a signing key for each of its roles, and returns its public key.
func (k *Keys) makeAccount(op nkeys.KeyPair, tenant string) (string, error) {
	acc, err := nkeys.CreateAccount()
	if err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	defer acc.Wipe() // its seed is needed for nothing, see the package's doc
	pub, err := acc.PublicKey()
	if err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(k.tenantDir(tenant), "roles"), 0o700); err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	claims := jwt.NewAccountClaims(pub)
	claims.Name = tenant
	if tenant != systemTenant {
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
			MemoryStorage: accountMemory, DiskStorage: accountDisk, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
		}
	}
	for _, role := range rolesOf(tenant) {
		key, err := nkeys.CreateAccount()
		if err != nil {
			return "", fmt.Errorf("keys: %w", err)
		}
		defer key.Wipe()
		scope, err := scopeOf(role, key)
		if err != nil {
			return "", err
		}
		claims.SigningKeys.AddScopedSigner(scope)
		if err := writeSeed(k.roleKey(tenant, role), key); err != nil {
			return "", err
		}
	}
	text, err := claims.Encode(op)
	if err != nil {
		return "", fmt.Errorf("keys: account %s: %w", tenant, err)
	}
	return pub, writeNew(filepath.Join(k.tenantDir(tenant), accountJWT), text+"\n")
}

// What JetStream may hold for one tenant, in bytes. Presence of 10,000 sandboxes takes about 20 MiB.
const (
	accountMemory = 256 << 20
	accountDisk   = 1 << 30
)

func rolesOf(tenant string) []bus.Role {
	return slices.DeleteFunc(bus.Roles(), func(r bus.Role) bool { return r.InSystemAccount() != (tenant == systemTenant) })
}

// Limits of a sandbox's connection: a worker takes a handful of subscriptions.
const (
	maxPayload  = 1 << 20
	sandboxSubs = 64
)

// scopeOf is what a role's signing key may make: members of the role.
func scopeOf(role bus.Role, key nkeys.KeyPair) (*jwt.UserScope, error) {
	pub, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	s := jwt.NewUserScope()
	s.Key, s.Role = pub, string(role)
	p := bus.TemplatePermissions(role)
	s.Template.Sub.Allow.Add(p.Subscribe...)
	s.Template.Pub.Allow.Add(p.Publish...)
	s.Template.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess)
	switch role {
	case bus.RoleSandbox:
		s.Template.Payload, s.Template.Subs = maxPayload, sandboxSubs
	case bus.RoleSite:
		s.Template.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS}
	case bus.RoleHarness, bus.RoleRegistrar, bus.RoleSystem, bus.RoleAdmin:
	}
	return s, nil
}

// Dir is the directory of the keys.
func (k *Keys) Dir() string { return k.dir }

// Operator is the operator's public key.
func (k *Keys) Operator() string { return k.operator.Subject }

// Tenants lists the tenants that have an account, sorted.
func (k *Keys) Tenants() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(k.dir, "tenants"))
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	var out []string
	for _, e := range entries {
		if bus.CheckToken("tenant", e.Name()) == nil {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func (k *Keys) tenantDir(tenant string) string {
	if tenant == systemTenant {
		return filepath.Join(k.dir, "system")
	}
	return filepath.Join(k.dir, "tenants", tenant)
}

func (k *Keys) roleKey(tenant string, role bus.Role) string {
	return filepath.Join(k.tenantDir(tenant), "roles", string(role)+".nk")
}

// account reads a tenant's claims, and their text.
func (k *Keys) account(tenant string) (*jwt.AccountClaims, string, error) {
	path := filepath.Join(k.tenantDir(tenant), accountJWT)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("tenant %q: %w: %s does not exist; make it by \"sandbus auth init --tenant\"", tenant, ErrNoKeys, path)
	}
	if err != nil {
		return nil, "", fmt.Errorf("keys: %w", err)
	}
	claims, err := jwt.DecodeAccountClaims(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, "", fmt.Errorf("keys: %s: %w", path, err)
	}
	return claims, strings.TrimSpace(string(text)), nil
}

func (k *Keys) operatorSeed() (nkeys.KeyPair, error) {
	return readSeed(filepath.Join(k.dir, operatorKey))
}

// readSeed reads a secret key. Errors: others can read the file, it holds no seed, the system's.
func readSeed(path string) (nkeys.KeyPair, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	// As ssh has it: a file of our own is for us alone. One that somebody mounted for us may be shared by a group, as
	// Kubernetes does with secrets, but not with everybody.
	open := fs.FileMode(0o007)
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Getuid() {
		open = 0o077
	}
	if mode := fi.Mode().Perm(); mode&open != 0 {
		return nil, fmt.Errorf("key %s: its mode is %04o, so others may use it: want 0600", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(text))))
	if err != nil {
		return nil, fmt.Errorf("key %s: it holds no seed: %w", path, err)
	}
	return key, nil
}

func writeSeed(path string, key nkeys.KeyPair) error {
	seed, err := key.Seed()
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return writeNew(path, string(seed)+"\n")
}

// writeNew writes a file that must not be there, for its owner only.
func writeNew(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keys: write %s: %w", path, err)
	}
	return nil
}

// replace writes a file anew, for its owner only; whoever reads it sees the old text or the new one.
func replace(path, text string) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keys: %w", err)
	}
	if err := writeNew(tmp, text); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return nil
}

// lockDir keeps others from changing the directory at the same time.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close() // was not ours
		return nil, fmt.Errorf("keys: lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil // releases the lock
}
