package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus/hub"
)

func TestDoctorWithoutARegistrar(t *testing.T) {
	dir := t.TempDir()
	h, err := hub.Start(t.Context(), hub.Config{Dir: dir, NoRegistrar: true})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"doctor", "--json", "--state-dir", dir}, strings.NewReader(""), &stdout, &stderr)
	require.Equal(t, exitFailed, code, stderr.String())
	var checks []check
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &checks))
	results := map[string]string{}
	for _, c := range checks {
		results[c.Name] = c.Result
		if c.Name == "registrar" {
			require.Contains(t, c.Detail, "does a registrar run at this hub?")
		}
	}
	require.Equal(t, map[string]string{
		"credential": checkOK, "reach": checkOK, "hub": checkOK, "permissions": checkOK, "registrar": checkFail,
		"sandbox": checkSkipped, "clock": checkSkipped, "files": checkSkipped, "shell": checkSkipped, "privileges": checkSkipped,
	}, results)
}
