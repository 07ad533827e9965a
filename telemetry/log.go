package telemetry

import (
	"errors"
	"io"
	"log/slog"
)

// LogFormat is the form of a log: "text" or "json"; empty means text. It is a flag's value.
type LogFormat string

// String is the format's name.
func (f *LogFormat) String() string { return string(*f) }

// Type is what the flag's value is called in a usage text.
func (f *LogFormat) Type() string { return "format" }

// Set takes a format's name. Errors: it is none.
func (f *LogFormat) Set(v string) error {
	if v != "text" && v != "json" {
		return errors.New("want text or json")
	}
	*f = LogFormat(v)
	return nil
}

// Logger writes a line for each event of a level and above.
func (f *LogFormat) Logger(w io.Writer, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if *f == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// Keys are the keys that lines of logs have, besides slog's own (time, level, msg). A test holds that no other is used.
var Keys = []string{
	"address", "code", "epoch", "error", "exclusive", "exec", "execs", "expires", "fallbacks", "fast", "got", "harness",
	"idle", "instance", "known", "limit", "line", "message", "native", "op", "outcome", "reason", "req_id", "requests", "run_ms", "run_us", "sandbox",
	"session", "since", "size", "state", "stderr_bytes", "stdout_bytes", "subject", "trace_id", "url", "verb", "want", "why", "zone",
}
