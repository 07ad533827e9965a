package main

import (
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseForward(t *testing.T) {
	for s, want := range map[string]forward{
		"8080": {8080, 8080}, "8080:80": {8080, 80}, ":80": {0, 80}, "1:65535": {1, 65535},
	} {
		got, err := parseForward(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", ":", "0", "65536", "80:", "a:80", "80:a", "+80", "-1", " 80", "1:2:3", "0:80", "127.0.0.1:80"} {
		_, err := parseForward(s)
		require.ErrorContains(t, err, "such as 8080:80", s)
		require.ErrorContains(t, err, strconv.Quote(s))
	}
}

func FuzzParseForward(f *testing.F) {
	for _, s := range []string{"8080", "8080:80", ":80", "", "a:b", "00080"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseForward(s)
		if err != nil {
			var ue *usageError
			require.ErrorAs(t, err, &ue)
			return
		}
		require.True(t, got.remote >= 1 && got.remote <= 65535 && got.local >= 0 && got.local <= 65535)
	})
}

// TestListenLoopback opens both addresses on one port, and refuses a port that is taken on either.
func TestListenLoopback(t *testing.T) {
	lns, err := listenLoopback(t.Context(), 0)
	require.NoError(t, err)
	port := lns[0].Addr().(*net.TCPAddr).Port
	for _, ln := range lns {
		require.Equal(t, port, ln.Addr().(*net.TCPAddr).Port)
		require.True(t, ln.Addr().(*net.TCPAddr).IP.IsLoopback())
	}
	_, err = listenLoopback(t.Context(), port)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, lns[0].Close())
	if len(lns) == 2 { // only [::1] is taken now
		_, err = listenLoopback(t.Context(), port)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, lns[1].Close())
	}
}
