package rig

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

var (
	armDocker = arm{
		name: "docker", about: "a long-lived shell behind docker exec -i, for each session",
		setup: setupDocker, open: openCommand("docker", false),
	}
	armDockerPerCall = arm{
		name: "docker-percall", about: "a docker exec for each call",
		setup: setupDocker, open: openCommand("docker-percall", true),
	}
)

// defaultImage is what containers are made from where nobody says otherwise. It is never pulled.
const defaultImage = "debian:bookworm-slim"

// container is a sandbox that is no process of ours: what descends from a process that holds it is in it.
type container struct {
	name string
	pid  int // zero when it is not known
}

// containerOf finds the process that holds a container: the parent of its first process, to which also those belong that
// docker exec starts.
func containerOf(ctx context.Context, name, id string) container {
	first, err := docker(ctx, "inspect", "-f", "{{.State.Pid}}", id)
	if err != nil {
		return container{name: name}
	}
	pid, err := strconv.Atoi(first)
	if err != nil {
		return container{name: name}
	}
	return container{name, processes()[pid].parent}
}

// setupDocker starts a container for each sandbox, with the sandbox's directory in the same place. Anything that goes
// wrong means that docker is not to be had.
func setupDocker(ctx context.Context, t *setting) error {
	image := t.stage.cfg.Image
	if image == "" {
		image = defaultImage
	}
	t.sandboxes, t.hub = nil, nil
	for _, p := range t.site.Sandboxes {
		id, err := docker(ctx, "run", "-d", "--rm", "--init", "--pull", "never", "--network", "none",
			"-v", t.stage.dir+":"+t.stage.dir, image, "sleep", "2147483647")
		if err != nil {
			return err
		}
		t.stops = append(t.stops, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			_, _ = docker(ctx, "rm", "-f", id) // it goes by itself when the machine does
		})
		c := containerOf(ctx, p.ID, id)
		if c.pid != 0 {
			t.stage.forks.add(c.pid)
		}
		t.containers = append(t.containers, c)
		t.site.Options[optPrefix+p.ID] = strings.Join([]string{"docker", "exec", "-i", id}, "\n")
	}
	return nil
}

func docker(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("docker %s: %w: %.300s", args[0], err, strings.TrimSpace(string(ee.Stderr)))
	}
	return "", fmt.Errorf("%w: %w", err, ErrUnavailable)
}
