package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbus/sandbus/loadtest/workload"
)

// ErrUnavailable says that an arm is not to be had here. What wraps it says why.
var ErrUnavailable = errors.New("not to be had")

// arm is one way to reach sandboxes.
type arm struct {
	name  string
	about string
	// oneHarness says that only one harness process can be: its sessions are all those of the rung.
	oneHarness bool
	// below says that what a harness process starts is the sandbox: then it is measured as one.
	below bool
	// setup begins in the rig's process what the arm needs; nil means nothing but the hub and the sandboxes.
	setup func(context.Context, *setting) error
	// open connects a harness process.
	open func(context.Context, *Site) (client, error)
}

// arms are all that the rig knows, in the order in which they are shown.
var arms = []arm{
	armEcho, armBusNative, armBusShell, armBusExec, armBusEmbedded, armRelay, armRelayFast, armRelayEcho, armLocal, armLocalExec,
	armCommand, armCommandPerCall, armDocker, armDockerPerCall, armSSH,
}

// armNull is the null responder, which shows what the generator itself can do.
var armNull = arm{name: "null", open: openNull}

// ArmNames are the names of all arms, in the order in which they are shown.
func ArmNames() []string {
	var names []string
	for _, a := range arms {
		names = append(names, a.name)
	}
	return names
}

// DescribeArms is one line for each arm.
func DescribeArms() string {
	var b strings.Builder
	for _, a := range arms {
		fmt.Fprintf(&b, "  %-16s %s\n", a.name, a.about)
	}
	return b.String()
}

func findArm(name string) (arm, error) {
	if name == armNull.name {
		return armNull, nil
	}
	i := slices.IndexFunc(arms, func(a arm) bool { return a.name == name })
	if i < 0 {
		return arm{}, fmt.Errorf("arm %q: want some of %s", name, strings.Join(ArmNames(), ","))
	}
	return arms[i], nil
}

// Site is where an arm's harness processes find what they need.
type Site struct {
	URL       string            `json:"url"`
	Token     string            `json:"token"`
	Sandboxes []Place           `json:"sandboxes"`
	Options   map[string]string `json:"options,omitempty"` // of the arm: what its setup has to say
}

// Place is one sandbox.
type Place struct {
	ID  string `json:"id"`
	Dir string `json:"dir"`
}

// client is one harness process's connection by an arm.
type client interface {
	// session gets the n-th session of the rung its sandbox, whose number in the site it returns.
	session(ctx context.Context, n int) (session, int, error)
	close()
}

// session does operations one after the other. An operation that the arm cannot do is ErrUnavailable.
type session interface {
	do(ctx context.Context, o *workload.Op) error
	close(ctx context.Context)
}

// unplaced is the number of the sandbox of a session that has none before it rents one.
const unplaced = -1

// renter is a session that has a sandbox only while it holds a lease. rent waits for one and returns the sandbox's number.
type renter interface {
	rent(ctx context.Context) (int, error)
	giveBack(ctx context.Context)
}

// host is a client that has its hub itself: workers join it.
type host interface {
	join() (url string, tokens []string)
}

// unavailable is the error of an arm that cannot do a kind of operation.
func unavailable(arm string, o *workload.Op) error {
	return fmt.Errorf("arm %s does no %s: %w", arm, o.Kind, ErrUnavailable)
}

// doer is a session that has nothing to close.
type doer func(ctx context.Context, o *workload.Op) error

func (d doer) do(ctx context.Context, o *workload.Op) error { return d(ctx, o) }
func (d doer) close(context.Context)                        {}
