package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

// patience is how long anything may take on a slow, busy machine.
const patience = 2 * time.Minute

// project is the compose project under a name of the test's own.
type project struct {
	name string
	tool []string // docker compose, or docker-compose
}

// composed is a project that is taken down at the test's end, with its volumes.
func composed(t *testing.T) *project {
	t.Helper()
	engine(t)
	tool := []string{"docker", "compose"}
	if run(t.Context(), t, nil, "docker", "compose", "version").code != 0 {
		tool = []string{testenv.Tool(t, "docker-compose")}
	}
	p := &project{fmt.Sprintf("sbe2e%d%s", os.Getpid(), strings.ToLower(t.Name())), tool}
	p.name = strings.NewReplacer("/", "", "_", "").Replace(p.name)
	down := p.args("down", "-v", "--remove-orphans", "-t", "1")
	afterwards(t, down[0], down[1:]...)
	t.Cleanup(func() { // before it goes
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			logs := p.args("logs", "--no-color", "--tail", "40")
			t.Log(run(ctx, t, nil, logs[0], logs[1:]...).stdout)
		}
	})
	return p
}

func (p *project) args(arg ...string) []string {
	return append(append(append([]string{}, p.tool...), "-p", p.name, "--project-directory", "."), arg...)
}

// compose runs a verb of compose that has to succeed.
func (p *project) compose(t *testing.T, arg ...string) string {
	t.Helper()
	a := p.args(arg...)
	return must(t, a[0], a[1:]...)
}

// id is a service's container.
func (p *project) id(t *testing.T, service string) string {
	t.Helper()
	id := p.compose(t, "ps", "-q", service)
	require.NotEmpty(t, id, service)
	return id
}

// desk is a container in which commands of a harness are run.
type desk struct{ id string }

// desk starts one that lives as long as the project, as a harness's service.
func (p *project) desk(t *testing.T, service string) desk {
	t.Helper()
	name := p.name + "-desk-" + service
	p.compose(t, "run", "-d", "--no-deps", "--name", name, service, "sleep", "100000")
	t.Cleanup(func() { // not one of compose's own for "down"
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		run(ctx, t, nil, "docker", "rm", "-f", name)
	})
	return desk{name}
}

// sandbus runs the command line there.
func (d desk) sandbus(t *testing.T, arg ...string) result {
	t.Helper()
	return run(t.Context(), t, nil, "docker", append([]string{"exec", d.id, "sandbus"}, arg...)...)
}

// must runs a command line that has to succeed there.
func (d desk) must(t *testing.T, arg ...string) string {
	t.Helper()
	return must(t, "docker", append([]string{"exec", d.id, "sandbus"}, arg...)...)
}

// live waits until a sandbox answers.
func (d desk) live(t *testing.T, arg ...string) {
	t.Helper()
	eventually(t, func() error {
		r := d.sandbus(t, append(append([]string{"exec"}, arg...), "--", "true")...)
		if r.code != 0 {
			return fmt.Errorf("exit status %d: %s", r.code, r.stderr)
		}
		return nil
	})
}

// work runs a command and file operations in a sandbox.
func (d desk) work(t *testing.T, arg ...string) {
	t.Helper()
	with := func(verb string, more ...string) []string { return append(append([]string{verb}, arg...), more...) }
	require.Equal(t, "hello", d.must(t, with("exec", "--", "echo", "hello")...))
	require.Equal(t, 7, d.sandbus(t, with("exec", "--", "sh", "-c", "exit 7")...).code)
	must(t, "docker", "exec", d.id, "sh", "-c", "echo contents >/tmp/file")
	id := arg[1] // after --sandbox
	zone := arg[2:]
	d.must(t, append(append([]string{"cp"}, zone...), "/tmp/file", id+":/tmp/copied")...)
	require.Equal(t, "contents", d.must(t, append(append([]string{"cat"}, zone...), id+":/tmp/copied")...))
	require.Contains(t, d.must(t, append(append([]string{"ls"}, zone...), id+":/tmp")...), "copied")
}

// eventually tries until something succeeds.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			require.NoError(t, err, "still so after %s", patience)
		}
	}
}

