package telemetry

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Supervision counts the work of a supervisor and the outcomes of handoffs. It is a
// supervisor.Watch. Outcomes are counted from the ledger's entries: one supervisor receives
// each entry, whichever process appended it, so the sum over all supervisors is complete.
type Supervision struct {
	agents    *agentLabeler
	directory directory

	events                              *prometheus.CounterVec
	byAgent                             map[protocol.EventType]*prometheus.CounterVec // those whose only label is the agent
	offers, refusals                    *prometheus.CounterVec
	timeouts, closed, trips             *prometheus.CounterVec
	tokens, cost, barred, over          *prometheus.CounterVec
	deadlocks, deep                     prometheus.Counter
	queue, work, total                  *prometheus.HistogramVec
	timersDue                           prometheus.Counter
	timerLateness                       prometheus.Histogram
	reconciles, reconcileErrors         prometheus.Counter
	unreadable                          prometheus.Gauge
	sweeps, sweepErrors                 *prometheus.CounterVec
	sweepSeconds, sweepHeads, sweepOpen prometheus.Gauge
	sweepAt, followDelay                prometheus.Gauge
	entries                             sequenceWindow
}

// Supervision adds the metrics of a supervisor. directory lists the agents;
// sweepReasons are supervisor.SweepReasons.
func (m *Metrics) Supervision(directory directory, sweepReasons []string) *Supervision {
	s := &Supervision{
		agents: m.agents, directory: directory,
		events:   m.counters("handoff_events_total", "Events in the ledger, from all processes.", "event"),
		offers:   m.counters("handoff_offers_total", "Offers to an agent, by reason.", "agent", "reason"),
		refusals: m.counters("handoff_refusals_total", "Offers that an agent rejected, or acknowledged conditionally.", "agent", "reason"),
		byAgent: map[protocol.EventType]*prometheus.CounterVec{
			protocol.EventAccepted:       m.counters("handoff_claims_total", "Offers that an agent accepted, and handoffs taken for it out of turn.", "agent"),
			protocol.EventFailed:         m.counters("handoff_failures_total", "Attempts that failed.", "agent"),
			protocol.EventLeaseLost:      m.counters("handoff_leases_lost_total", "Leases that ended without a heartbeat or a result.", "agent"),
			protocol.EventRetryScheduled: m.counters("handoff_retries_total", "Retries scheduled.", "agent"),
			protocol.EventRerouted:       m.counters("handoff_reroutes_total", "Handoffs rerouted from an agent to another.", "agent"),
			protocol.EventEscalated:      m.counters("handoff_escalations_total", "Handoffs escalated from an agent.", "agent"),
		},
		timeouts:  m.counters("handoff_timeouts_total", "Timeouts, by clock.", "clock"),
		deadlocks: m.counter("handoff_deadlocks_total", "Handoffs taken out of a circle in which they waited for one another, and hand-offs refused as circular."),
		closed:    m.counters("handoff_closed_total", "Handoffs closed, by the agent that had them last.", "agent", "outcome"),
		tokens:    m.counters("handoff_tokens_total", "Tokens that closed handoffs have used, by the agent that used them.", "agent"),
		cost:      m.counters("handoff_cost_micros_total", "Cost of closed handoffs, in millionths, by the agent that used it.", "agent"),
		barred:    m.counters("handoff_barred_total", "Hand-offs that a limit or a rule refused to the holder of a handoff.", "code"),
		over:      m.counters("handoff_over_total", "Handoffs that used more than their limit, by the limit.", "limit"),
		trips:     m.counters("handoff_breaker_trips_total", "Breakers of an agent that opened.", "agent"),
		deep:      m.counter("handoff_deep_lineages_total", "Handoffs submitted that follow from 25 others or more."),
		queue:     m.histograms("handoff_queue_seconds", "From an offer to its acceptance.", stageBuckets, "agent"),
		work:      m.histograms("handoff_work_seconds", "From the acceptance to the result, or to the failure of the attempt.", stageBuckets, "agent"),
		total:     m.histograms("handoff_whole_seconds", "From the submission of a handoff to its end.", stageBuckets, "agent"),

		timersDue:       m.counter("handoff_timers_due_total", "Timers that fired."),
		timerLateness:   m.histogram("handoff_timers_late_seconds", "Delay of a timer after its scheduled time.", latenessBuckets),
		reconciles:      m.counter("handoff_reconciles_total", "Reconciles of a handoff, including failed ones."),
		reconcileErrors: m.counter("handoff_reconcile_errors_total", "Reconciles of a handoff that failed; they are tried again."),
		unreadable:      m.gauge("handoff_unreadable_handoffs", "Stuck handoffs whose last entry in the ledger cannot be read, as far as this supervisor knows."),
		sweeps:          m.counters("handoff_sweeps_total", "Sweeps: over all handoffs, or over the open and the changed ones.", "reason"),
		sweepErrors:     m.counters("handoff_sweep_errors_total", "Sweeps that failed.", "reason"),
		sweepSeconds:    m.gauge("handoff_sweep_seconds", "How long the last sweep took."),
		sweepHeads:      m.gauge("handoff_sweep_handoffs", "Handoffs that the last sweep read."),
		sweepOpen:       m.gauge("handoff_sweep_open", "Open handoffs that the last sweep saw."),
		sweepAt:         m.gauge("handoff_sweep_timestamp_seconds", "When the last sweep ended, as Unix time."),
		followDelay:     m.gauge("handoff_follow_delay_seconds", "Age of the newest entry of the ledger when this supervisor received it."),
	}
	m.gauge("handoff_supervisors", "Supervisors in this process.").Set(1)
	s.initSeries(sweepReasons)
	return s
}

