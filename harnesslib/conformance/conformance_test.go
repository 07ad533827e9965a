package conformance_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/harnesslib/conformance"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/local"
	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestFaultsAreFound has each case fail on at least one broken transport, and each of these be found.
func TestFaultsAreFound(t *testing.T) {
	cases := map[string]conformance.Case{}
	for _, c := range conformance.Cases() {
		require.NotContains(t, cases, c.Name)
		cases[c.Name] = c
	}
	var failed []string
	for _, f := range conformance.Faults() {
		require.NotEmpty(t, f.Fails, f.Name)
		failed = append(failed, f.Fails...)
		for _, name := range f.Fails {
			c, ok := cases[name]
			require.True(t, ok, "%s fails %q, which is no case", f.Name, name)
			t.Run(f.Name+": "+name, func(t *testing.T) {
				t.Parallel()
				whole := func() (transport.Transport, error) { return local.New(local.Config{Dir: "/", Shell: "/bin/sh"}) }
				sample, err := whole()
				require.NoError(t, err)
				declared := transport.Declared(sample)
				err = c.Check(t.Context(), func() (transport.Transport, error) {
					tr, err := whole()
					return f.Break(tr), err
				}, declared)
				require.Error(t, err, "the battery does not find it")
				t.Log(err)
			})
		}
	}
	for name := range cases {
		require.True(t, slices.Contains(failed, name), "no broken transport fails %q", name)
	}
}
