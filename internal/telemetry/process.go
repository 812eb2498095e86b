package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of a worker, an index and a gateway in this process. A scrape reads them.

// WorkerStats are the figures of a worker, from worker.Stats.
type WorkerStats struct {
	// Ended counts handoffs by how they ended, in constant words.
	Ended       map[string]int64
	Claimed     int64
	Slots, Busy int
	// Present says that the engine has confirmed a heartbeat of this worker within its lease.
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
	Offers, Requests, MemoryBytes int64
	// Answers counts requests by how they were answered.
	Answers map[string]int64
	// Busy counts refusals by the limit that was reached, and Reclaimed what one agent lost to
	// another's share.
	Busy, Reclaimed map[string]int64
}

// Gateway adds the metrics of a gateway.
func (m *Metrics) Gateway(read func() GatewayStats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	var (
		offers    = desc("handoff_gateway_offers", "Offers and claims that this gateway holds for agents.")
		requests  = desc("handoff_gateway_requests", "Requests in progress, including waiting ones.")
		memory    = desc("handoff_gateway_memory_bytes", "Bytes of packages, results and message chunks that this gateway keeps.")
		answers   = desc("handoff_gateway_answers_total", "Requests to this gateway by result: answered, refused, or failed for an internal error.", "result")
		busy      = desc("handoff_gateway_busy_total", "Requests that this gateway refused because their agent had reached a limit, by limit.", "limit")
		reclaimed = desc("handoff_gateway_reclaimed_total", "Waits, queued requests, bodies, offers and packages that an agent lost because another needed its share, by limit.", "limit")
	)
	m.registry.MustRegister(&collector{[]*prometheus.Desc{offers, requests, memory, answers, busy, reclaimed}, func(to chan<- prometheus.Metric) {
		f := read()
		to <- gaugeMetric(offers, float64(f.Offers))
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
