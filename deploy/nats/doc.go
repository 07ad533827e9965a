// Package nats has no code: beside it lie configurations of nats-server, as "sandbus auth server-config" and "sandbus auth
// site-config" print them, and the test that makes them and starts servers with them.
package nats
