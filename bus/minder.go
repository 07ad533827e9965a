package bus

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrRefused says that the hub does not accept the credential. The errors below wrap it and say why.
var ErrRefused = errors.New("the hub refuses the credential")

// Why a hub refuses a credential.
var (
	ErrExpired error = &refusal{"it has expired"}
	ErrRevoked error = &refusal{"it was revoked"}
	// ErrForeign says that somebody else issued it than the one whom the hub trusts.
	ErrForeign error = &refusal{"it is foreign to this hub"}
)

type refusal struct{ why string }

func (r *refusal) Error() string { return ErrRefused.Error() + ": " + r.why }
func (r *refusal) Unwrap() error { return ErrRefused }

const (
	// skew is how far two clocks may be apart before a credential's times are held against it here.
	skew = 2 * time.Minute
	// defaultPatience is how long a connection that was accepted once goes on trying while the hub refuses it: a hub that
	// restarts may not know its accounts yet.
	defaultPatience = 30 * time.Second
	// renewPause is the least time between two questions for a newer credential while the hub refuses the present one.
	renewPause = time.Second
	// renewAhead is how long before its end a credential is renewed, if it lives long enough: well above skew.
	renewAhead = 10 * time.Minute
)

// mind looks after the credential until ctx ends with the connection: it renews it in time, and ends the connection when
// the hub refuses it for good.
func (c *Conn) mind(ctx context.Context, cfg Config) {
	patience := cfg.RefusalPatience
	if patience == 0 {
		patience = defaultPatience
	}
	renewal := newRenewal(c.credential())
	if cfg.Renew == nil {
		renewal.timer.Stop()
	}
	defer func() { renewal.timer.Stop() }()
	var since, asked time.Time // when the first refusal in a row came, and when the source was asked last
	for {
		select {
		case <-ctx.Done():
			return
		case <-renewal.timer.C:
			if c.renew(ctx, cfg) {
				renewal = newRenewal(c.credential())
				if err := c.nc.ForceReconnect(); err != nil {
					c.log.Debug("no reconnect with the renewed credential", "error", err)
				}
			} else {
				renewal.again()
			}
		case <-c.accepted:
			since = time.Time{}
		case err := <-c.refused:
			again := time.Since(asked) >= renewPause
			if again {
				asked = time.Now()
			}
			if again && c.renew(ctx, cfg) { // nats.go takes it at its next attempt
				renewal = newRenewal(c.credential())
				since = time.Time{}
				continue
			}
			if since.IsZero() {
				since = time.Now()
			}
			why := c.whyRefused(ctx, cfg, err)
			if errors.Is(why, ErrExpired) || errors.Is(err, nats.ErrAuthRevoked) || time.Since(since) >= patience {
				c.end(why)
				return
			}
			c.log.Warn("hub refuses us, trying on", "error", why, "since", since)
		}
	}
}

// renewal is when to renew a credential.
type renewal struct {
	timer *time.Timer
	retry time.Duration
}

func newRenewal(cred Credential) *renewal {
	d, _ := cred.Details()
	if d.Expires.IsZero() {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return &renewal{timer: t}
	}
	// By its issuer's clock it lives that long; how much of it has passed by ours is not to be relied on for more than
	// the skew.
	ahead := min(renewAhead, d.Expires.Sub(d.Issued)/3)
	return &renewal{
		timer: time.NewTimer(max(0, time.Until(d.Expires.Add(-ahead)))),
		retry: max(100*time.Millisecond, ahead/20),
	}
}

func (r *renewal) again() { r.timer.Reset(r.retry) }

// renew takes a newer credential from its source. It returns false when there is none.
func (c *Conn) renew(ctx context.Context, cfg Config) bool {
	if cfg.Renew == nil {
		return false
	}
	old := c.credential()
	next, err := cfg.Renew(ctx)
	switch {
	case err != nil:
		c.log.Warn("credential not renewed", "error", err, "expires", old.Expires())
		return false
	case next.Identity().String() != old.Identity().String():
		c.log.Warn("credential not renewed: it is for somebody else", "want", old.Identity().String(), "got", next.Identity().String())
		return false
	case next.Token() == old.Token():
		c.log.Debug("credential not renewed: there is no newer one", "expires", old.Expires())
		return false
	}
	c.mu.Lock()
	c.cred = next
	c.mu.Unlock()
	c.log.Info("credential renewed", "expires", next.Expires())
	return true
}

