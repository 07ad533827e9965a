package auth_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/auth"
	"github.com/sandbus/sandbus/bus/bustest"
)

// TestASecondHostUndoesNoRevocation pushes from a copy of the keys that does not know of a revocation.
func TestASecondHostUndoesNoRevocation(t *testing.T) {
	o := bustest.StartOperator(t)
	dir := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(dir, os.DirFS(o.Keys.Dir())))
	require.NoError(t, os.Chmod(filepath.Join(dir, "operator.nk"), 0o600)) // the copy is made with the usual modes
	second, err := auth.Open(dir, "")
	require.NoError(t, err)
	cred := o.Issue(t, sandbox("box1"), 0)
	d, _ := cred.Details()
	admin := o.Admin(t)
	require.NoError(t, o.Keys.Revoke(t.Context(), admin, auth.DefaultTenant, d.Key))
	require.NoError(t, second.Push(t.Context(), admin, auth.DefaultTenant))
	_, err = bus.Connect(t.Context(), o.Config(t, cred))
	require.ErrorIs(t, err, bus.ErrRevoked)
}
