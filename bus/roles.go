package bus

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what a credential's holder is.
type Role string

// The roles.
const (
	RoleSandbox   Role = "sandbox"   // a worker of one sandbox; not trusted
	RoleHarness   Role = "harness"   // drives sandboxes
	RoleRegistrar Role = "registrar" // turns heartbeats into presence
	RoleSite      Role = "site"      // a leaf node that carries one zone
	RoleSystem    Role = "system"    // hears of disconnects in the system account, and may end connections
	RoleAdmin     Role = "admin"     // hands the hub newer account claims, in the system account
)

// Roles are all roles, in the order in which people read of them.
func Roles() []Role {
	return []Role{RoleSandbox, RoleHarness, RoleRegistrar, RoleSite, RoleSystem, RoleAdmin}
}

// Identity is what a credential says of its holder, and what the hub enforces.
type Identity struct {
	Role Role
	Zone Zone   // of a sandbox or a site; all others have DefaultZone
	Name string // sandbox id, harness id, or the name of a registrar, site or observer of the system account
	// Zones are those whose sandboxes a harness may speak to; empty means all. Other roles have none.
	Zones []Zone
}

func (i Identity) String() string {
	if len(i.Zones) > 0 {
		return fmt.Sprintf("%s %s for zones %s", i.Role, i.Name, joinZones(i.Zones, ","))
	}
	return fmt.Sprintf("%s %s.%s", i.Role, i.Zone, i.Name)
}

func joinZones(zones []Zone, sep string) string {
	s := make([]string, len(zones))
	for i, z := range zones {
		s[i] = string(z)
	}
	return strings.Join(s, sep)
}

// maxZones bounds the zones of one harness's credential: each is a subject that the hub checks every publish against.
const maxZones = 32

// Check says whether the names can stand in subjects. Errors: *[IDError], a role that does not exist, zones of a role
// that has none.
func (i Identity) Check() error {
	if !slices.Contains(Roles(), i.Role) {
		return fmt.Errorf("role %q: want sandbox, harness, registrar, site, system or admin", string(i.Role))
	}
	if _, err := ParseZone(string(i.Zone)); err != nil {
		return err
	}
	if len(i.Zones) > 0 && i.Role != RoleHarness {
		return fmt.Errorf("a %s is in one zone: only a harness may have several", i.Role)
	}
	if len(i.Zones) > maxZones {
		return fmt.Errorf("%d zones: the bound is %d", len(i.Zones), maxZones)
	}
	for n, z := range i.Zones {
		if _, err := ParseZone(string(z)); err != nil {
			return err
		}
		if slices.Contains(i.Zones[:n], z) {
			return fmt.Errorf("zone %s is named twice", z)
		}
	}
	_, err := parseToken[string](string(i.Role)+" id", i.Name)
	return err
}

// InSystemAccount says whether the role belongs to the hub's system account rather than to a tenant's.
func (r Role) InSystemAccount() bool { return r == RoleSystem || r == RoleAdmin }

// Permissions are the subjects that a role may use; everything else is refused by the hub.
type Permissions struct {
	Subscribe []string
	Publish   []string
}

// PresenceBucket is the name of the key-value bucket that the registrar writes.
const PresenceBucket = "presence"

// TemplatePermissions are the lists of a role with the places of a user JWT in them, as a scoped signing key has them:
// the hub fills in the name, and each value of the tag "zone".
func TemplatePermissions(r Role) Permissions {
	const zone = "{{tag(zone)}}"
	i := Identity{Role: r, Zone: zone, Name: "{{name()}}"}
	if r == RoleHarness {
		i.Zones = []Zone{zone}
	}
	return i.Permissions()
}

// AllZones is the zone tag of a harness that may speak to all zones.
const AllZones = "*"

// Permissions is the one source of the lists in protocol.md, "Who may do what".
func (i Identity) Permissions() Permissions {
	zone := string(i.Zone)
	own := join(zone, i.Name)
	stream := "KV_" + PresenceBucket
	switch i.Role {
	case RoleSandbox:
		return Permissions{
			Subscribe: []string{"sbx." + own + ".>", "_I." + own + ".>", "bc." + zone},
			Publish:   []string{"rep." + own + ".>", "hb." + own, "evt." + own + ".>"},
		}
	case RoleHarness:
		requests := []string{"sbx.>"}
		if len(i.Zones) > 0 {
			requests = nil
		}
		for _, z := range i.Zones {
			requests = append(requests, "sbx."+string(z)+".>")
		}
		return Permissions{
			// A sandbox of a foreign zone may write to a harness; the harness drops what it has not asked for.
			Subscribe: []string{"rep.*.*." + i.Name + ".>", "_G." + i.Name + ".>"},
			Publish: append(requests,
				"$JS.API.STREAM.INFO."+stream,
				"$JS.API.DIRECT.GET."+stream+".>",
				"$JS.API.CONSUMER.CREATE."+stream+".>",
				"$JS.API.CONSUMER.DELETE."+stream+".>",
				"$JS.FC."+stream+".>",
			),
		}
	case RoleRegistrar:
		return Permissions{
			Subscribe: []string{"hb.>", "evt.>", "_G." + i.Name + ".>"},
			Publish: []string{
				"bc.>", "_I.>",
				"$KV." + PresenceBucket + ".>", "$JS.API.INFO",
				"$JS.API.STREAM.CREATE." + stream, "$JS.API.STREAM.UPDATE." + stream, "$JS.API.STREAM.INFO." + stream,
				"$JS.API.DIRECT.GET." + stream + ".>",
				"$JS.API.CONSUMER.CREATE." + stream + ".>", "$JS.API.CONSUMER.DELETE." + stream + ".>",
				"$JS.FC." + stream + ".>",
			},
		}
	case RoleSite:
		// Prefixes only: with a wildcard inside, the hub's own wildcard subscriptions would get nothing (nats-notes.md, 6).
		return Permissions{
			Subscribe: []string{"sbx." + zone + ".>", "_I." + zone + ".>", "bc." + zone},
			Publish:   []string{"rep." + zone + ".>", "hb." + zone + ".>", "evt." + zone + ".>"},
		}
	case RoleSystem:
		return Permissions{
			Subscribe: []string{"$SYS.ACCOUNT.*.DISCONNECT", "_G." + i.Name + ".>"},
			Publish:   []string{"$SYS.REQ.SERVER.*.KICK", "$SYS.REQ.SERVER.*.CONNZ"},
		}
	case RoleAdmin:
		return Permissions{
			Subscribe: []string{"_G." + i.Name + ".>"},
			Publish:   []string{"$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"},
		}
	}
	return Permissions{}
}

// inboxPrefix is the identity's own inbox space.
func (i Identity) inboxPrefix() string {
	if i.Role == RoleSandbox {
		return "_I." + join(string(i.Zone), i.Name)
	}
	return "_G." + i.Name
}
