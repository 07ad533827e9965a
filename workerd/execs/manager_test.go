package execs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// TestOneIDInTwoSandboxes runs an exec of the same id in two sandboxes of one machine and aborts one: the other goes on.
func TestOneIDInTwoSandboxes(t *testing.T) {
	start := func() *Exec {
		m := NewManager(Config{})
		t.Cleanup(m.Close)
		e, _, err := m.Start(Spec{ID: "same", Detach: true, Limit: -1, Proc: proc.Spec{Argv: []string{"/bin/sleep", "300"}, Dir: t.TempDir()}})
		require.NoError(t, err)
		<-e.Started()
		return e
	}
	a, b := start(), start()
	a.Abort()
	<-a.Done()
	require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED, a.Result().GetOutcome().GetKind(), "%v", a.Result())
	select {
	case <-b.Done():
		require.Fail(t, "the other exec ended too", "%v", b.Result())
	case <-time.After(300 * time.Millisecond): // it would have been told together with the first
	}
	b.Abort()
	<-b.Done()
	require.Equal(t, sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED, b.Result().GetOutcome().GetKind())
}
