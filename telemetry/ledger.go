package telemetry

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Supervision counts what a supervisor does and what becomes of handoffs. The latter it counts
// from the entries of the ledger that it receives: each entry goes to one supervisor,
// whichever process appended it, so that the sum over all supervisors is the whole. It is a
// supervisor.Watch.
type Supervision struct {
	agents    *agents
	directory Directory

	events                              *prometheus.CounterVec
	offers, claims, refusals            *prometheus.CounterVec
	failures, leasesLost                *prometheus.CounterVec
	retries, reroutes, escalations      *prometheus.CounterVec
	timeouts, closed                    *prometheus.CounterVec
	queue, work, whole                  *prometheus.HistogramVec
	due                                 prometheus.Counter
	late                                prometheus.Histogram
	reconciles, reconcileErrors         prometheus.Counter
	unreadable                          prometheus.Gauge
	sweeps, sweepErrors                 *prometheus.CounterVec
	sweepSeconds, sweepHeads, sweepOpen prometheus.Gauge
	sweepAt, followDelay                prometheus.Gauge
	seen                                once
}

// Supervision adds the figures of a supervisor. directory says which agents
// there are; sweepReasons are supervisor.SweepReasons.
func (m *Metrics) Supervision(directory Directory, sweepReasons []string) *Supervision {
	s := &Supervision{
		agents: m.agents, directory: directory,
		events:      m.counters("handoff_events_total", "Events in the ledger, from all processes.", "event"),
		offers:      m.counters("handoff_offers_total", "Offers put to an agent, by what they were made for.", "agent", "reason"),
		claims:      m.counters("handoff_claims_total", "Offers that an agent accepted, and handoffs that were taken for it out of turn.", "agent"),
		refusals:    m.counters("handoff_refusals_total", "Offers that an agent rejected, or would take only on a condition.", "agent", "reason"),
		failures:    m.counters("handoff_failures_total", "Attempts that failed.", "agent"),
		leasesLost:  m.counters("handoff_leases_lost_total", "Leases lost: the worker, or who had claimed by hand, was not heard of any more.", "agent"),
		retries:     m.counters("handoff_retries_total", "Retries scheduled.", "agent"),
		reroutes:    m.counters("handoff_reroutes_total", "Handoffs taken from an agent and given to another.", "agent"),
		escalations: m.counters("handoff_escalations_total", "Handoffs passed up by or from an agent.", "agent"),
		timeouts:    m.counters("handoff_timeouts_total", "Clocks that ran out, by clock.", "clock"),
		closed:      m.counters("handoff_closed_total", "Handoffs closed, by the agent that had them last.", "agent", "outcome"),
		queue:       m.histograms("handoff_queue_seconds", "From an offer to its acceptance.", stageBuckets, "agent"),
		work:        m.histograms("handoff_work_seconds", "From the acceptance to the result, or to the failure of the attempt.", stageBuckets, "agent"),
		whole:       m.histograms("handoff_whole_seconds", "From the submission of a handoff to its end.", stageBuckets, "agent"),

		due:             m.counter("handoff_timers_due_total", "Wake-ups that came due."),
		late:            m.histogram("handoff_timers_late_seconds", "How much later than asked for a wake-up came.", lateBuckets),
		reconciles:      m.counter("handoff_reconciles_total", "Reconciles of a handoff, failed tries among them."),
		reconcileErrors: m.counter("handoff_reconcile_errors_total", "Reconciles of a handoff that failed; they are tried again."),
		unreadable:      m.gauge("handoff_unreadable_handoffs", "Stuck handoffs whose last entry in the ledger cannot be read, as far as this supervisor knows."),
		sweeps:          m.counters("handoff_sweeps_total", "Sweeps: over all handoffs, or over the open and the changed ones.", "reason"),
		sweepErrors:     m.counters("handoff_sweep_errors_total", "Sweeps that broke off.", "reason"),
		sweepSeconds:    m.gauge("handoff_sweep_seconds", "How long the last sweep took."),
		sweepHeads:      m.gauge("handoff_sweep_handoffs", "Handoffs that the last sweep read."),
		sweepOpen:       m.gauge("handoff_sweep_open", "Open handoffs that the last sweep saw."),
		sweepAt:         m.gauge("handoff_sweep_timestamp_seconds", "When the last sweep ended, as Unix time."),
		followDelay:     m.gauge("handoff_follow_delay_seconds", "How old the newest entry of the ledger was when this supervisor got it."),
	}
	m.gauge("handoff_supervisors", "Supervisors in this process.").Set(1)
	s.zero(sweepReasons)
	return s
}

// zero has the series whose labels are fixed words there from the start: a rate
// over a counter that was not there before its first event misses that one.
func (s *Supervision) zero(sweepReasons []string) {
	for _, event := range protocol.EventTypes {
		s.events.WithLabelValues(string(event))
	}
	for _, clock := range protocol.Clocks {
		s.timeouts.WithLabelValues(string(clock))
	}
	for _, reason := range sweepReasons {
		s.sweeps.WithLabelValues(reason)
		s.sweepErrors.WithLabelValues(reason)
	}
}

