package transport

// Tier is a way of serving an operation.
type Tier string

// The tiers.
const (
	TierFast   Tier = "fast"   // by what is already there
	TierStream Tier = "stream" // by a process of its own
)

// FastTier is what serves short operations.
type FastTier string

// The fast tiers.
const (
	FastNone   FastTier = "none"   // nothing: every operation takes a process of its own
	FastShell  FastTier = "shell"  // a long-lived shell
	FastNative FastTier = "native" // file operations without a process, commands on a long-lived shell
)

// StopMechanism is how a command is stopped by a timeout, an abort or the output limit.
type StopMechanism string

// The stop mechanisms.
const (
	// StopRemoteAbort tells the far side, which kills what the command started. When Exec returns nothing of that is alive.
	StopRemoteAbort StopMechanism = "remote-abort"
	// StopProducerCap bounds the output at the far side: a command that prints too much is dead when Exec returns, one
	// that is silent may run on.
	StopProducerCap StopMechanism = "producer-side-cap"
	// StopLocalKill kills the near process only: what runs at the far side ends when it next prints, or runs on.
	StopLocalKill StopMechanism = "local-kill"
)

// Declaration is what a transport says of itself.
type Declaration struct {
	FastTier      FastTier
	StopMechanism StopMechanism
	Streams       bool
}

// Declared asks a transport for its declaration.
func Declared(t Transport) Declaration {
	return Declaration{FastTier: t.FastTier(), StopMechanism: t.StopMechanism(), Streams: t.Streams()}
}