// TestCompose is the project as README.md has it, from nothing to the first command.
func TestCompose(t *testing.T) {
	p := composed(t)
	start := time.Now()
	p.compose(t, "up", "-d")
	out := p.compose(t, "run", "--rm", "harness", "sandbus", "exec", "--sandbox", "box1", "--", "uname", "-a")
	t.Logf("from nothing to the first command, with the images there: %s", time.Since(start).Round(100*time.Millisecond))
	require.Contains(t, out, "Linux")

	d := p.desk(t, "harness")
	for _, box := range []string{"box1", "box2", "box3"} {
		d.work(t, "--sandbox", box)
	}
	t.Run("nothing is published", func(t *testing.T) {
		for id := range strings.FieldsSeq(p.compose(t, "ps", "-q")) {
			require.Empty(t, must(t, "docker", "port", id))
		}
	})
	t.Run("credentials apart", func(t *testing.T) { credentialsApart(t, p) })
	t.Run("sandboxes reach the hub only", func(t *testing.T) {
		hub, registrar := addresses(t, p.id(t, "hub")), addresses(t, p.id(t, "registrar"))
		inBox := func(address string) int {
			return d.sandbus(t, "exec", "--sandbox", "box1", "--", "timeout", "3", "bash", "-c", "exec 3<>/dev/tcp/"+address+"/4222").code
		}
		require.Zero(t, inBox(hub[p.name+"_sandboxes"]), "the check cannot fail")
		require.NotZero(t, inBox(hub[p.name+"_control"]))
		require.NotZero(t, inBox(registrar[p.name+"_control"]))
	})
	t.Run("up again", func(t *testing.T) {
		before := must(t, "docker", "exec", p.id(t, "box1"), "sha256sum", "/creds/sandbox.creds")
		p.compose(t, "up", "-d")
		require.Equal(t, before, must(t, "docker", "exec", p.id(t, "box1"), "sha256sum", "/creds/sandbox.creds"))
		d.live(t, "--sandbox", "box1")
	})
	t.Run("renewed", func(t *testing.T) {
		require.Contains(t, d.must(t, "auth", "show", "/creds/harness.creds"), "never")
		p.compose(t, "run", "--rm", "-e", "SANDBUS_CREDS_TTL=1h", "creds")
		require.NotContains(t, d.must(t, "auth", "show", "/creds/harness.creds"), "never")
		d.work(t, "--sandbox", "box1") // connected with the old one, and the new one is the harness's now
	})
	t.Run("registrar restarts", func(t *testing.T) {
		p.compose(t, "restart", "-t", "5", "registrar")
		eventually(t, func() error {
			if out := d.must(t, "ps"); strings.Count(out, "box") < 3 {
				return fmt.Errorf("sandboxes: %s", out)
			}
			return nil
		})
		d.work(t, "--sandbox", "box2")
	})
	t.Run("partition", func(t *testing.T) { partition(t, p, d) })
	t.Run("rolling update", func(t *testing.T) { rolling(t, p, d) })
}

// addresses are a container's, by network.
func addresses(t *testing.T, id string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(must(t, "docker", "inspect", "-f", `{{range $n, $c := .NetworkSettings.Networks}}{{$n}} {{$c.IPAddress}}{{"\n"}}{{end}}`, id)) {
		if f := strings.Fields(line); len(f) == 2 {
			out[f[0]] = f[1]
		}
	}
	return out
}

// credentialsApart holds that a service sees its own credential, and nothing of others.
func credentialsApart(t *testing.T, p *project) {
	t.Helper()
	for service, want := range map[string]string{
		"hub": "hub.conf", "registrar": "registrar.creds system.creds", "box1": "sandbox.creds", "box2": "sandbox.creds", "box3": "sandbox.creds",
	} {
		id := p.id(t, service)
		dir := "/creds"
		if service == "hub" {
			dir = "/conf"
		}
		require.Equal(t, want, strings.Join(strings.Fields(must(t, "docker", "exec", id, "ls", dir)), " "), service)
		mounts := must(t, "docker", "inspect", "-f", "{{range .Mounts}}{{.Name}} {{end}}", id)
		require.NotContains(t, mounts, "keys", service)
		if service != "hub" {
			require.Len(t, strings.Fields(mounts), 1, service)
			require.Contains(t, must(t, "docker", "exec", id, "ls", "-l", dir), "-rw-------", service)
		}
	}
	who := func(box string) string {
		return must(t, "docker", "run", "--rm", "-v", p.name+"_"+box+"-creds:/creds:ro", "sandbus/sandbus", "auth", "show", "/creds/sandbox.creds")
	}
	require.Contains(t, who("box1"), "sbx.main.box1.>")
	require.NotContains(t, who("box1"), "box2")
	require.Contains(t, who("box2"), "sbx.main.box2.>")
}
