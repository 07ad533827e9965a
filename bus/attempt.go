package bus

import (
	"context"
	"fmt"
	"strings"
)

// Attempt is a subject that an identity tried to use at the hub.
type Attempt struct {
	Publish bool // else subscribe
	Subject string
	Want    bool // its role may
	Allowed bool // the hub let it
}

func (a Attempt) String() string {
	verb, result := "subscribe to ", "refused"
	if a.Publish {
		verb = "publish on "
	}
	if a.Allowed {
		result = "allowed"
	}
	return verb + a.Subject + ": " + result
}

// probe stands for any token in the subjects of attempts; nobody has that name, and nobody acts on such an event.
const probe = "sandbus-probe"

// Try uses each subject that the identity's role has, and some that no role of its kind has, and reports what the hub let
// it do. Nothing that it sends means anything to anybody. Errors: the hub does not answer in time.
func (c *Conn) Try(ctx context.Context) ([]Attempt, error) {
	p := c.id.Permissions()
	var all []Attempt
	for _, s := range p.Subscribe {
		all = append(all, Attempt{Subject: s, Want: true})
	}
	for _, s := range p.Publish {
		s = strings.ReplaceAll(strings.ReplaceAll(s, "*", probe), ">", probe)
		all = append(all, Attempt{Publish: true, Subject: s, Want: true})
	}
	for _, s := range []string{"$SYS.>", "rep.*.*." + probe + ".>", "sbx.*.*.*." + probe} {
		all = append(all, Attempt{Subject: s})
	}
	if c.id.Role != RoleRegistrar {
		all = append(all, Attempt{Subject: "hb.>"}, Attempt{Publish: true, Subject: join("evt", string(DefaultZone), probe, probe)})
	}
	for i := range all {
		if err := c.try(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// try makes one attempt. The hub says of a refusal before it answers the ping that Flush waits for.
func (c *Conn) try(ctx context.Context, a *Attempt) error {
	if a.Publish {
		if err := c.publish(a.Subject, nil); err != nil {
			return err
		}
	} else {
		sub, err := c.nc.SubscribeSync(a.Subject)
		if err != nil {
			return fmt.Errorf("subscribe %s: %w", a.Subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails when it was refused, or the connection is closed
	}
	if err := c.Flush(ctx); err != nil {
		return fmt.Errorf("%s: %w", a.Subject, err)
	}
	last := c.nc.LastError()
	a.Allowed = last == nil || !strings.Contains(strings.ToLower(last.Error()), fmt.Sprintf("permissions violation for %s to %q", action(a.Publish), strings.ToLower(a.Subject)))
	return nil
}

func action(publish bool) string {
	if publish {
		return "publish"
	}
	return "subscription"
}
