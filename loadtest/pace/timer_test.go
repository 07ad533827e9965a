package pace

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTimer(t *testing.T) {
	timer, err := NewTimer()
	require.NoError(t, err)
	defer timer.Close()
	for _, wait := range []time.Duration{-time.Second, 0, time.Microsecond, 3 * time.Millisecond} {
		at := time.Now().Add(wait)
		require.True(t, timer.WaitUntil(t.Context(), at))
		require.False(t, time.Now().Before(at), "it came early")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(time.Millisecond, func() { cancel(errors.New("enough")) })
	require.False(t, timer.WaitUntil(ctx, time.Now().Add(time.Hour)))
	require.False(t, timer.WaitUntil(ctx, time.Now()), "ended before")
	require.True(t, timer.WaitUntil(t.Context(), time.Now().Add(time.Millisecond)), "and it can be used again")
}
