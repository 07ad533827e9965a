package command

import (
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/telemetry"
	"github.com/sandbus/sandbus/workerd"
)

// serveMetrics shows a worker's metrics where the operator wants them; nil when nowhere.
func (o *options) serveMetrics(w *workerd.Worker) (*telemetry.Server, error) {
	if o.metrics == "" {
		return nil, nil //nolint:nilnil // Stop takes it
	}
	s, err := telemetry.Start(telemetry.Config{
		Addr: o.metrics, Health: w.Health, Logger: o.cfg.Logger,
		Collectors: telemetry.List(telemetry.Bus(&w.Meter().Bus, "worker", w.Connected), Metrics(w)),
	})
	if err == nil {
		o.cfg.Logger.Info("metrics are served", "address", s.Addr())
	}
	return s, err
}

// Metrics shows what a worker has counted, and its state.
func Metrics(w *workerd.Worker) telemetry.Collector {
	return func(e telemetry.Emit) {
		m := w.Meter()
		for t, tier := range workerd.Tiers {
			for k := range m.Execs[t] {
				if k == int(sandbusv1.OutcomeKind_OUTCOME_KIND_UNSPECIFIED) {
					continue
				}
				e.Counter("sandbus_execs_total", "Execs that have ended, by tier and outcome.", float64(m.Execs[t][k].Load()),
					"tier", tier, "outcome", bus.OutcomeName(sandbusv1.OutcomeKind(k)))
			}
		}
		for i, stage := range workerd.Stages {
			e.Histogram("sandbus_exec_stage_seconds", "Where the time of execs went.", &m.Stages[i], "stage", stage)
		}
		e.Flag("sandbus_draining", "Whether the worker accepts nothing new.", w.Draining())
		g := w.Gauges()
		e.Gauge("sandbus_requests_under_way", "Requests under way.", float64(g.Requests))
		e.Gauge("sandbus_execs_alive", "Execs of the stream tier that run.", float64(g.Execs))
		const shells = "Shells of the fast tier by state."
		e.Gauge("sandbus_shells", shells, float64(g.Shells.Free), "state", "free")
		e.Gauge("sandbus_shells", shells, float64(g.Shells.Alive-g.Shells.Free), "state", "busy")
		e.Gauge("sandbus_shell_queue", "Commands that wait for a shell.", float64(g.Shells.Waiting))
		e.Gauge("sandbus_lease_slots", "Slots that the worker has.", float64(g.Leases.Slots))
		e.Gauge("sandbus_lease_slots_used", "Slots that are taken.", float64(g.Leases.Used))
		e.Gauge("sandbus_lease_waiting", "Harnesses that were refused a lease and come again.", float64(g.Leases.Waiting))
		e.Counter("sandbus_leases_granted_total", "Leases that were granted.", float64(g.Leases.Granted))
		e.Counter("sandbus_leases_refused_total", "Requests for a lease for which there was no room.", float64(g.Leases.Refused))
		e.Counter("sandbus_leases_ended_total", "Leases that have ended.", float64(g.Leases.Ended))
		e.Counter("sandbus_leases_expired_total", "Leases that were not renewed in time.", float64(g.Leases.Expired))
	}
}
