package hub

import (
	"log/slog"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sandbus/sandbus/bus"
)

// gate admits clients by token and gives each the permissions of its role.
type gate struct {
	minter   *bus.Minter
	believes bool           // everybody: InsecureNoAuth
	srv      *server.Server // set before the server takes clients
	log      *slog.Logger
}

// Check implements server.Authentication.
func (g *gate) Check(c server.ClientAuthentication) bool {
	id, err := g.minter.Verify(c.GetOpts().Token)
	if err != nil && g.believes {
		return g.believe(c)
	}
	if err != nil {
		g.log.Warn("hub refuses a client", "error", err)
		return false
	}
	g.register(c, id)
	return true
}

// believe admits who proves nothing: as the identity that it names, and without one as anybody.
func (g *gate) believe(c server.ClientAuthentication) bool {
	cred, err := bus.ParseCredential(c.GetOpts().Token)
	if err != nil || cred.Identity().Role.InSystemAccount() { // which is this hub's own, whatever it believes
		c.RegisterUser(&server.User{Username: "anybody"})
		return true
	}
	g.register(c, cred.Identity())
	return true
}

func (g *gate) register(c server.ClientAuthentication, id bus.Identity) {
	p := id.Permissions()
	var account *server.Account // nil: that of everybody
	if id.Role.InSystemAccount() {
		account = g.srv.SystemAccount()
	}
	c.RegisterUser(&server.User{
		Username: id.String(), Account: account,
		Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
			Publish:   &server.SubjectPermission{Allow: p.Publish},
		},
	})
}
