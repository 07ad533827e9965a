package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/gateway"
	"github.com/sandbus/sandbus/telemetry"
)

// addService adds the flags of verbs that serve until they are told to end.
func (a *app) addService(c *cobra.Command) {
	f := c.Flags()
	f.Var(&a.logFormat, "log-format", "write what happens to standard error, as \"text\" or \"json\" (environment: SANDBUS_LOG_FORMAT; default: nothing, or text with -v)")
	f.StringVar(&a.metrics, "metrics-addr", "", "`HOST:PORT` for metrics (/metrics) and health (/healthz); open to all who reach it (environment: SANDBUS_METRICS_ADDR; default: none)")
}

// readService takes what the environment says of those flags.
func (a *app) readService() error {
	a.metrics = or(a.metrics, os.Getenv("SANDBUS_METRICS_ADDR"))
	if _, _, err := net.SplitHostPort(a.metrics); a.metrics != "" && err != nil {
		return &usageError{fmt.Errorf("--metrics-addr %q: want HOST:PORT, such as 127.0.0.1:9464", a.metrics)}
	}
	if v := os.Getenv("SANDBUS_LOG_FORMAT"); v != "" && a.logFormat == "" {
		if err := a.logFormat.Set(v); err != nil {
			return &usageError{fmt.Errorf("SANDBUS_LOG_FORMAT=%q: %w", v, err)}
		}
	}
	return nil
}

// serveMetrics shows what a verb's parts count, where the operator wants it; nil when nowhere.
func (a *app) serveMetrics(health func() error, all ...telemetry.Collector) (*telemetry.Server, error) {
	if a.metrics == "" {
		return nil, nil //nolint:nilnil // Stop takes it
	}
	s, err := telemetry.Start(telemetry.Config{Addr: a.metrics, Health: health, Logger: a.logger(), Collectors: telemetry.List(all...)})
	if err == nil {
		_, err = fmt.Fprintf(a.stdout, "metrics at http://%s/metrics\n", s.Addr())
	}
	return s, err
}

var (
	errNotConnected = errors.New("not connected to the hub")
	errNoBucket     = errors.New("the registrar has no presence bucket at the hub")
)

// registrarHealth says whether a registrar keeps presence.
func registrarHealth(r *bus.Registrar) func() error {
	return func() error {
		if !r.Open() {
			return errNoBucket
		}
		return nil
	}
}

// hubMetrics shows an embedded hub's server.
func hubMetrics(h *hub.Hub) telemetry.Collector {
	return func(e telemetry.Emit) {
		s, err := h.Stats()
		if err != nil {
			return // it is stopping
		}
		e.Gauge("sandbus_hub_connections", "Clients that are connected.", float64(s.Connections))
		e.Gauge("sandbus_hub_subscriptions", "Subscriptions that there are.", float64(s.Subscriptions))
		e.Counter("sandbus_hub_slow_consumers_total", "Clients that were disconnected because they did not keep up.", float64(s.SlowConsumers))
		e.Counter("sandbus_hub_messages_total", "Messages.", float64(s.InMsgs), "direction", "in")
		e.Counter("sandbus_hub_messages_total", "Messages.", float64(s.OutMsgs), "direction", "out")
		e.Counter("sandbus_hub_bytes_total", "Bytes of messages.", float64(s.InBytes), "direction", "in")
		e.Counter("sandbus_hub_bytes_total", "Bytes of messages.", float64(s.OutBytes), "direction", "out")
		e.Gauge("sandbus_hub_jetstream_bytes", "Bytes that JetStream holds.", float64(s.JetStreamBytes))
	}
}

// gatewayMetrics shows what a gateway's leases and workers are.
func gatewayMetrics(g *gateway.Gateway) telemetry.Collector {
	return func(e telemetry.Emit) {
		s := g.Stats()
		e.Gauge("sandbus_gateway_workers", "Workers that are attached.", float64(s.Workers))
		e.Gauge("sandbus_harness_leases_held", "Leases that are held.", float64(s.Leases.Held))
		e.Gauge("sandbus_harness_leases_waiting", "Calls that wait for a lease.", float64(s.Leases.Waiting))
		e.Gauge("sandbus_harness_leases_saturated_share", "Part of the calls for a lease that found no slot free, 0 to 1.", s.Leases.SaturatedShare())
		e.Counter("sandbus_harness_lease_acquires_total", "Calls for a lease.", float64(s.Leases.Acquires))
		e.Counter("sandbus_harness_leases_granted_total", "Leases that workers have granted.", float64(s.Leases.Granted))
		e.Counter("sandbus_harness_leases_refused_total", "Times that a worker had no room.", float64(s.Leases.Refused))
		e.Counter("sandbus_harness_lease_wait_seconds_total", "Time that calls have waited for a lease.", s.Leases.WaitTime.Seconds())
	}
}
