package bus

import (
	"fmt"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Privileges are what the kernel lets a process do beyond a plain user, in the words of that process itself: a sandbox
// that lies about it lies.
type Privileges struct {
	UID          uint32 `json:"uid"`
	GID          uint32 `json:"gid"`
	Capabilities uint64 `json:"capabilities"` // the effective set: bit n is capability n of capabilities(7)
	NoNewPrivs   bool   `json:"no_new_privs"` // no program can gain more
}

// Privileged says that the process is root, has a capability, or can get one from a program that gives it: then a
// container around it is held by less than the kernel's usual checks.
func (p Privileges) Privileged() bool { return p.UID == 0 || p.Capabilities != 0 || !p.NoNewPrivs }

func (p Privileges) String() string {
	more := "may gain more by set-user-id programs"
	if p.NoNewPrivs {
		more = "can gain no more"
	}
	return fmt.Sprintf("uid %d, gid %d, effective capabilities %#x, %s", p.UID, p.GID, p.Capabilities, more)
}

// Wire is the message for the privileges.
func (p Privileges) Wire() *sandbusv1.Privileges {
	return &sandbusv1.Privileges{Uid: p.UID, Gid: p.GID, Capabilities: p.Capabilities, NoNewPrivs: p.NoNewPrivs}
}

// privileges reads the message; nil for nil.
func privileges(m *sandbusv1.Privileges) *Privileges {
	if m == nil {
		return nil
	}
	return &Privileges{UID: m.GetUid(), GID: m.GetGid(), Capabilities: m.GetCapabilities(), NoNewPrivs: m.GetNoNewPrivs()}
}
