package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What a worker and an index have to show. Both are read when the figures are.

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
	label := prometheus.Labels{"agent": agent}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, label)
	}
	w := &reader{
		descs: []*prometheus.Desc{
			desc("handoff_worker_claims_total", "Handoffs that this worker accepted."),
			desc("handoff_worker_ended_total", "What became of the handoffs of this worker.", "outcome"),
			desc("handoff_worker_slots", "Handoffs that this worker can have in hand at a time."),
			desc("handoff_worker_busy_slots", "Handoffs that this worker has in hand."),
			desc("handoff_worker_present", "1 if the engine has confirmed that this worker is there, within its lease, else 0."),
		},
	}
	w.collect = func(to chan<- prometheus.Metric) {
		f := read()
		to <- prometheus.MustNewConstMetric(w.descs[0], prometheus.CounterValue, float64(f.Claimed))
		for outcome, n := range f.Ended {
			to <- prometheus.MustNewConstMetric(w.descs[1], prometheus.CounterValue, float64(n), outcome)
		}
		to <- gauge(w.descs[2], float64(f.Slots))
		to <- gauge(w.descs[3], float64(f.Busy))
		to <- gauge(w.descs[4], zeroOne(f.Present))
	}
	m.registry.MustRegister(w)
}

// IndexFigures are those of the index in this process; index.StandAnswer.
type IndexFigures struct {
	Seq, Behind uint64
	BehindFor   time.Duration
	Complete    bool
	Handoffs    int64
	FileBytes   int64
	Rebuilds    int64
}

// indexPatience is how long whoever reads the figures waits for the index.
const indexPatience = 2 * time.Second

// Index adds the figures of an index. read must not wait until it is complete.
func (m *Metrics) Index(read func(context.Context) (IndexFigures, error)) {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	i := &reader{
		descs: []*prometheus.Desc{
			desc("handoff_index_up", "1 if the index answered when these figures were read, else 0."),
			desc("handoff_index_seq", "Ledger sequence up to which the index has everything."),
			desc("handoff_index_behind", "Entries of the ledger that the index does not have yet."),
			desc("handoff_index_behind_seconds", "How much later the end of the ledger is than that of the index, as far as known."),
			desc("handoff_index_complete", "1 if the index has everything, else 0."),
			desc("handoff_index_handoffs", "Handoffs in the index."),
			desc("handoff_index_file_bytes", "Size of the index's file."),
			desc("handoff_index_rebuilds_total", "How often the index was made anew."),
		},
	}
	i.collect = func(to chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), indexPatience)
		defer cancel()
		f, err := read(ctx)
		to <- gauge(i.descs[0], zeroOne(err == nil))
		if err != nil {
			return
		}
		to <- gauge(i.descs[1], float64(f.Seq))
		to <- gauge(i.descs[2], float64(f.Behind))
		to <- gauge(i.descs[3], f.BehindFor.Seconds())
		to <- gauge(i.descs[4], zeroOne(f.Complete))
		to <- gauge(i.descs[5], float64(f.Handoffs))
		to <- gauge(i.descs[6], float64(f.FileBytes))
		to <- prometheus.MustNewConstMetric(i.descs[7], prometheus.CounterValue, float64(f.Rebuilds))
	}
	m.registry.MustRegister(i)
}

// reader is a collector of figures that stand ready to be read.
type reader struct {
	descs   []*prometheus.Desc
	collect func(chan<- prometheus.Metric)
}

func (r *reader) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range r.descs {
		to <- desc
	}
}

func (r *reader) Collect(to chan<- prometheus.Metric) { r.collect(to) }

func zeroOne(so bool) float64 {
	if so {
		return 1
	}
	return 0
}