// initSeries creates the series whose labels are constants: a rate over a counter that appears
// with its first event misses that event.
func (s *Supervision) initSeries(sweepReasons []string) {
	for _, event := range protocol.EventTypes {
		s.events.WithLabelValues(string(event))
	}
	for _, code := range lifecycle.BarCodes {
		s.barred.WithLabelValues(string(code))
	}
	for _, limit := range protocol.Dimensions {
		s.over.WithLabelValues(limit)
	}
	for _, clock := range protocol.Clocks {
		s.timeouts.WithLabelValues(string(clock))
	}
	for _, reason := range sweepReasons {
		s.sweeps.WithLabelValues(reason)
		s.sweepErrors.WithLabelValues(reason)
	}
}

// boundedLabel is a value if it is one of the allowed, else Other.
func boundedLabel[T ~string](value T, allowed []T) string {
	if slices.Contains(allowed, value) {
		return string(value)
	}
	return other
}

// Followed counts an entry of the ledger. A process counts an entry once, however often it is
// delivered.
func (s *Supervision) Followed(e broker.Entry, r protocol.Record) {
	if !s.entries.firstDelivery(e.Seq) {
		return
	}
	s.followDelay.Set(max(0, time.Since(e.At).Seconds()))
	for i, event := range r.Events {
		s.events.WithLabelValues(boundedLabel(event.EventType(), protocol.EventTypes)).Inc()
		s.countEvent(r, i, event)
	}
}

// label is the label of an agent.
func (s *Supervision) label(agent string) string { return s.agents.label(agent, s.directory) }

// countEvent adds an event to the metrics of its kind.
func (s *Supervision) countEvent(r protocol.Record, i int, event protocol.Event) {
	o, after := protocol.OutlineOf(event), &r.State
	agent := func() string { return s.label(cmp.Or(o.From, o.Agent, o.To, r.AgentAt(i))) }
	kind := event.EventType()
	if counter := s.byAgent[kind]; counter != nil {
		counter.WithLabelValues(agent()).Inc()
	}
	switch kind {
	case protocol.EventSubmitted:
		if lifecycle.Deep(after.Summary) {
			s.deep.Inc()
		}
	case protocol.EventBarred:
		s.barred.WithLabelValues(boundedLabel(protocol.Code(o.Code), lifecycle.BarCodes)).Inc()
		if protocol.Code(o.Code) == protocol.CodeCircular {
			s.deadlocks.Inc()
		}
	case protocol.EventOffered:
		s.offers.WithLabelValues(agent(), boundedLabel(o.Code, lifecycle.OfferReasons)).Inc()
	case protocol.EventTaken:
		s.byAgent[protocol.EventAccepted].WithLabelValues(agent()).Inc()
	case protocol.EventAccepted:
		if !afterLoss(r.Events[:i]) {
			observeDuration(s.queue, agent(), after.OfferedAt, event.When())
		}
	case protocol.EventRejected:
		s.refusals.WithLabelValues(agent(), "rejected").Inc()
	case protocol.EventConditioned:
		s.refusals.WithLabelValues(agent(), "conditional").Inc()
	case protocol.EventTimedOut:
		s.timeouts.WithLabelValues(boundedLabel(protocol.Clock(o.Code), protocol.Clocks)).Inc()
	case protocol.EventDeadlocked:
		s.deadlocks.Inc()
	case protocol.EventCompleted, protocol.EventFailed:
		observeDuration(s.work, agent(), after.AcceptedAt, event.When())
	}
	if o.Closes {
		s.countClosed(after)
	}
}

// afterLoss reports whether an acceptance after these events of its append takes the offer from a
// lost worker, which had accepted it before.
func afterLoss(earlier []protocol.Event) bool {
	return slices.ContainsFunc(earlier, func(e protocol.Event) bool { return e.EventType() == protocol.EventLeaseLost })
}

// countClosed counts a handoff that has closed. Each handoff closes once.
func (s *Supervision) countClosed(after *protocol.State) {
	agent := s.label(after.Agent)
	s.closed.WithLabelValues(agent, boundedLabel(after.Outcome, protocol.Outcomes)).Inc()
	observeDuration(s.total, agent, after.SubmittedAt, after.ClosedAt)
	for _, used := range after.Usage.ByAgent(after.Agent) {
		by := s.label(used.Agent)
		s.tokens.WithLabelValues(by).Add(float64(max(0, used.Tokens)))
		s.cost.WithLabelValues(by).Add(float64(max(0, used.CostMicros)))
	}
	if after.Account == nil {
		return
	}
	for _, limit := range protocol.Dimensions {
		if after.Account.Over.Of(limit) > 0 {
			s.over.WithLabelValues(limit).Inc()
		}
	}
}

func observeDuration(h *prometheus.HistogramVec, agent string, from, to time.Time) {
	if !from.IsZero() && !to.IsZero() {
		h.WithLabelValues(agent).Observe(max(0, to.Sub(from).Seconds()))
	}
}

// Due counts a timer. scheduled is when it had to fire, zero if that is unknown.
func (s *Supervision) Due(scheduled time.Time) {
	s.timersDue.Inc()
	if !scheduled.IsZero() {
		s.timerLateness.Observe(max(0, time.Since(scheduled).Seconds()))
	}
}

// Reconciled counts a reconcile of a handoff.
func (s *Supervision) Reconciled(err error) {
	s.reconciles.Inc()
	if err != nil {
		s.reconcileErrors.Inc()
	}
}

// Unreadable sets how many handoffs have a head that cannot be read.
func (s *Supervision) Unreadable(n int) { s.unreadable.Set(float64(n)) }

// Tripped counts a breaker that has opened.
func (s *Supervision) Tripped(agent string) { s.trips.WithLabelValues(s.label(agent)).Inc() }

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
