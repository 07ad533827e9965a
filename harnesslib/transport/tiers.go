package transport

import (
	"context"
	"errors"
)

// Tiers is a transport that is made of two: Fast for files and for commands whose output is wanted at the end, Stream for
// all else. Both may be the same. Neither may be nil.
type Tiers struct {
	Fast   Transport
	Stream Transport
}

var _ Transport = Tiers{}

// Both makes one transport serve as both tiers.
func Both(t Transport) Tiers { return Tiers{Fast: t, Stream: t} }

// Exec runs a command on the tier that fits it: Stream when it has input or its output is wanted as it comes.
func (t Tiers) Exec(ctx context.Context, c Command) (*Result, error) {
	if c.Streaming() || c.Stdin != nil {
		return t.Stream.Exec(ctx, c)
	}
	return t.Fast.Exec(ctx, c)
}

// Files are those of Fast.
func (t Tiers) Files() Files { return t.Fast.Files() }

// FastTier is that of Fast.
func (t Tiers) FastTier() FastTier { return t.Fast.FastTier() }

// StopMechanism is what both have, and the weaker one of two.
func (t Tiers) StopMechanism() StopMechanism {
	a, b := t.Fast.StopMechanism(), t.Stream.StopMechanism()
	for _, weak := range []StopMechanism{StopLocalKill, StopProducerCap} {
		if a == weak || b == weak {
			return weak
		}
	}
	return a
}

// Streams is that of Stream.
func (t Tiers) Streams() bool { return t.Stream.Streams() }

// Close closes both, once when they are the same.
func (t Tiers) Close() error {
	err := t.Fast.Close()
	if t.Stream != t.Fast {
		err = errors.Join(err, t.Stream.Close())
	}
	return err
}
