package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Metrics are the metrics of one process. As a broker.Observer it counts the appends of
// this process; Supervision, Engine, Worker, Index and Gateway add the metrics of the parts
// that run in it. docs/operations/metrics.md lists all of them.
type Metrics struct {
	registry  *prometheus.Registry
	agents    *agentLabeler // shared by all metrics, so that AgentsMax bounds the process
	appends   prometheus.Counter
	conflicts prometheus.Counter
	events    map[protocol.EventType]prometheus.Counter // resolved once: an append looks up no label
}

// NewMetrics returns metrics that include those of the Go runtime and of the process.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), agents: &agentLabeler{known: map[string]bool{}}}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.appends = m.counter("handoff_appends_total", "Appends to the ledger made by this process.")
	m.conflicts = m.counter("handoff_append_conflicts_total",
		"Appends of this process that lost to an earlier one and wrote nothing, including submissions repeated under their key.")
	m.events = map[protocol.EventType]prometheus.Counter{}
	appended := m.counters("handoff_append_events_total", "Events in the appends made by this process.", "event")
	for _, event := range protocol.EventTypes {
		m.events[event] = appended.WithLabelValues(string(event))
	}
	return m
}

// Appended implements broker.Observer.
func (m *Metrics) Appended(_ context.Context, _ protocol.State, _ broker.Head, events []protocol.Event) {
	m.appends.Inc()
	for _, e := range events {
		m.events[e.EventType()].Inc()
	}
}

// Conflicted implements broker.Observer.
func (m *Metrics) Conflicted(context.Context, string) { m.conflicts.Inc() }

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

func (m *Metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(h)
	return h
}

// stageBuckets are the durations of stages in seconds: from a program that answers at
// once to a person who answers next week.
var stageBuckets = []float64{.005, .025, .1, .5, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400, 604_800}

// latenessBuckets are the delays of timers in seconds. The engine's timers are exact to a quarter
// of a second.
var latenessBuckets = []float64{.05, .25, .5, 1, 2.5, 5, 15, 60, 300, 3_600}
