package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandbus/sandbus/bus"
)

// Emit gets the metrics of one scrape.
type Emit struct{ ch chan<- prometheus.Metric }

// Collector makes a collector of a function that is called at each scrape.
type Collector func(Emit)

// Describe implements prometheus.Collector: what there is follows from what has happened.
func (Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) { c(Emit{ch}) }

// Counter shows a number that only grows. labels are names and values in turn, here and below.
func (e Emit) Counter(name, help string, value float64, labels ...string) {
	e.value(prometheus.CounterValue, name, help, value, labels)
}

// Gauge shows a number that goes up and down.
func (e Emit) Gauge(name, help string, value float64, labels ...string) {
	e.value(prometheus.GaugeValue, name, help, value, labels)
}

// Flag shows a gauge of 0 or 1.
func (e Emit) Flag(name, help string, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	e.value(prometheus.GaugeValue, name, help, value, labels)
}

// Histogram shows durations.
func (e Emit) Histogram(name, help string, h *bus.Histogram, labels ...string) {
	names, values := split(labels)
	count, sum, upTo := h.Snapshot()
	e.ch <- prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, names, nil), count, sum, upTo, values...)
}

func (e Emit) value(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	names, values := split(labels)
	e.ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
}

func split(labels []string) (names, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}

// Bus shows what a meter has counted. hop is where the requests were timed: "worker" from their arrival to the end of the
// answer, "harness" the whole way there and back. connected says whether there is a connection to the hub now.
func Bus(m *bus.Meter, hop string, connected func() bool) Collector {
	return func(e Emit) {
		for verb, l := range m.Latencies() {
			e.Histogram("sandbus_request_seconds", "How long requests took, by verb and where they were timed.", &l.Histogram, "verb", verb, "hop", hop)
			e.Counter("sandbus_requests_failed_total", "Requests that were answered with an error or not at all.", float64(l.Failed.Load()), "verb", verb, "hop", hop)
		}
		for _, c := range []struct {
			name, help string
			value      int64
		}{
			{"sandbus_disconnects_total", "Times that the connection to the hub was lost.", m.Disconnects.Load()},
			{"sandbus_reconnects_total", "Times that the connection to the hub has come back.", m.Reconnects.Load()},
			{"sandbus_credit_stalls_total", "Times that a sender of a stream waited for credit.", m.CreditStalls.Load()},
			{"sandbus_resent_bytes_total", "Bytes of frames that were sent again.", m.ResentBytes.Load()},
			{"sandbus_keepalives_total", "Frames that said that a stream or a request lives.", m.KeepAlives.Load()},
			{"sandbus_request_repeats_total", "Requests that were sent again.", m.Repeats.Load()},
		} {
			e.Counter(c.name, c.help, float64(c.value), "hop", hop)
		}
		const naks = "Gaps in streams: seen by us and told to the peer (sent), or told by it (received)."
		e.Counter("sandbus_naks_total", naks, float64(m.NaksSent.Load()), "hop", hop, "direction", "sent")
		e.Counter("sandbus_naks_total", naks, float64(m.NaksReceived.Load()), "hop", hop, "direction", "received")
		e.Flag("sandbus_connected", "Whether there is a connection to the hub.", connected(), "hop", hop)
	}
}

// Registrar shows what a registrar has counted.
func Registrar(r *bus.Registrar) Collector {
	return func(e Emit) {
		m := r.Meter()
		e.Counter("sandbus_registrar_beats_total", "Beats of workers that were heard.", float64(m.Beats.Load()))
		const hellos = "Workers that were made the one of their id (adopted), or told that another one is (refused)."
		e.Counter("sandbus_registrar_hellos_total", hellos, float64(m.Adopted.Load()), "result", "adopted")
		e.Counter("sandbus_registrar_hellos_total", hellos, float64(m.Refused.Load()), "result", "refused")
		e.Counter("sandbus_registrar_gone_total", "Workers that were found to be gone.", float64(m.Gone.Load()))
		e.Counter("sandbus_registrar_suspect_total", "Times that a worker was silent for too long.", float64(m.Suspect.Load()))
		e.Counter("sandbus_registrar_dropped_total", "Things said by workers that were not taken.", float64(m.Dropped.Load()))
		e.Counter("sandbus_registrar_failed_total", "Things said by workers that were wrong or could not be written.", float64(m.Failed.Load()))
		e.Gauge("sandbus_registrar_sandboxes", "Live sandboxes that the registrar knows.", float64(r.Live()))
		e.Flag("sandbus_registrar_open", "Whether the registrar has its bucket and a connection to the hub.", r.Open())
	}
}

// List makes a list of collectors.
func List(all ...Collector) []prometheus.Collector {
	out := make([]prometheus.Collector, len(all))
	for i, c := range all {
		out[i] = c
	}
	return out
}
