package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// claimsWait is how long a hub may take to answer about an account's claims.
const claimsWait = 5 * time.Second

// LookupClaims asks the hub for the claims that it has of an account: a JWT, empty when it has none. The connection must
// have an admin's credential.
func LookupClaims(ctx context.Context, c *Conn, account string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, claimsWait)
	defer cancel()
	m, err := c.nc.RequestWithContext(ctx, "$SYS.REQ.ACCOUNT."+account+".CLAIMS.LOOKUP", nil)
	if err != nil {
		return "", fmt.Errorf("look up account %s at the hub: %w", account, err)
	}
	return string(m.Data), nil
}

// UpdateClaims hands an account's claims to the hub, which takes them at once: those who are revoked in them are
// disconnected. The connection must have an admin's credential.
func UpdateClaims(ctx context.Context, c *Conn, claims string) error {
	ctx, cancel := context.WithTimeout(ctx, claimsWait)
	defer cancel()
	m, err := c.nc.RequestWithContext(ctx, "$SYS.REQ.CLAIMS.UPDATE", []byte(claims))
	if err != nil {
		return fmt.Errorf("hand account claims to the hub: %w", err)
	}
	var answer struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("hand account claims to the hub: unreadable answer: %w", err)
	}
	if answer.Error != nil {
		return fmt.Errorf("the hub refuses the account claims: %s", answer.Error.Description)
	}
	return nil
}
