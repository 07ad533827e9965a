package auth

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/sandbus/sandbus/bus"
)

// Issued lists what the register has, in the order of issue, with what was revoked since. Errors: an unreadable or
// damaged register, naming the line.
func (k *Keys) Issued() ([]Entry, error) {
	f, err := os.Open(k.register)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("register of what was issued: %w", err)
	}
	defer func() { _ = f.Close() }() // was only read
	accounts := map[string]*jwt.AccountClaims{}
	var out []Entry
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("register %s, line %d: %w", k.register, len(out)+1, err)
		}
		account := accounts[e.Tenant]
		if account == nil {
			if account, _, err = k.account(e.Tenant); err != nil {
				return nil, err
			}
			accounts[e.Tenant] = account
		}
		e.Revoked = account.Revocations.IsRevoked(e.Key, e.Issued)
		out = append(out, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("register %s: %w", k.register, err)
	}
	return out, nil
}

// ErrNothingToRevoke says that no credential is left that could be revoked.
var ErrNothingToRevoke = errors.New("nothing to revoke")

// IsHolder says whether a text is the public key of a credential's holder.
func IsHolder(s string) bool { return nkeys.IsValidPublicUserKey(s) }

// Find lists the credentials of an identity that are neither revoked nor expired. Errors: ErrNothingToRevoke.
func (k *Keys) Find(tenant string, role bus.Role, zone bus.Zone, name string) ([]Entry, error) {
	if role.InSystemAccount() {
		tenant = systemTenant
	}
	all, err := k.Issued()
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(all, func(e Entry) bool {
		over := !e.Expires.IsZero() && time.Since(e.Expires) > skew
		return e.Tenant != tenant || e.Role != role || e.Zone != zone || e.Name != name || e.Revoked || over
	})
	if len(found) == 0 {
		return nil, fmt.Errorf("%s %s.%s: %w: the register has no live credential of it", role, zone, name, ErrNothingToRevoke)
	}
	return found, nil
}

// skew is how far the clocks of issuer and hub may be apart.
const skew = 2 * time.Minute

// Admin makes a credential that may hand the hub newer account claims, for the next minutes.
func (k *Keys) Admin() (bus.Credential, error) {
	return k.Issue(systemTenant, bus.Identity{Role: bus.RoleAdmin, Zone: bus.DefaultZone, Name: "auth"}, 5*time.Minute)
}

// Revoke ends credentials for good, by their holders' public keys: it writes the tenant's account anew, and hands it
// to the hub, which disconnects those who are connected. With hub nil nothing is handed over, and Push does it later.
// Needs the operator's key.
func (k *Keys) Revoke(ctx context.Context, hub *bus.Conn, tenant string, holders ...string) error {
	return k.update(ctx, hub, tenant, func(account *jwt.AccountClaims) {
		for _, h := range holders {
			// A holder's key is never used again, so its end may lie ahead: the issuer's clock may have.
			account.RevokeAt(h, time.Now().Add(time.Hour))
		}
	})
}

// Push hands a tenant's account to the hub as it is here, with what others have revoked there.
func (k *Keys) Push(ctx context.Context, hub *bus.Conn, tenant string) error {
	return k.update(ctx, hub, tenant, func(*jwt.AccountClaims) {})
}

// update changes a tenant's account, here and at the hub.
func (k *Keys) update(ctx context.Context, hub *bus.Conn, tenant string, change func(*jwt.AccountClaims)) error {
	unlock, err := lockDir(k.dir)
	if err != nil {
		return err
	}
	defer unlock()
	account, _, err := k.account(tenant)
	if err != nil {
		return err
	}
	if hub != nil {
		if err := merge(ctx, hub, account); err != nil {
			return err
		}
	}
	if err := k.prune(account); err != nil {
		return err
	}
	change(account)
	before := account.IssuedAt
	op, err := k.operatorSeed()
	if err != nil {
		return err
	}
	defer op.Wipe()
	if err := k.sign(ctx, hub, op, tenant, account); err != nil || account.IssuedAt > before {
		return err
	}
	// Signed within the same second as the claims before, or with a clock that is behind: a hub that is started anew from
	// an older configuration could prefer those. It has been told at once; make sure that it stays so.
	if err := laterThan(ctx, before); err != nil {
		return err
	}
	return k.sign(ctx, hub, op, tenant, account)
}

// sign stores a tenant's account, and hands it to the hub.
func (k *Keys) sign(ctx context.Context, hub *bus.Conn, op nkeys.KeyPair, tenant string, account *jwt.AccountClaims) error {
	text, err := account.Encode(op)
	if err != nil {
		return fmt.Errorf("account %s: %w", tenant, err)
	}
	if err := replace(filepath.Join(k.tenantDir(tenant), accountJWT), text+"\n"); err != nil {
		return err
	}
	if hub == nil {
		return nil
	}
	return bus.UpdateClaims(ctx, hub, text)
}

// merge takes over what the hub's claims revoke: the hub takes what it is given, so that a directory that did not know
// of a revocation would undo it.
func merge(ctx context.Context, hub *bus.Conn, account *jwt.AccountClaims) error {
	text, err := bus.LookupClaims(ctx, hub, account.Subject)
	if err != nil {
		return err
	}
	if text == "" {
		return nil
	}
	there, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		return fmt.Errorf("account claims of the hub: %w", err)
	}
	for key, at := range there.Revocations {
		account.RevokeAt(key, time.Unix(at, 0))
	}
	account.IssuedAt = max(account.IssuedAt, there.IssuedAt)
	return nil
}

// prune drops revocations of what has expired, so that an account's claims do not grow for ever.
func (k *Keys) prune(account *jwt.AccountClaims) error {
	all, err := k.Issued()
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Revoked && !e.Expires.IsZero() && time.Since(e.Expires) > time.Hour {
			account.ClearRevocation(e.Key)
		}
	}
	return nil
}

// laterThan waits until our clock is past a second in which claims were signed: of two claims a hub that starts takes
// the later one, and of equally old ones any. Errors: the clock is too far behind.
func laterThan(ctx context.Context, signed int64) error {
	wait := time.Until(time.Unix(signed+1, 0))
	if wait > skew {
		return fmt.Errorf("the account's claims were signed %s ahead of this clock: set the clock", wait.Round(time.Second))
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
