package bus

import "fmt"

// Role is what a credential's holder is.
type Role string

// The roles.
const (
	RoleSandbox   Role = "sandbox"   // a worker of one sandbox; not trusted
	RoleHarness   Role = "harness"   // drives sandboxes
	RoleRegistrar Role = "registrar" // turns heartbeats into presence
)

// Identity is what a credential says of its holder, and what the hub enforces.
type Identity struct {
	Role Role
	Zone Zone   // of a sandbox; a harness and a registrar have DefaultZone and may speak to all zones
	Name string // sandbox id, harness id or registrar id
}

func (i Identity) String() string { return fmt.Sprintf("%s %s.%s", i.Role, i.Zone, i.Name) }

// Check says whether the names can stand in subjects. Errors: *[IDError], or a role that does not exist.
func (i Identity) Check() error {
	switch i.Role {
	case RoleSandbox, RoleHarness, RoleRegistrar:
	default:
		return fmt.Errorf("role %q: want sandbox, harness or registrar", string(i.Role))
	}
	if _, err := ParseZone(string(i.Zone)); err != nil {
		return err
	}
	_, err := parseToken[string](string(i.Role)+" id", i.Name)
	return err
}

// Permissions are the subjects that a role may use; everything else is refused by the hub.
type Permissions struct {
	Subscribe []string
	Publish   []string
}

// PresenceBucket is the name of the key-value bucket that the registrar writes.
const PresenceBucket = "presence"

// Permissions is the one source of the lists in protocol.md, "Who may do what".
func (i Identity) Permissions() Permissions {
	own := join(string(i.Zone), i.Name)
	stream := "KV_" + PresenceBucket
	switch i.Role {
	case RoleSandbox:
		return Permissions{
			Subscribe: []string{"sbx." + own + ".>", "_I." + own + ".>", "bc." + string(i.Zone)},
			Publish:   []string{"rep." + own + ".>", "hb." + own, "evt." + own + ".>"},
		}
	case RoleHarness:
		return Permissions{
			Subscribe: []string{"rep.*.*." + i.Name + ".>", "_G." + i.Name + ".>"},
			Publish: []string{
				"sbx.>",
				"$JS.API.STREAM.INFO." + stream,
				"$JS.API.DIRECT.GET." + stream + ".>",
				"$JS.API.CONSUMER.CREATE." + stream + ".>",
				"$JS.API.CONSUMER.DELETE." + stream + ".>",
				"$JS.FC." + stream + ".>",
			},
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
