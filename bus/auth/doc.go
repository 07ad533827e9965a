// Package auth makes the credentials of hubs that trust an operator, and the server configuration that goes with them.
//
// An operator signs accounts, one for each tenant; an account names a signing key for each role, with the permissions of
// that role as a template ([bus.TemplatePermissions]); a role's key signs user JWTs. So making a credential is a local
// signature: no hub is asked, none is reloaded, and nothing but the hub is needed when a client connects. A user JWT
// carries no permissions of its own: a role's key can make members of its role and nothing else. The seed of an account
// is thrown away at once, so that no key exists that could sign a user without limits.
//
// The invariants: the minter checks every name, since the hub does not (a sandbox named "*" would be all sandboxes); a
// user key is made anew for each credential and never again, so that a revocation is for good; secrets are in files of
// mode 0600 and in no error text.
package auth
