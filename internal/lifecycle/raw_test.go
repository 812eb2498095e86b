package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// external are the events that anybody may send at any time, rightly or not.
// The others are decisions: only wild worlds have them out of nowhere.
var external = []p.EventType{p.EventSubmitted, p.EventClaimed, p.EventAccepted, p.EventStarted, p.EventProgressed,
	p.EventCompleted, p.EventFailed, p.EventRejected, p.EventConditioned, p.EventReleased, p.EventCancelRequested, p.EventStuck,
	p.EventHandedOff, p.EventSuspended, p.EventResultParked, p.EventDismissed}

// legalHere are the event types that the table allows in each phase.
var legalHere = func() map[place][]p.EventType {
	all := map[place][]p.EventType{}
	for _, phase := range append([]p.Phase{fresh}, p.Phases...) {
		for _, closed := range []bool{false, true} {
			for _, e := range p.EventTypes {
				if Legal(phase, closed, e) {
					all[place{phase, closed}] = append(all[place{phase, closed}], e)
				}
			}
		}
	}
	return all
}()

// raw sends an event about this offer, holder, fence or attempt, or another.
func (w *world) raw(h *thread) {
	if !w.wild {
		w.try(h, []p.Event{w.event(h, one(w, external...))})
		return
	}
	of := one(w, p.EventTypes...)
	if legal := legalHere[place{h.state.Phase, h.state.Closed}]; len(legal) > 0 && w.n(8) > 0 {
		of = one(w, legal...)
		if h.state.Aggregate != nil && h.state.Closed && w.n(8) > 0 {
			of = p.EventAssigned
		} else if h.state.Children != nil && w.n(6) == 0 || made(h.state) && seldom(h.state) && w.n(2) == 0 {
			of = p.EventChildrenClosed
		}
	}
	if events := w.prepared(h.state, of); events != nil {
		w.try(h, events)
		return
	}
	w.try(h, []p.Event{w.event(h, of)})
}

// prepared is an append in which an event comes with what must go before it, for
// those that would hardly ever apply by chance; nil for the others.
func (w *world) prepared(s p.State, of p.EventType) []p.Event {
	m := p.Meta{At: w.now, By: "raw"}
	switch {
	case s.Closed:
	case of == p.EventChildrenClosed && made(s) && !marksChildren(s):
		n := s.Children.Made.Without(s.Children.Closed).Numbers()[0]
		return []p.Event{&p.CancelRequested{Meta: m, Children: true},
			&p.ChildrenClosed{Meta: m, Children: []p.ChildClosed{{N: n, Outcome: p.OutcomePartial}}}}
	case of == p.EventClosed && made(s) && w.n(2) == 0:
		outcome := one(w, p.OutcomeFailed, p.OutcomeRejected, p.OutcomeRejected, p.OutcomeRolledBack)
		return []p.Event{&p.CancelRequested{Meta: m, Children: true, Return: s.CancelRequested}, &p.Closed{Meta: m, Outcome: outcome, Reason: "raw"}}
	case of == p.EventTimedOut && s.Phase == p.PhaseTimeout && s.TimedOut != p.ClockDeadline && w.n(4) > 0:
		if at := Deadline(s); at.After(w.now) {
			w.now = at
		}
		return []p.Event{&p.TimedOut{Meta: p.Meta{At: w.now, By: "raw"}, Clock: p.ClockDeadline, Agent: s.Agent}}
	case of == p.EventGated && s.Phase == p.Conditional:
		return []p.Event{&p.Rerouted{Meta: m, From: s.Agent, To: "b", Manual: true},
			&p.Gated{Meta: m, GateTerms: p.GateTerms{Waits: []p.GateKind{p.GateBreaker}, Agent: "b", Offer: offerReroute, Reason: reasonRefused}}}
	case of == p.EventRerouted && s.Phase == p.AwaitingApproval && len(s.Gate.Waits) == 1 && s.Gate.First() != p.GateApproval:
		return []p.Event{&p.GateOpened{Meta: m, Gate: s.Gate.First()}, &p.Rerouted{Meta: m, From: s.Agent, To: s.Gate.Agent}}
	case of == p.EventSuspended && !made(s) && s.Fence != 0:
		return []p.Event{&p.HandedOff{Meta: m, Fence: s.Fence, N: 3, Ticket: "child"}, &p.Suspended{Meta: m, Fence: s.Fence, Children: []int{3}}}
	case of == p.EventLateResultUsed && s.LateSeq == 0:
		return []p.Event{&p.ResultParked{Meta: m, Holder: "h0", Fence: w.seq, Status: p.Success}, &p.LateResultUsed{Meta: m, Seq: p.Self}}
	}
	return nil
}

