package e2e

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/command"
)

// maxWorkerd is what the worker's image may weigh, in bytes.
const maxWorkerd = 15 << 20

// image is what an engine says of one.
type image struct {
	Size   int64
	Config struct {
		User       string
		Labels     map[string]string
		Entrypoint []string
	}
}

func inspect(t *testing.T, name string) image {
	t.Helper()
	var list []image
	require.NoError(t, json.Unmarshal([]byte(must(t, "docker", "image", "inspect", name)), &list))
	require.Len(t, list, 1)
	return list[0]
}

func TestImages(t *testing.T) {
	engine(t)
	for _, name := range []string{"workerd", "sandbus", "sandbox"} {
		i := inspect(t, "sandbus/"+name)
		t.Logf("%s: %.1f MiB", name, float64(i.Size)/(1<<20))
		require.NotEmpty(t, i.Config.User, "%s runs as root", name)
		require.NotRegexp(t, `^(0|root)\b`, i.Config.User)
		for _, label := range []string{"title", "description", "licenses", "version"} {
			require.NotEmpty(t, i.Config.Labels["org.opencontainers.image."+label], "%s: label %s", name, label)
		}
		version := run(t.Context(), t, nil, "docker", "run", "--rm", "--network", "none", "sandbus/"+name, map[bool]string{true: "version", false: "--version"}[name == "sandbus"])
		require.Zero(t, version.code, version.stderr)
		require.Contains(t, version.stdout, i.Config.Labels["org.opencontainers.image.version"])
	}
	require.Less(t, inspect(t, "sandbus/workerd").Size, int64(maxWorkerd))
}

