package bus

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestReceiverSilence holds that a stream whose sender is gone ends: a worker would wait for ever for the rest of an
// upload, and keep one of its slots.
func TestReceiverSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(DefaultWindow, func([]byte) error { return nil })
		begin := time.Now()
		for range 3 { // a sender that lives and has nothing to send
			go func() {
				<-time.After(50 * time.Second)
				r.deliver(Frame{Kind: FrameKeepAlive})
			}()
			<-time.After(51 * time.Second)
		}
		go func() {
			<-time.After(40 * time.Second)
			r.deliver(Frame{Kind: FrameData, Body: []byte("x")})
		}()
		f, err := r.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x", string(f.Body))
		require.Equal(t, 193*time.Second, time.Since(begin))
		_, err = r.Next(t.Context())
		require.ErrorIs(t, err, ErrPeerSilent)
		require.Equal(t, (193+60)*time.Second, time.Since(begin))
	})
}
