package bus

// Acknowledge says of an op's stream that a frame is expected next.
func (c *Caller) Acknowledge(t Target, op OpID, seq uint64) {
	_ = c.conn.publish(join(t.prefix()+"op", string(op), "ack"), ackFrame(FrameAck, seq, DefaultWindow)) // the test waits for the effect
}

// ConnectionNumber is what the hub's server calls a connection.
func ConnectionNumber(c *Conn) uint64 { return c.connection().client }

// IsConnected says whether a connection is up.
func IsConnected(c *Conn) bool {
	up, _ := c.state()
	return up
}

// AcknowledgeMine is Acknowledge as this caller's streams do it.
func (c *Caller) AcknowledgeMine(t Target, op OpID, seq uint64) {
	_ = c.conn.publish(c.controlSubject(t, op, "ack"), ackFrame(FrameAck, seq, DefaultWindow)) // likewise
}

// Sent is how many bytes of messages have left on the connection.
func (c *Conn) Sent() uint64 { return c.nc.Stats().OutBytes }
