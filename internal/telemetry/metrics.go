package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

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
	return promauto.With(m.registry).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	return promauto.With(m.registry).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(m.registry).NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func (m *Metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(m.registry).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// stageBuckets are the durations of stages in seconds: from a program that answers at
// once to a person who answers next week.
var stageBuckets = []float64{.005, .025, .1, .5, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400, 604_800}

// latenessBuckets are the delays of timers in seconds. The engine's timers are exact to a quarter
// of a second.
var latenessBuckets = []float64{.05, .25, .5, 1, 2.5, 5, 15, 60, 300, 3_600}

// MultiObserver returns an observer that calls several, in their order; nil ones are left
// out. It is nil without any, so that a broker without an observer pays nothing.
func MultiObserver(observers ...broker.Observer) broker.Observer {
	var all multiObserver
	for _, o := range observers {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type multiObserver []broker.Observer

func (all multiObserver) Appended(ctx context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	for _, o := range all {
		o.Appended(ctx, before, after, events)
	}
}

func (all multiObserver) Conflicted(ctx context.Context, ticket string) {
	for _, o := range all {
		o.Conflicted(ctx, ticket)
	}
}

// sequenceWindowSize is how many sequences are remembered at least: far more than supervisors
// process at a time.
const sequenceWindowSize = 1 << 16

// sequenceWindow recognises entries of the ledger that are delivered again. The sequences of
// partitions lie far apart, so it is a set, of which the older half goes when the newer one is full.
type sequenceWindow struct {
	mu         sync.Mutex
	newer, old map[uint64]bool
}

// firstDelivery is true once for each sequence, and again for one that has left the window.
func (w *sequenceWindow) firstDelivery(seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newer[seq] || w.old[seq] {
		return false
	}
	if w.newer == nil || len(w.newer) == sequenceWindowSize {
		w.newer, w.old = make(map[uint64]bool, len(w.newer)), w.newer
	}
	w.newer[seq] = true
	return true
}

// The metrics of a worker, an index and a gateway in this process. A scrape reads them.

// WorkerStats are the figures of a worker, from worker.Stats.
type WorkerStats struct {
	// Ended counts handoffs by how they ended, in constant words.
	Ended       map[string]int64
	Claimed     int64
	Slots, Busy int
	// Present reports whether the engine has confirmed a heartbeat of this worker within its lease.
	Present bool
}

// Worker adds the metrics of a worker that serves an agent.
func (m *Metrics) Worker(agent string, read func() WorkerStats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"agent": agent})
	}
	var (
		claims  = desc("handoff_worker_claims_total", "Handoffs that this worker accepted.")
		ended   = desc("handoff_worker_ended_total", "Handoffs of this worker that ended, by outcome.", "outcome")
		slots   = desc("handoff_worker_slots", "Handoffs that this worker can hold at a time.")
		busy    = desc("handoff_worker_busy_slots", "Handoffs that this worker holds.")
		present = desc("handoff_worker_present", "1 if the engine has confirmed a heartbeat of this worker within its lease, else 0.")
	)
	m.registry.MustRegister(&collector{[]*prometheus.Desc{claims, ended, slots, busy, present}, func(to chan<- prometheus.Metric) {
		f := read()
		to <- counterMetric(claims, f.Claimed)
		for outcome, n := range f.Ended {
			to <- counterMetric(ended, n, outcome)
		}
		to <- gaugeMetric(slots, float64(f.Slots))
		to <- gaugeMetric(busy, float64(f.Busy))
		to <- gaugeMetric(present, boolValue(f.Present))
	}})
}

// IndexStats are the figures of an index, from ask.PositionAnswer.
type IndexStats struct {
	Seq, Behind uint64
	BehindFor   time.Duration
	Complete    bool
	Handoffs    int64
	FileBytes   int64
	Rebuilds    int64
	// Gates are the gates at which handoffs may wait, by their kinds.
	Gates map[string]GateStats
}

// GateStats are the handoffs that wait at one kind of gate.
type GateStats struct {
	Waiting int64
	Oldest  time.Duration // of the one that has waited for longest
}

// indexTimeout is how long a scrape waits for the index.
const indexTimeout = 2 * time.Second