// word keeps a label to the words that are fixed.
func word[W ~string](w W, fixed []W) string {
	if slices.Contains(fixed, w) {
		return string(w)
	}
	return Other
}

// Followed counts an entry of the ledger. One that is delivered again is not
// counted twice, as long as this process lives.
func (s *Supervision) Followed(e broker.Entry, r protocol.Record) {
	if !s.seen.first(e.Seq) {
		return
	}
	s.followDelay.Set(max(0, time.Since(e.At).Seconds()))
	for i, event := range r.Events {
		s.events.WithLabelValues(word(event.EventType(), protocol.EventTypes)).Inc()
		s.count(r, i, event)
	}
}

// label is the label of an agent.
func (s *Supervision) label(agent string) string { return s.agents.label(agent, s.directory) }

// count counts what an event means beside itself.
func (s *Supervision) count(r protocol.Record, i int, event protocol.Event) {
	after := &r.State
	switch e := event.(type) {
	case *protocol.Offered:
		s.offers.WithLabelValues(s.label(e.Agent), word(e.Reason, lifecycle.OfferReasons)).Inc()
	case *protocol.Accepted:
		s.accepted(r, i, e)
	case *protocol.Taken:
		s.claims.WithLabelValues(s.label(e.Agent)).Inc()
	case *protocol.Rejected:
		s.refusals.WithLabelValues(s.label(e.Agent), "rejected").Inc()
	case *protocol.Conditioned:
		s.refusals.WithLabelValues(s.label(e.Agent), "conditional").Inc()
	case *protocol.Failed:
		agent := s.label(agentAt(r, i))
		s.failures.WithLabelValues(agent).Inc()
		observe(s.work, agent, after.AcceptedAt, e.At)
	case *protocol.LeaseLost:
		s.leasesLost.WithLabelValues(s.label(agentAt(r, i))).Inc()
	case *protocol.RetryScheduled:
		s.retries.WithLabelValues(s.label(agentAt(r, i))).Inc()
	case *protocol.Rerouted:
		s.reroutes.WithLabelValues(s.label(e.From)).Inc()
	case *protocol.Escalated:
		s.escalations.WithLabelValues(s.label(e.From)).Inc()
	case *protocol.TimedOut:
		s.timeouts.WithLabelValues(word(e.Clock, protocol.Clocks)).Inc()
	case *protocol.Completed:
		observe(s.work, s.label(after.Agent), after.AcceptedAt, e.At)
		s.ended(after)
	case *protocol.Closed, *protocol.RolledBack, *protocol.LateResultUsed:
		s.ended(after)
	}
}

func (s *Supervision) accepted(r protocol.Record, i int, e *protocol.Accepted) {
	agent := s.label(e.Agent)
	s.claims.WithLabelValues(agent).Inc()
	for _, earlier := range r.Events[:i] {
		if earlier.EventType() == protocol.EventLeaseLost { // the offer was taken by another before
			return
		}
	}
	observe(s.queue, agent, r.State.OfferedAt, e.At)
}

// ended counts a handoff that has closed: each does once.
func (s *Supervision) ended(after *protocol.State) {
	agent := s.label(after.Agent)
	s.closed.WithLabelValues(agent, word(after.Outcome, protocol.Outcomes)).Inc()
	observe(s.whole, agent, after.SubmittedAt, after.ClosedAt)
}

// agentAt is the agent that had the handoff at an event, which the state after
// the append does not tell where a later event of it moved the handoff on.
func agentAt(r protocol.Record, i int) string {
	for _, later := range r.Events[i+1:] {
		switch e := later.(type) {
		case *protocol.Rerouted:
			return e.From
		case *protocol.Escalated:
			return e.From
		}
	}
	return r.State.Agent
}

func observe(h *prometheus.HistogramVec, agent string, from, to time.Time) {
	if !from.IsZero() && !to.IsZero() {
		h.WithLabelValues(agent).Observe(max(0, to.Sub(from).Seconds()))
	}
}

// Due counts a wake-up. asked is when it was to come, zero where that is not known.
func (s *Supervision) Due(asked time.Time) {
	s.due.Inc()
	if !asked.IsZero() {
		s.late.Observe(max(0, time.Since(asked).Seconds()))
	}
}

// Reconciled counts a reconcile of a handoff.
func (s *Supervision) Reconciled(err error) {
	s.reconciles.Inc()
	if err != nil {
		s.reconcileErrors.Inc()
	}
}

// Unreadable notes how many handoffs have a head that cannot be read.
func (s *Supervision) Unreadable(n int) { s.unreadable.Set(float64(n)) }

// Swept counts a sweep.
func (s *Supervision) Swept(why string, heads, open int, took time.Duration, err error) {
	s.sweeps.WithLabelValues(why).Inc()
	if err != nil {
		s.sweepErrors.WithLabelValues(why).Inc()
		return
	}
	s.sweepHeads.Set(float64(heads))
	s.sweepOpen.Set(float64(open))
	s.sweepSeconds.Set(took.Seconds())
	s.sweepAt.SetToCurrentTime()
}
