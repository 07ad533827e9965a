//go:build !linux

package pace

// NewTimer makes a timer that is as exact as the machine allows.
func NewTimer() (Timer, error) { return ordinary{}, nil }