// Index adds the metrics of an index. read must not wait until the index is complete.
func (m *Metrics) Index(read func(context.Context) (IndexStats, error)) {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	var (
		up        = desc("handoff_index_up", "1 if the index answered this scrape, else 0.")
		seq       = desc("handoff_index_seq", "Ledger sequence up to which the index has everything.")
		behind    = desc("handoff_index_behind", "Entries of the ledger that the index does not have yet.")
		behindFor = desc("handoff_index_behind_seconds", "How long the index is behind the end of the ledger, as far as known.")
		complete  = desc("handoff_index_complete", "1 if the index has everything, else 0.")
		handoffs  = desc("handoff_index_handoffs", "Handoffs in the index.")
		bytes     = desc("handoff_index_file_bytes", "Size of the index's file.")
		rebuilds  = desc("handoff_index_rebuilds_total", "Rebuilds of the index.")
		waiting   = prometheus.NewDesc("handoff_gate_waiting", "Open handoffs that wait at a gate before their next offer.", []string{"gate"}, nil)
		oldest    = prometheus.NewDesc("handoff_gate_oldest_seconds", "How long the first handoff at a gate has waited; 0 where there is none.", []string{"gate"}, nil)
	)
	m.registry.MustRegister(&collector{[]*prometheus.Desc{up, seq, behind, behindFor, complete, handoffs, bytes, rebuilds, waiting, oldest}, func(to chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), indexTimeout)
		defer cancel()
		f, err := read(ctx)
		to <- gaugeMetric(up, boolValue(err == nil))
		if err != nil {
			return
		}
		to <- gaugeMetric(seq, float64(f.Seq))
		to <- gaugeMetric(behind, float64(f.Behind))
		to <- gaugeMetric(behindFor, f.BehindFor.Seconds())
		to <- gaugeMetric(complete, boolValue(f.Complete))
		to <- gaugeMetric(handoffs, float64(f.Handoffs))
		to <- gaugeMetric(bytes, float64(f.FileBytes))
		to <- counterMetric(rebuilds, f.Rebuilds)
		for gate, g := range f.Gates {
			to <- gaugeMetric(waiting, float64(g.Waiting), gate)
			to <- gaugeMetric(oldest, g.Oldest.Seconds(), gate)
		}
	}})
}

// GatewayStats are the figures of a gateway, from natsgateway.Load. Its maps have constant keys.
type GatewayStats struct {
	Requests, MemoryBytes int64
	// Answers counts requests by how they were answered.
	Answers map[string]int64
	// Busy counts refusals by the limit that was reached, and Reclaimed those of an agent that
	// gave way to another's share.
	Busy, Reclaimed map[string]int64
}

// Gateway adds the metrics of a gateway.
func (m *Metrics) Gateway(read func() GatewayStats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	var (
		requests  = desc("handoff_gateway_requests", "Requests in progress, including waiting ones.")
		memory    = desc("handoff_gateway_memory_bytes", "Bytes of requests and message chunks that this gateway keeps.")
		answers   = desc("handoff_gateway_answers_total", "Requests to this gateway by result: answered, refused, or failed for an internal error.", "result")
		busy      = desc("handoff_gateway_busy_total", "Requests that this gateway refused because their agent had reached a limit, by limit.", "limit")
		reclaimed = desc("handoff_gateway_reclaimed_total", "Waits, queued requests and bodies that an agent lost because another needed its share, by limit.", "limit")
	)
	m.registry.MustRegister(&collector{[]*prometheus.Desc{requests, memory, answers, busy, reclaimed}, func(to chan<- prometheus.Metric) {
		f := read()
		to <- gaugeMetric(requests, float64(f.Requests))
		to <- gaugeMetric(memory, float64(f.MemoryBytes))
		for result, n := range f.Answers {
			to <- counterMetric(answers, n, result)
		}
		for limit, n := range f.Busy {
			to <- counterMetric(busy, n, limit)
		}
		for limit, n := range f.Reclaimed {
			to <- counterMetric(reclaimed, n, limit)
		}
	}})
}

// HTTPStats are the figures of an HTTP gateway, from httpgateway.Load.
type HTTPStats struct {
	Waits, LargeBodies int64
	// Answers counts requests by how they were answered.
	Answers map[string]int64
}

// HTTP adds the metrics of an HTTP gateway.
func (m *Metrics) HTTP(read func() HTTPStats) {
	waits := prometheus.NewDesc("handoff_http_waits", "Waits and streams of clients in progress.", nil, nil)
	large := prometheus.NewDesc("handoff_http_large_bodies", "Bodies over 1 MiB in progress.", nil, nil)
	answers := prometheus.NewDesc("handoff_http_requests_total", "Requests over HTTP by result: answered, refused, busy (refused beyond a limit of waits, streams or large bodies), or failed for an internal error.", []string{"result"}, nil)
	m.registry.MustRegister(&collector{[]*prometheus.Desc{waits, large, answers}, func(to chan<- prometheus.Metric) {
		f := read()
		to <- gaugeMetric(waits, float64(f.Waits))
		to <- gaugeMetric(large, float64(f.LargeBodies))
		for result, n := range f.Answers {
			to <- counterMetric(answers, n, result)
		}
	}})
}

// collector implements prometheus.Collector by a function.
type collector struct {
	descs   []*prometheus.Desc
	collect func(chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (r *collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range r.descs {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (r *collector) Collect(to chan<- prometheus.Metric) { r.collect(to) }

func counterMetric(desc *prometheus.Desc, n int64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
