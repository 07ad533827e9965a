package hostile

import "net"

// dialer connects nats.go to a hub in this process.
type dialer func() (net.Conn, error)

// Dial ignores the address: there is one hub.
func (d dialer) Dial(string, string) (net.Conn, error) { return d() }
