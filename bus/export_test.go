package bus

// Acknowledge says of an op's stream that a frame is expected next.
func (c *Caller) Acknowledge(t Target, op OpID, seq uint64) {
	_ = c.conn.publish(join(t.prefix()+"op", string(op), "ack"), ackFrame(FrameAck, seq, DefaultWindow)) // the test waits for the effect
}
