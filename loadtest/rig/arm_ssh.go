package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"
)

var armSSH = arm{
	name: "ssh", about: "a long-lived shell behind ssh, for each session, at an sshd of the rig's own",
	setup: setupSSH, open: openCommand("ssh", false),
}

// setupSSH starts an sshd on the loopback that lets in this user by a key made for the run. Anything that goes wrong
// means that ssh is not to be had.
func setupSSH(ctx context.Context, t *setting) error {
	dir := filepath.Join(t.stage.dir, "ssh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"host", "user"} {
		if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			return fmt.Errorf("ssh-keygen: %w: %s: %w", err, out, ErrUnavailable)
		}
	}
	me, err := user.Current()
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrUnavailable)
	}
	var ready sshReady
	p, err := spawn(ctx, "sshd", "sshd", t.stage.stderr, sshConfig{Dir: dir}, &ready)
	if err != nil {
		return err
	}
	t.stops = append(t.stops, p.stop)
	t.stage.forks.add(p.pid())
	t.sandboxes, t.hub = []*process{p}, nil
	t.site.Options[optPrefix] = strings.Join([]string{
		"ssh", "-F", "none", "-T", "-i", filepath.Join(dir, "user"), "-p", ready.Port,
		"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		me.Username + "@127.0.0.1",
	}, "\n")
	return nil
}

type sshConfig struct {
	Dir string `json:"dir"`
}

type sshReady struct {
	Port string `json:"port"`
}

// sshdRole holds an sshd, so that all of its processes are below this one.
func sshdRole(life context.Context, config json.RawMessage) (any, map[string]handler, func(), error) {
	cfg, err := decode[sshConfig](config)
	if err != nil {
		return nil, nil, nil, err
	}
	path, err := exec.LookPath("sshd")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/sshd"); err != nil {
			return nil, nil, nil, fmt.Errorf("%w: %w", err, ErrUnavailable)
		}
	}
	port, err := freePort(life)
	if err != nil {
		return nil, nil, nil, err
	}
	text := fmt.Sprintf("ListenAddress 127.0.0.1:%s\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\n"+
		"PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 1000\nMaxSessions 1000\nLogLevel ERROR\n",
		port, filepath.Join(cfg.Dir, "host"), filepath.Join(cfg.Dir, "user.pub"))
	file := filepath.Join(cfg.Dir, "sshd_config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, nil, nil, err
	}
	if os.Getuid() == 0 {
		_ = os.MkdirAll("/run/sshd", 0o755) // as the system's service does; where it cannot be made sshd says so
	}
	run, end := context.WithCancelCause(life)
	cmd := exec.CommandContext(run, path, "-D", "-e", "-f", file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		end(nil)
		return nil, nil, nil, fmt.Errorf("%w: %w", err, ErrUnavailable)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	closeRole := func() {
		end(errRigGone)
		<-ended //nolint:errcheck // it was killed
	}
	for {
		select {
		case err := <-ended:
			ended <- err
			return nil, nil, closeRole, fmt.Errorf("sshd does not start: %w: %w", errors.Join(err), ErrUnavailable)
		case <-time.After(20 * time.Millisecond):
		}
		var d net.Dialer
		if c, err := d.DialContext(life, "tcp", "127.0.0.1:"+port); err == nil {
			_ = c.Close() // was only a question
			return sshReady{Port: port}, nil, closeRole, nil
		}
	}
}

// freePort is a port that was free a moment ago: sshd does not tell which one it took.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}
