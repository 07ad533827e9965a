// Package relay reaches a sandbox through any relay of sandbox/v1: those in the field, and "sandbus gateway".
//
// A command has a ceiling of 30 minutes unless it names a timeout, which is sent along in whole seconds, rounded up. A
// stream that ends without saying how the command ended is transport.ErrLost, never a success; what a relay refuses
// before anything runs is transport.ErrUnreachable. An abort counts when it is confirmed; after 10 s without that the
// command is lost. Standard input goes to the relay whole, with the command, in one message of at most 16 MiB.
package relay
