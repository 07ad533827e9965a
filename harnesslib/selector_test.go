package harnesslib

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSelectorMatchesWhatIsAskedFor(t *testing.T) {
	box := SandboxInfo{
		Zone: "main", Sandbox: "box1", Arch: "arm64", OS: "linux", Trust: "untrusted",
		Labels: map[string]string{"team": "alpha", "empty": ""}, Capabilities: []string{"files", "shell"},
	}
	for _, c := range []struct {
		name string
		s    Selector
		want bool
	}{
		{"zero", Selector{}, true},
		{"zone", Selector{Zone: "main"}, true},
		{"other zone", Selector{Zone: "east"}, false},
		{"one of the ids", Selector{ID: []string{"box0", "box1"}}, true},
		{"none of the ids", Selector{ID: []string{"box0", "box11"}}, false},
		{"label", Selector{Labels: map[string]string{"team": "alpha"}}, true},
		{"label with another value", Selector{Labels: map[string]string{"team": "beta"}}, false},
		{"label that is empty", Selector{Labels: map[string]string{"empty": ""}}, true},
		{"label that is not there", Selector{Labels: map[string]string{"missing": ""}}, false},
		{"one label of two", Selector{Labels: map[string]string{"team": "alpha", "tier": "1"}}, false},
		{"capabilities", Selector{Capabilities: []string{"shell", "files"}}, true},
		{"a capability that is missing", Selector{Capabilities: []string{"shell", "dial"}}, false},
		{"arch and os", Selector{Arch: "arm64", OS: "linux"}, true},
		{"other arch", Selector{Arch: "amd64"}, false},
		{"other os", Selector{OS: "darwin"}, false},
		{"trust", Selector{Trust: "untrusted"}, true},
		{"other trust", Selector{Trust: "trusted"}, false},
	} {
		require.Equal(t, c.want, c.s.Matches(box), c.name)
		require.NoError(t, c.s.Check(), c.name)
	}
	require.ErrorContains(t, Selector{Zone: "a.b"}.Check(), "a.b")
	require.ErrorContains(t, Selector{ID: []string{"*"}}.Check(), "*")
	require.ErrorContains(t, Selector{Trust: "some"}.Check(), "some")
}
