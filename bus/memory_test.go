package bus

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMemoryIsBounded fills the memory of outcomes past each of its bounds.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory{outcomes: map[OpID]*outcome{}}
		id := func(i int) OpID { return OpID(fmt.Sprint("op", i)) }
		answer := make([]byte, 1<<20)
		for i := range 100 {
			m.end(id(i), &outcome{answer: answer})
		}
		require.Equal(t, maxAnswers, m.bytes)
		require.Nil(t, m.outcomes[id(0)].answer, "the oldest answers go first")
		require.True(t, m.ended(id(0)), "and their ops stay known")
		require.NotNil(t, m.outcomes[id(99)].answer)

		<-time.After(keepAnswers + time.Second)
		m.end(id(100), &outcome{answer: []byte("x")})
		require.Equal(t, 1, m.bytes, "those that are old have gone")

		for i := range 3 * maxOutcomes {
			m.end(id(i), &outcome{answer: []byte("x")})
			m.end(id(i), &outcome{answer: []byte("y")}) // aborted first, say
		}
		require.Len(t, m.outcomes, maxOutcomes)
		require.Len(t, m.order, maxOutcomes)
		require.LessOrEqual(t, len(m.answers), 2*maxOutcomes+1)
		require.Equal(t, maxOutcomes, m.bytes)
		m.abort("x")
		require.True(t, m.aborted("x"))
		require.False(t, m.ended("x"))
	})
}