// TestReproducible makes the image's worker outside of it, from the same source, and for arm64 too: the same bytes.
func TestReproducible(t *testing.T) {
	engine(t)
	inside := filepath.Join(t.TempDir(), "workerd")
	id := must(t, "docker", "create", "sandbus/workerd")
	afterwards(t, "docker", "rm", "-f", id)
	must(t, "docker", "cp", id+":/workerd", inside)
	version := inspect(t, "sandbus/workerd").Config.Labels["org.opencontainers.image.version"]
	build := func(arch string) string {
		out := filepath.Join(t.TempDir(), "workerd")
		r := run(t.Context(), t, []string{"CGO_ENABLED=0", "GOARCH=" + arch, "GOFLAGS=-buildvcs=false"},
			"go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+version, "-o", out, "./cmd/workerd")
		require.Zero(t, r.code, r.stderr)
		return out
	}
	if here, there := must(t, "go", "env", "GOVERSION"), must(t, "docker", "run", "--rm", "golang:1.26-bookworm", "go", "env", "GOVERSION"); here == there {
		a, err := os.ReadFile(inside)
		require.NoError(t, err)
		b, err := os.ReadFile(build("amd64"))
		require.NoError(t, err)
		require.True(t, string(a) == string(b), "the image's worker and one made here differ; was the image made of this source?")
	} else {
		t.Logf("NOT COMPARED: Go here is %s, in the image %s", here, there)
	}
	for path, machine := range map[string]elf.Machine{inside: elf.EM_X86_64, build("arm64"): elf.EM_AARCH64} {
		f, err := elf.Open(path)
		require.NoError(t, err)
		require.Equal(t, machine, f.Machine)
		for _, p := range f.Progs {
			require.NotEqual(t, elf.PT_INTERP, p.Type, "%s is not static", path)
		}
		require.NoError(t, f.Close())
	}
}

// TestDockerExec has a harness use a container that has no worker.
func TestDockerExec(t *testing.T) {
	engine(t)
	id := must(t, "docker", "run", "-d", "--network", "none", "busybox:stable", "sleep", "100000")
	afterwards(t, "docker", "rm", "-f", id)
	sb, err := command.New(command.Config{Prefix: []string{"docker", "exec", "-i", id}})
	require.NoError(t, err)
	defer func() { require.NoError(t, sb.Close()) }()
	r, err := sb.Exec(t.Context(), transport.Command{Script: "echo out; echo err >&2; exit 3"})
	require.NoError(t, err)
	require.Equal(t, "out\n", string(r.Stdout))
	require.Equal(t, "err\n", string(r.Stderr))
	require.Equal(t, 3, *r.ExitCode)
}

// TestSideLoad brings the worker into an image that lacks it.
func TestSideLoad(t *testing.T) {
	p := composed(t)
	p.compose(t, "up", "-d", "registrar")
	d := p.desk(t, "harness")
	volume := p.name + "-shared"
	must(t, "docker", "volume", "create", volume)
	afterwards(t, "docker", "volume", "rm", "-f", volume)
	must(t, "docker", "run", "--rm", "--user", "0:0", "--network", "none", "-v", volume+":/shared", "sandbus/workerd", "install", "/shared")
	id := must(t, "docker", "run", "-d", "--user", "1000:1000", "--network", p.name+"_sandboxes", "-v", volume+":/shared:ro", "-v", p.name+"_box3-creds:/creds:ro",
		"-e", "SANDBUS_URL=nats://hub:4222", "-e", "SANDBUS_CREDS=/creds/sandbox.creds", "-e", "SANDBUS_STATE_DIR=/tmp/.sandbus", "busybox:stable", "/shared/workerd")
	afterwards(t, "docker", "rm", "-f", id)
	d.live(t, "--sandbox", "box3")
	d.work(t, "--sandbox", "box3")
}

// TestBadInput has each thing that is wrong say what it is.
func TestBadInput(t *testing.T) {
	engine(t)
	wrong := func(want []string, arg ...string) {
		t.Helper()
		r := run(t.Context(), t, nil, "docker", append([]string{"run", "--rm", "--network", "none"}, arg...)...)
		require.NotZero(t, r.code, "%s", arg)
		for _, w := range want {
			require.Contains(t, r.stdout+r.stderr, w, "%s", arg)
		}
	}
	// A missing credential volume: nothing was mounted, or an empty one.
	wrong([]string{"/creds/sandbox.creds", "no such file"}, "-e", "SANDBUS_URL=nats://hub:4222", "-e", "SANDBUS_CREDS=/creds/sandbox.creds", "sandbus/sandbox")
	wrong([]string{"/creds/registrar.creds", "no such file"}, "-e", "SANDBUS_URL=nats://hub:4222", "-e", "SANDBUS_CREDS=/creds/registrar.creds", "sandbus/sandbus", "registrar")
	// A configuration that is absent, cannot be read, or is none.
	wrong([]string{"/conf/hub.conf", "no such file"}, "--entrypoint", "nats-server", "nats:2.15-alpine", "-c", "/conf/hub.conf")
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "hub.conf")
	require.NoError(t, os.WriteFile(file, []byte("listen: }\n"), 0o600))
	mounted := []string{"-v", dir + ":/conf:ro", "--entrypoint", "nats-server", "nats:2.15-alpine", "-c", "/conf/hub.conf"}
	wrong([]string{"hub.conf", "permission denied"}, append([]string{"--user", "1000:1000"}, mounted...)...)
	wrong([]string{"hub.conf"}, mounted...)
}

// TestTakenPort publishes the hub on a port that somebody has.
func TestTakenPort(t *testing.T) {
	p := composed(t)
	holder := must(t, "docker", "run", "-d", "-p", "127.0.0.1::80", "busybox:stable", "sleep", "100000")
	afterwards(t, "docker", "rm", "-f", holder)
	_, port, _ := strings.Cut(must(t, "docker", "port", holder, "80"), ":")
	a := p.args("-f", "docker-compose.yaml", "-f", "deploy/compose/publish.yaml", "up", "-d", "hub")
	r := run(t.Context(), t, []string{"SANDBUS_HUB_PORT=" + port, "SANDBUS_WS_PORT=0", "SANDBUS_LEAF_PORT=0"}, a[0], a[1:]...)
	require.NotZero(t, r.code)
	require.Contains(t, r.stdout+r.stderr, fmt.Sprintf("127.0.0.1:%s", port))
	require.Regexp(t, "already (allocated|in use)", r.stdout+r.stderr)
}
