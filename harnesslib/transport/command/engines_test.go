package command_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
	"github.com/sandbus/sandbus/internal/testenv"
)

// output runs a program of this machine.
func output(tb testing.TB, stdin []byte, argv ...string) string {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(stdin)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	require.NoError(tb, err, "%s: %s", strings.Join(argv, " "), errOut.String())
	return strings.TrimSpace(string(out))
}

// rootfs is a tar of a file system with nothing but busybox, and the libraries that it needs.
func rootfs(tb testing.TB) []byte {
	tb.Helper()
	busybox := testenv.Tool(tb, "busybox")
	files := map[string]string{"bin/busybox": busybox}
	if libs, err := exec.CommandContext(tb.Context(), "ldd", busybox).Output(); err == nil { // it fails for a static one
		for word := range strings.FieldsSeq(string(libs)) {
			if filepath.IsAbs(word) {
				files[strings.TrimPrefix(word, "/")] = word
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []string{"bin", "tmp", "etc", "proc", "dev"} {
		require.NoError(tb, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}))
	}
	add := func(name string, data []byte) {
		require.NoError(tb, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(data))}))
		_, err := w.Write(data)
		require.NoError(tb, err)
	}
	for name, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(tb, err)
		add(name, data)
	}
	add("etc/passwd", []byte("root:x:0:0:root:/:/bin/sh\n"))
	for name := range strings.FieldsSeq(output(tb, nil, busybox, "--list")) {
		if name != "busybox" {
			require.NoError(tb, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox", Mode: 0o777}))
		}
	}
	require.NoError(tb, w.Close())
	return buf.Bytes()
}

// container starts one with nothing but busybox, for the length of the test.
func container(tb testing.TB) string {
	tb.Helper()
	testenv.Need(tb, "docker", exec.CommandContext(tb.Context(), "docker", "info").Run() == nil)
	image := output(tb, rootfs(tb), "docker", "import", "-")
	clean := func(argv ...string) func() {
		return func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = exec.CommandContext(ctx, "docker", argv...).Run() // litter at worst
		}
	}
	tb.Cleanup(clean("rmi", "-f", image))
	id := output(tb, nil, "docker", "run", "-d", "--network", "none", image, "/bin/sleep", "100000")
	tb.Cleanup(clean("rm", "-f", id))
	return id
}

func TestDocker(t *testing.T) {
	id := container(t)
	cfg := command.Config{Prefix: []string{"docker", "exec", "-i", id}}
	t.Run("conformance", func(t *testing.T) {
		conformance.Run(t, opener(cfg), declared)
	})
	t.Run("per call", func(t *testing.T) {
		some(t, func() transport.Transport { return openPerCall(t, cfg) }, declaredPerCall, "stdout is bytes", "stdin is bytes", "stop by abort", "left behind", "output limit")
	})
	t.Run("not there", func(t *testing.T) {
		_, err := open(t, command.Config{Prefix: []string{"docker", "exec", "-i", "sandbus-no-such-container"}}).Exec(t.Context(), transport.Command{Script: "true"})
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorContains(t, err, "sandbus-no-such-container")
	})
	t.Run("needs a terminal", func(t *testing.T) {
		_, err := open(t, command.Config{Prefix: []string{"docker", "exec", "-it", id}}).Exec(t.Context(), transport.Command{Script: "true"})
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorContains(t, err, "TTY")
	})
	t.Run("dies", func(t *testing.T) { // the last: it is gone then
		for _, c := range []transport.Command{{Script: "echo up; sleep 300", Stdout: &signalled{first: make(chan struct{})}}} {
			go func() {
				<-c.Stdout.(*signalled).first
				_ = exec.Command("docker", "kill", id).Run()
			}()
			_, err := open(t, cfg).Exec(t.Context(), c)
			require.ErrorIs(t, err, transport.ErrLost)
		}
	})
}

// some runs the cases of those names.
func some(t *testing.T, newTransport func() transport.Transport, declared transport.Declaration, names ...string) {
	t.Helper()
	ran := 0
	for _, c := range conformance.Cases() {
		if slices.Contains(names, c.Name) {
			ran++
			require.NoError(t, c.Check(t.Context(), func() (transport.Transport, error) { return newTransport(), nil }, declared), c.Name)
		}
	}
	require.Len(t, names, ran)
}

// sshd starts one for the length of the test, and returns the prefix that leads to it.
func sshd(tb testing.TB) []string {
	tb.Helper()
	path, err := exec.LookPath("/usr/sbin/sshd")
	testenv.Need(tb, "sshd", err == nil)
	ssh, keygen := testenv.Tool(tb, "ssh"), testenv.Tool(tb, "ssh-keygen")
	dir := tb.TempDir()
	for _, key := range []string{"host", "user"} {
		output(tb, nil, keygen, "-q", "-t", "ed25519", "-N", "", "-f", dir+"/"+key)
	}
	me, err := user.Current()
	require.NoError(tb, err)
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(tb, err)
	require.NoError(tb, l.Close())
	config := fmt.Sprintf("Port %s\nListenAddress 127.0.0.1\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nPidFile none\nStrictModes no\nUsePAM no\nMaxStartups 200\nPermitRootLogin yes\n", port, dir, dir)
	require.NoError(tb, os.WriteFile(dir+"/config", []byte(config), 0o600))
	if me.Uid == "0" {
		require.NoError(tb, os.MkdirAll("/run/sshd", 0o755)) // where it wants to be
	}
	var log lockedBuffer
	cmd := exec.Command(path, "-D", "-e", "-f", dir+"/config")
	cmd.Stderr = &log
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone already
		_ = cmd.Wait()
	})
	require.Eventually(tb, func() bool {
		c, err := new(net.Dialer).DialContext(tb.Context(), "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond, "sshd: %s", log.String())
	return []string{
		ssh, "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "IdentitiesOnly=yes",
		"-i", dir + "/user", "-p", port, me.Username + "@127.0.0.1",
	}
}

func TestSSH(t *testing.T) {
	prefix := sshd(t)
	t.Run("with a shell", func(t *testing.T) {
		cfg := command.Config{Prefix: prefix}
		some(t, func() transport.Transport { return open(t, cfg) }, declared, "stdin is bytes", "stop by abort")
	})
	t.Run("login shell", func(t *testing.T) {
		cfg := command.Config{Prefix: prefix, PrefixIsShell: true}
		some(t, func() transport.Transport { return open(t, cfg) }, declared, "stdout is bytes")
	})
	t.Run("no way in", func(t *testing.T) {
		wrong := slices.Clone(prefix)
		wrong[len(wrong)-1] = "nobody-" + wrong[len(wrong)-1]
		_, err := open(t, command.Config{Prefix: wrong}).Exec(t.Context(), transport.Command{Script: "true"})
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorContains(t, err, "Permission denied")
	})
}
