package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What a worker, an index and a gateway have to show. It is read when the figures are.

// WorkerFigures are those of the worker in this process; worker.Stats.
type WorkerFigures struct {
	// Ended counts by what became of handoffs, in words that are fixed.
	Ended       map[string]int64
	Claimed     int64
	Slots, Busy int
	// Present says that the engine knows this worker: it has confirmed a beat
	// within the last lease.
	Present bool
}

// Worker adds the figures of a worker that serves an agent.
func (m *Metrics) Worker(agent string, read func() WorkerFigures) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"agent": agent})
	}
	var (
		claims  = desc("handoff_worker_claims_total", "Handoffs that this worker accepted.")
		ended   = desc("handoff_worker_ended_total", "What became of the handoffs of this worker.", "outcome")
		slots   = desc("handoff_worker_slots", "Handoffs that this worker can have in hand at a time.")
		busy    = desc("handoff_worker_busy_slots", "Handoffs that this worker has in hand.")
		present = desc("handoff_worker_present", "1 if the engine has confirmed that this worker is there, within its lease, else 0.")
	)
	m.registry.MustRegister(&reader{[]*prometheus.Desc{claims, ended, slots, busy, present}, func(to chan<- prometheus.Metric) {
		f := read()
		to <- count(claims, f.Claimed)
		for outcome, n := range f.Ended {
			to <- count(ended, n, outcome)
		}
		to <- gauge(slots, float64(f.Slots))
		to <- gauge(busy, float64(f.Busy))
		to <- gauge(present, zeroOne(f.Present))
	}})
}

// IndexFigures are those of the index in this process; ask.PositionAnswer.
type IndexFigures struct {
	Seq, Behind uint64
	BehindFor   time.Duration
	Complete    bool
	Handoffs    int64
	FileBytes   int64
	Rebuilds    int64
}

// indexPatience is how long a reading of the figures waits for the index.
const indexPatience = 2 * time.Second

// Index adds the figures of an index. read must not wait until it is complete.
func (m *Metrics) Index(read func(context.Context) (IndexFigures, error)) {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	var (
		up        = desc("handoff_index_up", "1 if the index answered when these figures were read, else 0.")
		seq       = desc("handoff_index_seq", "Ledger sequence up to which the index has everything.")
		behind    = desc("handoff_index_behind", "Entries of the ledger that the index does not have yet.")
		behindFor = desc("handoff_index_behind_seconds", "How much later the end of the ledger is than that of the index, as far as known.")
		complete  = desc("handoff_index_complete", "1 if the index has everything, else 0.")
		handoffs  = desc("handoff_index_handoffs", "Handoffs in the index.")
		bytes     = desc("handoff_index_file_bytes", "Size of the index's file.")
		rebuilds  = desc("handoff_index_rebuilds_total", "How often the index was made anew.")
	)
	m.registry.MustRegister(&reader{[]*prometheus.Desc{up, seq, behind, behindFor, complete, handoffs, bytes, rebuilds}, func(to chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), indexPatience)
		defer cancel()
		f, err := read(ctx)
		to <- gauge(up, zeroOne(err == nil))
		if err != nil {
			return
		}
		to <- gauge(seq, float64(f.Seq))
		to <- gauge(behind, float64(f.Behind))
		to <- gauge(behindFor, f.BehindFor.Seconds())
		to <- gauge(complete, zeroOne(f.Complete))
		to <- gauge(handoffs, float64(f.Handoffs))
		to <- gauge(bytes, float64(f.FileBytes))
		to <- count(rebuilds, f.Rebuilds)
	}})
}

// GatewayFigures are those of the gateway in this process; natsgateway.Load.
type GatewayFigures struct {
	Offers, Requests, MemoryBytes int64
	// Answers counts requests by how they were answered, in words that are fixed.
	Answers map[string]int64
	// Busy counts refusals by the limit that was reached, and Reclaimed what one agent
	// lost to another's share, in words that are fixed.
	Busy, Reclaimed map[string]int64
}

// Gateway adds the figures of a gateway.
func (m *Metrics) Gateway(read func() GatewayFigures) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	var (
		offers   = desc("handoff_gateway_offers", "Offers and handoffs that this gateway has in hand for agents.")
		requests = desc("handoff_gateway_requests", "Requests that this gateway is at, those that wait included.")
		memory   = desc("handoff_gateway_memory_bytes", "Packages, results and parts of messages that this gateway keeps.")
		answers  = desc("handoff_gateway_answers_total", "Requests by how this gateway answered them: answered, refused, or failed for a trouble of its own.", "result")
		busy     = desc("handoff_gateway_busy_total", "Requests that this gateway refused, by the limit that their agent had reached.", "limit")
		back     = desc("handoff_gateway_reclaimed_total", "Waits, queued requests, bodies, offers and packages that an agent lost because another needed its share, by limit.", "limit")
	)
	m.registry.MustRegister(&reader{[]*prometheus.Desc{offers, requests, memory, answers, busy, back}, func(to chan<- prometheus.Metric) {
		f := read()
		to <- gauge(offers, float64(f.Offers))
		to <- gauge(requests, float64(f.Requests))
		to <- gauge(memory, float64(f.MemoryBytes))
		for result, n := range f.Answers {
			to <- count(answers, n, result)
		}
		for limit, n := range f.Busy {
			to <- count(busy, n, limit)
		}
		for limit, n := range f.Reclaimed {
			to <- count(back, n, limit)
		}
	}})
}

// reader is a collector of figures that stand ready to be read.
type reader struct {
	descs   []*prometheus.Desc
	collect func(chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (r *reader) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range r.descs {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (r *reader) Collect(to chan<- prometheus.Metric) { r.collect(to) }

func count(desc *prometheus.Desc, n int64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
}

func zeroOne(so bool) float64 {
	if so {
		return 1
	}
	return 0
}
