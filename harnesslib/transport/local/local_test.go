package local_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/local"
	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(tb testing.TB, cfg local.Config) transport.Transport {
	tb.Helper()
	tr, err := local.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, tr.Close()) })
	return tr
}

func TestConformance(t *testing.T) {
	root := func(tb testing.TB) transport.Transport {
		tb.Helper()
		return open(tb, local.Config{Dir: "/"})
	}
	conformance.Run(t, root, transport.Declaration{FastTier: transport.FastShell, StopMechanism: transport.StopRemoteAbort, Streams: true})
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	tr := open(t, local.Config{Dir: dir, Env: []string{"SANDBUS_X=y z"}})
	res, err := tr.Exec(t.Context(), transport.Command{Script: `pwd -P; printf %s "$SANDBUS_X"`})
	require.NoError(t, err)
	require.Equal(t, dir+"\ny z", string(res.Stdout))
	require.NoError(t, tr.Files().WriteFile(t.Context(), "f", []byte("x"), 0o644))
	require.FileExists(t, dir+"/f")

	_, err = open(t, local.Config{Shell: "/no/such/shell"}).Exec(t.Context(), transport.Command{Script: "true"})
	require.ErrorIs(t, err, transport.ErrUnreachable)
}
