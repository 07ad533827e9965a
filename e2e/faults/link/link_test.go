package link

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbus/sandbus/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// echo answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func start(t *testing.T) *Link {
	t.Helper()
	k, err := New(echo(t))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	return k
}

type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, k *Link) *client {
	t.Helper()
	c, err := net.Dial("tcp", k.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, bufio.NewReader(c)}
}

func (c *client) say(t *testing.T, line string) error {
	t.Helper()
	_, err := io.WriteString(c, line+"\n")
	if err != nil {
		return err
	}
	got, err := c.r.ReadString('\n')
	if err == nil {
		require.Equal(t, line+"\n", got)
	}
	return err
}

func TestCutAndMend(t *testing.T) {
	k := start(t)
	c := dial(t, k)
	require.NoError(t, c.say(t, "one"))
	k.Cut()
	require.Error(t, c.say(t, "two"))
	require.Error(t, dial(t, k).say(t, "three"), "a new one")
	k.Mend()
	c = dial(t, k)
	require.NoError(t, c.say(t, "four"))
	k.Drop()
	require.Error(t, c.say(t, "five"))
	require.NoError(t, dial(t, k).say(t, "six"))
}

func TestHole(t *testing.T) {
	k := start(t)
	c := dial(t, k)
	require.NoError(t, c.say(t, "one"))
	k.Set(Rules{}, Rules{Hole: true})
	require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	var ne net.Error
	require.ErrorAs(t, c.say(t, "two"), &ne)
	require.True(t, ne.Timeout(), "the connection must live")
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	k.Mend()
	require.NoError(t, c.say(t, "three"), "what was swallowed must not come")
}

func TestDelayAndRate(t *testing.T) {
	k := start(t)
	c := dial(t, k)
	require.NoError(t, c.say(t, "one"))
	k.Set(Rules{Delay: 100 * time.Millisecond}, Rules{})
	begin := time.Now()
	require.NoError(t, c.say(t, "two"))
	require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
	k.Set(Rules{}, Rules{Rate: 10000})
	begin = time.Now()
	require.NoError(t, c.say(t, string(make([]byte, 3000))))
	require.GreaterOrEqual(t, time.Since(begin), 250*time.Millisecond)
	// Whoever waits under an old rule does not wait on.
	k.Set(Rules{Delay: time.Hour}, Rules{})
	done := make(chan error, 1)
	go func() { done <- c.say(t, "three") }()
	k.Mend()
	require.NoError(t, <-done)
}

func TestHalfClose(t *testing.T) {
	k := start(t)
	c := dial(t, k)
	require.NoError(t, c.say(t, "one"))
	k.HalfClose()
	_, err := c.r.ReadString('\n')
	require.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(c, "the other direction lives\n")
	require.NoError(t, err)
}