// made tells whether there are children that are not known to have closed.
func made(s p.State) bool {
	return s.Children != nil && s.Children.Made.Without(s.Children.Closed) != ""
}

// near is the value, more often than not.
func near(w *world, v uint64) uint64 {
	switch w.n(12) {
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
	if w.n(8) == 0 || holder == "" && w.n(2) == 0 {
		holder = one(w, holders...)
	}
	switch of {
	case p.EventSubmitted:
		return &p.Submitted{Meta: m, Ticket: h.ticket, Policy: p.DefaultPolicy()}
	case p.EventOffered:
		return &p.Offered{Meta: m, Agent: one(w, s.Agent, s.Agent, one(w, agents...)), Reason: "raw"}
	case p.EventClaimed:
		return &p.Claimed{Meta: m, Offer: offer, Agent: s.Agent, Holder: w.poller(), LeaseMS: lease}
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
	case p.EventSpent:
		return &p.Spent{Meta: m, Fence: fence, Usage: p.Usage{Tokens: int64(w.n(20) - 3), TokensIn: int64(w.n(9))}, Source: p.UsageReport}
	case p.EventHandedOff:
		return &p.HandedOff{Meta: m, Fence: fence, N: w.n(4) - w.n(2), Goto: w.n(4) == 0, Ticket: one(w, "child", "child", "")}
	case p.EventSuspended:
		return &p.Suspended{Meta: m, Fence: fence, Children: []int{w.n(3)}}
	case p.EventReleased:
		return &p.Released{Meta: m, Holder: holder, Fence: fence}
	case p.EventReminded:
		return &p.Reminded{Meta: m, Fence: fence}
	case p.EventExtended:
		return &p.Extended{Meta: m, Fence: fence, Until: w.now.Add(time.Duration(w.n(200)) * time.Minute), Reason: w.text()}
	case p.EventLeaseLost:
		return &p.LeaseLost{Meta: m, Holder: holder, Fence: fence, Attempt: attempt}
	}
	return w.decision(h, of, m, attempt)
}

// gateAgent is the agent that a gate names, or another.
func (w *world) gateAgent(s p.State) string {
	if s.Gate != nil && w.n(4) > 0 {
		return s.Gate.Agent
	}
	return one(w, p.AnyAgent, "a", "b")
}

// decision makes what no holder says.
func (w *world) decision(h *thread, of p.EventType, m p.Meta, attempt int) p.Event {
	s := h.state
	switch of {
	case p.EventAnswered:
		return &p.Answered{Meta: m, Answer: p.Answer{Question: QuestionOf(s).N - w.n(3)/2, Text: w.text(), Deny: w.n(3) == 0}}
	case p.EventRetryScheduled:
		return &p.RetryScheduled{Meta: m, Attempt: attempt, Due: w.now.Add(time.Minute)}
	case p.EventRerouted:
		return &p.Rerouted{Meta: m, From: one(w, s.Agent, s.Agent, "a"), To: one(w, agents...), Manual: w.n(2) == 0}
	case p.EventEscalated:
		return &p.Escalated{Meta: m, Level: s.EscalationLevel + 1 - w.n(2), From: s.Agent, To: one(w, agents...), Fence: near(w, s.Fence)}
	case p.EventTimedOut:
		clock := one(w, p.ClockAcknowledge, p.ClockQueue, p.ClockWork, p.ClockProgress, p.ClockReturn, p.ClockCondition, p.ClockDeadline)
		return &p.TimedOut{Meta: m, Clock: clock, Agent: s.Agent, Attempt: attempt}
	case p.EventCancelRequested:
		return &p.CancelRequested{Meta: m, Children: w.n(2) == 0, Return: w.n(4) == 0}
	case p.EventClosed:
		outcome := one(w, p.OutcomeFailed, p.OutcomeTimeout, p.OutcomeRejected, p.OutcomeCancelled, p.OutcomeRolledBack, p.OutcomeSuccess, "")
		inbox := one(w, "", p.Human)
		if outcome == p.OutcomeSuccess {
			inbox = ""
		}
		return &p.Closed{Meta: m, Outcome: outcome, Reason: "raw", Inbox: inbox}
	case p.EventStuck:
		return &p.Stuck{Meta: m, Reason: w.text()}
	case p.EventChildrenClosed:
		ends := []p.ChildClosed{{N: w.n(4), Outcome: one(w, p.OutcomeSuccess, p.OutcomeFailed)}, {N: w.n(4), Outcome: p.OutcomePartial}}
		return &p.ChildrenClosed{Meta: m, Children: ends[w.n(2):]}
	case p.EventAssigned:
		return &p.Assigned{Meta: m, N: w.n(4), Agent: one(w, agents...)}
	case p.EventTaken:
		return &p.Taken{Meta: m, Agent: one(w, agents...), Holder: one(w, holders...), LeaseMS: lease}
	case p.EventRolledBack:
		return &p.RolledBack{Meta: m, Fence: near(w, s.Fence), Reason: w.text()}
	case p.EventLateResultUsed:
		return &p.LateResultUsed{Meta: m, Seq: near(w, s.LateSeq)}
	case p.EventResultParked:
		fence := w.seq - uint64(w.n(6))
		if len(s.LateFences) > 0 && w.n(3) == 0 {
			fence = one(w, s.LateFences...)
		}
		return &p.ResultParked{Meta: m, Holder: one(w, holders...), Fence: fence, Attempt: attempt, Status: one(w, p.Success, p.Partial), Usage: &p.Usage{Tokens: 3}}
	case p.EventReturnSent:
		return &p.ReturnSent{Meta: m, Ticket: one(w, p.ReturnTicket(h.ticket), ""), To: s.Source}
	case p.EventReturned:
		return &p.Returned{Meta: m, Delivered: w.n(2) == 0}
	case p.EventRedriven:
		return &p.Redriven{Meta: m, Ticket: one(w, p.RedriveTicket(h.ticket), "")}
	case p.EventDismissed:
		return &p.Dismissed{Meta: m, Note: w.text()}
	case p.EventSourceCompleted:
		return &p.SourceCompleted{Meta: m}
	case p.EventChainEnded:
		return &p.ChainEnded{Meta: m, End: p.ChainEnd{Ticket: one(w, p.ChildTicketN(h.ticket, 3), ""), Outcome: one(w, p.OutcomeSuccess, p.OutcomeFailed)}}
	}
	return w.atGate(h, of, m)
}

// atGate makes what is said to a gate, and what a holder decides by itself.
func (w *world) atGate(h *thread, of p.EventType, m p.Meta) p.Event {
	s := h.state
	switch of {
	case p.EventDecided:
		return &p.Decided{Meta: m, Fence: near(w, s.Fence), ID: one(w, "d1", "d2", "d3"), Description: w.text(), Rationale: w.text(), Risk: p.RiskLow}
	case p.EventGated:
		waits := append([]p.GateKind{p.GateApproval}, p.GateBreaker, p.GateWorkspace)
		return &p.Gated{Meta: m, GateTerms: p.GateTerms{Waits: waits[w.n(3):], Agent: one(w, s.Agent, one(w, agents...)), Approver: one(w, agents...),
			Offer: OfferRetry, Reason: reasonRefused, Until: w.now.Add(time.Minute)}}
	case p.EventGateOpened:
		return &p.GateOpened{Meta: m, Gate: one(w, s.Gate.First(), one(w, p.GateKinds...))}
	case p.EventApproved:
		return &p.Approved{Meta: m, Agent: w.gateAgent(s)}
	case p.EventDenied:
		return &p.Denied{Meta: m, Agent: w.gateAgent(s), Reason: w.text()}
	case p.EventLapsed:
		return &p.Lapsed{Meta: m, To: one(w, agents...), Level: 1 + w.n(3), Until: w.now.Add(time.Hour)}
	case p.EventAwarded, p.EventUnawarded:
		return w.award(s, m, of)
	case p.EventBidAnswered:
		return &p.BidAnswered{Meta: m, Answer: one(w, p.BidWon, p.BidLost), Agent: one(w, agents...)}
	case p.EventDeadlocked:
		return &p.Deadlocked{Meta: m, Agent: s.Agent, Cycle: []string{h.ticket}}
	}
	return vectorEvent(of, m)
}
