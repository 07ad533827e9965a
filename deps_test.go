package sandbus_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sandbus/sandbus/"

// deps lists all packages that a pattern needs, or with direct only those that it imports itself.
func deps(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestArrows holds which way imports may point: schemas <- bus <- workerd | harnesslib <- gateway <- loadtest, cmd;
// textedit and treetar know none of them, and serve both sides.
func TestArrows(t *testing.T) {
	for _, c := range []struct {
		from      string   // these packages, with all that they need,
		forbidden []string // reach none below these
	}{
		{"./schemas/...", []string{"bus", "workerd", "harnesslib", "cmd", "loadtest", "!github.com/nats-io"}},
		{"./bus", []string{"workerd", "harnesslib", "cmd", "loadtest", "bus/hub", "!github.com/nats-io/nats-server"}},
		{"./bus/auth", []string{"workerd", "harnesslib", "cmd", "loadtest", "bus/hub", "!github.com/nats-io/nats-server"}},
		{"./bus/hub", []string{"workerd", "harnesslib", "cmd", "loadtest"}},
		{"./textedit", []string{"schemas", "bus", "workerd", "harnesslib", "cmd", "loadtest", "!github.com/nats-io"}},
		{"./treetar", []string{"schemas", "bus", "workerd", "harnesslib", "cmd", "loadtest", "!github.com/nats-io"}},
		{"./workerd/...", []string{"harnesslib", "gateway", "cmd", "loadtest", "bus/hub", "!github.com/nats-io/nats-server"}},
		{"./harnesslib/...", []string{"workerd", "gateway", "cmd", "loadtest", "bus/hub", "!github.com/nats-io/nats-server"}},
		{"./gateway", []string{"workerd", "cmd", "loadtest", "bus/hub", "!github.com/nats-io/nats-server"}},
		{"./gateway/plainrelay", []string{"bus", "workerd", "harnesslib", "cmd", "loadtest", "!github.com/nats-io"}},
		{"./loadtest/pace", []string{"schemas", "bus", "workerd", "harnesslib", "gateway", "cmd", "!github.com/nats-io"}},
		{"./loadtest/record", []string{"schemas", "bus", "workerd", "harnesslib", "gateway", "cmd", "!github.com/nats-io"}},
		{"./loadtest/report", []string{"schemas", "bus", "workerd", "harnesslib", "gateway", "cmd", "!github.com/nats-io"}},
		{"./loadtest/workload", []string{"schemas", "bus", "workerd", "harnesslib", "gateway", "cmd", "!github.com/nats-io"}},
		{"./cmd/workerd", []string{"harnesslib", "gateway", "loadtest", "bus/hub", "!github.com/nats-io/nats-server"}},
	} {
		t.Run(c.from, func(t *testing.T) {
			got := deps(t, "-deps", c.from)
			require.NotEmpty(t, got)
			for _, f := range c.forbidden {
				path, foreign := strings.CutPrefix(f, "!")
				if !foreign {
					path = module + f
				}
				for _, d := range got {
					require.False(t, d == path || strings.HasPrefix(d, path+"/"), "%s reaches %s", c.from, d)
				}
			}
		})
	}
}

// TestOnlyBusKnowsNATS holds that NATS types stay behind bus, in tests too.
func TestOnlyBusKnowsNATS(t *testing.T) {
	for line := range strings.SplitSeq(strings.Join(deps(t, "-test", "-f", `{{.ImportPath}}|{{join .Imports ","}}`, "./..."), "\n"), "\n") {
		pkg, imports, _ := strings.Cut(line, "|")
		pkg = strings.TrimPrefix(pkg, "[") // "bus [bus.test]": the package together with its own tests
		if strings.HasPrefix(pkg, module+"bus") {
			continue
		}
		require.NotContains(t, imports, "github.com/nats-io/", "%s imports NATS", pkg)
	}
}
