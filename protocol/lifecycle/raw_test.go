package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// external are the events that anybody may send at any time, rightly or not.
// The others are decisions: only wild worlds have them out of nowhere.
var external = []p.EventType{p.EventSubmitted, p.EventClaimed, p.EventAccepted, p.EventStarted, p.EventProgressed,
	p.EventCompleted, p.EventFailed, p.EventRejected, p.EventConditioned, p.EventReleased, p.EventCancelRequested, p.EventStuck}

// raw sends an event about this offer, holder, fence or attempt, or another.
func (w *world) raw(h *thread) {
	if !w.wild {
		w.try(h, []p.Event{w.event(h, one(w, external...))})
		return
	}
	e := w.event(h, one(w, p.EventTypes...))
	if w.n(4) > 0 { // one that is legal here
		for range len(p.EventTypes) {
			if Legal(h.state.Phase, e.EventType()) {
				break
			}
			e = w.event(h, one(w, p.EventTypes...))
		}
	}
	w.try(h, []p.Event{e})
}

// near is the value, more often than not.
func near(w *world, v uint64) uint64 {
	switch w.n(8) {
	case 0:
		return v + 1
	case 1:
		return 0
	}
	return v
}

func (w *world) event(h *thread, of p.EventType) p.Event {
	s := h.state
	m := p.Meta{At: w.now.Add(-time.Duration(w.n(3)) * sec), By: "raw"}
	offer, fence, attempt := near(w, s.Offer), near(w, s.Fence), int(near(w, uint64(s.Attempt)))
	holder := s.Holder
	if w.n(6) == 0 || holder == "" && w.n(2) == 0 {
		holder = one(w, holders...)
	}
	switch of {
	case p.EventSubmitted:
		return &p.Submitted{Meta: m, Ticket: ticket, Policy: p.DefaultPolicy()}
	case p.EventOffered:
		return &p.Offered{Meta: m, Agent: one(w, agents...), Reason: "raw"}
	case p.EventClaimed:
		return &p.Claimed{Meta: m, Offer: offer, Agent: s.Agent, Holder: one(w, holders...), LeaseMS: lease}
	case p.EventAccepted:
		return &p.Accepted{Meta: m, Offer: offer, Agent: s.Agent, Holder: one(w, holder, one(w, holders...)), LeaseMS: lease, Attempt: attempt}
	case p.EventStarted:
		return &p.Started{Meta: m, Fence: fence}
	case p.EventProgressed:
		return &p.Progressed{Meta: m, Fence: fence}
	case p.EventCompleted:
		return &p.Completed{Meta: m, Fence: fence, Status: p.Success}
	case p.EventFailed:
		return &p.Failed{Meta: m, Fence: fence, Attempt: attempt, Code: one(w, "raw", ""), Retryable: w.n(2) == 0}
	case p.EventRejected:
		return &p.Rejected{Meta: m, Offer: offer, Agent: s.Agent, Holder: holder, Reason: w.text()}
	case p.EventConditioned:
		return &p.Conditioned{Meta: m, Offer: offer, Agent: s.Agent, Holder: holder, RetryAfterMS: int64(w.n(3)) * 1000}
	}
	return w.decision(s, of, m, attempt, holder, fence)
}

func (w *world) decision(s p.State, of p.EventType, m p.Meta, attempt int, holder string, fence uint64) p.Event {
	switch of {
	case p.EventAnswered:
		return &p.Answered{Meta: m, Offer: near(w, s.Offer), Answer: p.Answer{Text: w.text(), Deny: w.n(3) == 0}}
	case p.EventRetryScheduled:
		return &p.RetryScheduled{Meta: m, Attempt: attempt, Due: w.now.Add(time.Minute)}
	case p.EventRerouted:
		return &p.Rerouted{Meta: m, From: one(w, s.Agent, "a"), To: one(w, agents...)}
	case p.EventEscalated:
		return &p.Escalated{Meta: m, Level: s.EscalationLevel + w.n(2), From: s.Agent, To: one(w, agents...)}
	case p.EventLeaseLost:
		return &p.LeaseLost{Meta: m, Holder: holder, Fence: fence, Attempt: attempt}
	case p.EventReleased:
		return &p.Released{Meta: m, Holder: holder, Fence: fence}
	case p.EventReminded:
		return &p.Reminded{Meta: m, Fence: fence}
	case p.EventTimedOut:
		clock := one(w, p.ClockAcknowledge, p.ClockQueue, p.ClockWork, p.ClockCondition, p.ClockDeadline)
		return &p.TimedOut{Meta: m, Clock: clock, Agent: s.Agent, Attempt: attempt}
	case p.EventCancelRequested:
		return &p.CancelRequested{Meta: m}
	case p.EventClosed:
		outcome := one(w, p.OutcomeFailed, p.OutcomeTimeout, p.OutcomeRejected, p.OutcomeCancelled, p.OutcomeRolledBack, p.OutcomeSuccess, "")
		return &p.Closed{Meta: m, Outcome: outcome, Reason: "raw"}
	case p.EventStuck:
		return &p.Stuck{Meta: m, Reason: w.text()}
	}
	panic("no raw event " + of)
}