func (c *Conn) credential() Credential {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cred
}

// end closes the connection for good, for a reason.
func (c *Conn) end(why error) {
	c.mu.Lock()
	c.why = why
	c.mu.Unlock()
	c.log.Error("hub connection ends", "error", why)
	c.nc.Close()
}

// onRefused hands a refusal to the minder; one that waits there already says the same.
func (c *Conn) onRefused(err error) {
	select {
	case c.refused <- err:
	default:
	}
}

// isRefusal says whether an error of nats.go is the hub's no to the credential.
func isRefusal(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired) || strings.Contains(strings.ToLower(err.Error()), "authorization violation")
}

// checkTimes refuses a credential that is over by any clock. Errors wrap ErrExpired.
func checkTimes(cred Credential, slack time.Duration) error {
	if e := cred.Expires(); !e.IsZero() && time.Since(e) > slack {
		return fmt.Errorf("%w: its end was %s (%s ago)", ErrExpired, e.UTC().Format(time.RFC3339), time.Since(e).Round(time.Second))
	}
	return nil
}

// whyRefused finds out why a hub refuses the credential: the hub itself says only so much. The result wraps ErrRefused.
func (c *Conn) whyRefused(ctx context.Context, cfg Config, err error) error {
	cred := c.credential()
	if errors.Is(err, nats.ErrAuthRevoked) {
		return ErrRevoked
	}
	if errors.Is(err, nats.ErrAuthExpired) {
		if e := cred.Expires(); !e.IsZero() {
			return fmt.Errorf("%w: its end was %s", ErrExpired, e.UTC().Format(time.RFC3339))
		}
		return ErrExpired
	}
	if err := checkTimes(cred, 0); err != nil {
		return err
	}
	if cred.isAnonymous() {
		return fmt.Errorf("%w: it proves nothing, and this hub does not believe everybody", ErrForeign)
	}
	first, _, _ := strings.Cut(cfg.URL, ",")
	info, ierr := c.inform(ctx, first)
	if cfg.Dial != nil || ierr != nil {
		if cred.user == "" {
			return fmt.Errorf("%w: the hub did not issue it; the tokens of an embedded hub end with it", ErrForeign)
		}
		return fmt.Errorf("%w: it was revoked, or the hub does not trust its issuer", ErrRefused)
	}
	return judge(cred, info)
}

// operatorInName finds the operator's mark in a server's name, which "sandbus auth server-config" puts there.
var operatorInName = regexp.MustCompile(`-(o[a-z2-7]{12})$`)

// judge tells a foreign credential from a revoked one by what the hub says of itself.
func judge(cred Credential, info serverInfo) error {
	d, isUser := cred.Details()
	mark := operatorInName.FindStringSubmatch(strings.ToLower(info.Name))
	switch {
	case isUser && info.Nonce == "":
		return fmt.Errorf("%w: an operator issued it, and the hub takes only tokens of its own", ErrForeign)
	case !isUser && info.Nonce != "":
		return fmt.Errorf("%w: it is the token of an embedded hub, and the hub wants an operator's credential (sandbus auth issue)", ErrForeign)
	case !isUser:
		return fmt.Errorf("%w: the hub did not issue it; the tokens of an embedded hub end with it", ErrForeign)
	case mark == nil || d.Operator == "":
		return fmt.Errorf("%w: it was revoked, or the hub does not trust its issuer", ErrRefused)
	case mark[1] != d.Operator:
		return fmt.Errorf("%w: operator %s issued it, the hub trusts %s", ErrForeign, d.Operator, mark[1])
	}
	if !d.Expires.IsZero() { // by our clock it is not over: that was looked at before
		return fmt.Errorf("%w (or the hub does not have its account's newest state: sandbus auth push; or the hub's clock is ahead of ours, "+
			"%s, and past the credential's end, %s)", ErrRevoked, time.Now().UTC().Format(time.RFC3339), d.Expires.UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("%w (or the hub does not have its account's newest state: sandbus auth push)", ErrRevoked)
}
