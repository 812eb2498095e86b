package lifecycle

import (
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// fresh is the phase of a handoff before its first event.
const fresh p.Phase = ""

// open are the phases in which a handoff may still change: the last three
// while the core has yet to decide about them.
var open = []p.Phase{p.AwaitingApproval, p.AwaitingSource, p.Pending, p.Conditional, p.PhaseAccepted, p.Working,
	p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}

var held = []p.Phase{p.PhaseAccepted, p.Working}

// begun are the open phases in which an agent has, or had, the handoff.
var begun = open[2:]

// closed are the phases of closed handoffs; those that closed without success
// are all but the first. What is legal there tells what became of the end:
// nothing changes the outcome any more.
var (
	closedPhases = []p.Phase{p.Complete, p.PhaseReturned, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed, p.Cancelled}
	unsuccessful = closedPhases[1:]
)

// rule says in which phases an event is legal and which phase follows.
type rule struct {
	from  []p.Phase // open
	to    p.Phase   // stay: the phase does not change
	apply func(s *p.State, e p.Event) error
	after []p.Phase // closed
}

const stay p.Phase = "="

// table is the whole of what is legal. No event leads to awaiting_approval yet.
var table = map[p.EventType]rule{
	p.EventSubmitted:       {[]p.Phase{fresh}, p.Pending, applySubmitted, nil},
	p.EventOffered:         {[]p.Phase{p.Pending, p.Conditional, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.Pending, applyOffered, nil},
	p.EventClaimed:         {[]p.Phase{p.Pending}, stay, applyClaimed, nil},
	p.EventAccepted:        {[]p.Phase{p.Pending}, p.PhaseAccepted, applyAccepted, nil},
	p.EventStarted:         {[]p.Phase{p.PhaseAccepted}, p.Working, applyStarted, nil},
	p.EventProgressed:      {held, stay, applyProgressed, nil},
	p.EventCompleted:       {held, p.Complete, applyCompleted, nil},
	p.EventFailed:          {held, p.PhaseFailed, applyFailed, nil},
	p.EventRejected:        {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.PhaseRejected, applyRejected, nil},
	p.EventConditioned:     {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Conditional, applyConditioned, nil},
	p.EventAnswered:        {[]p.Phase{p.Conditional, p.Pending, p.PhaseAccepted, p.Working}, stay, applyAnswered, nil},
	p.EventRetryScheduled:  {[]p.Phase{p.PhaseFailed, p.PhaseTimeout}, p.Retrying, applyRetryScheduled, nil},
	p.EventRerouted:        {begun, stay, applyRerouted, nil},
	p.EventEscalated:       {[]p.Phase{p.Pending, p.Conditional, p.PhaseAccepted, p.Working, p.PhaseRejected, p.PhaseTimeout, p.PhaseFailed}, stay, applyEscalated, nil},
	p.EventLeaseLost:       {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, applyLeaseLost, nil},
	p.EventReleased:        {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, applyReleased, nil},
	p.EventReminded:        {held, stay, applyReminded, nil},
	p.EventExtended:        {held, stay, applyExtended, nil},
	p.EventTimedOut:        {[]p.Phase{p.AwaitingApproval, p.Pending, p.Conditional, p.PhaseAccepted, p.Working, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.PhaseTimeout, applyTimedOut, nil},
	p.EventCancelRequested: {open, stay, applyCancelRequested, nil},
	p.EventClosed:          {open, stay, applyClosed, nil}, // the phase of its outcome
	p.EventStuck:           {open, stay, applyStuck, nil},
	p.EventHandedOff:       {held, stay, applyHandedOff, nil},
	p.EventSuspended:       {held, p.Conditional, applySuspended, nil},
	p.EventChildrenClosed:  {begun, stay, applyChildrenClosed, closedPhases},
	p.EventAssigned:        {[]p.Phase{p.Pending}, stay, applyAssigned, groupEnds},
	p.EventTaken:           {begun, p.PhaseAccepted, applyTaken, nil},
	p.EventRolledBack:      {open, p.PhaseReturned, applyRolledBack, nil},
	p.EventLateResultUsed:  {[]p.Phase{p.Pending, p.PhaseTimeout, p.PhaseFailed}, p.Complete, applyLateResultUsed, nil},
	p.EventResultParked:    {begun, stay, applyResultParked, closedPhases},
	p.EventReturnSent:      {nil, stay, applyReturnSent, closedPhases},
	p.EventReturned:        {nil, stay, applyReturned, closedPhases}, // delivered: returned
	p.EventRedriven:        {nil, stay, applyRedriven, unsuccessful},
	p.EventDismissed:       {nil, stay, applyDismissed, unsuccessful},
	p.EventSourceCompleted: {[]p.Phase{p.AwaitingSource}, p.Pending, applySourceCompleted, nil},
}

// Legal tells whether the event type may follow in a phase of an open handoff,
// or of a closed one.
func Legal(phase p.Phase, closed bool, e p.EventType) bool {
	rule := table[e]
	return rule.legal(phase, closed)
}

func (r *rule) legal(phase p.Phase, closed bool) bool {
	if closed {
		return slices.Contains(r.after, phase)
	}
	return slices.Contains(r.from, phase)
}

// leads are the phases that an event may lead to from a phase: its rule's, or
// several where it depends on what the event says.
func leads(from p.Phase, e p.EventType) []p.Phase {
	switch e {
	case p.EventSubmitted: // of what begins when its source completes
		if from == fresh {
			return []p.Phase{p.Pending, p.AwaitingSource}
		}
	case p.EventAnswered: // denied it is a refusal; an authority's sends the handoff back
		if from == p.Conditional {
			return []p.Phase{p.Conditional, p.PhaseRejected}
		}
		return []p.Phase{p.Pending, p.PhaseRejected}
	case p.EventRerouted, p.EventEscalated: // by hand, or by its holder
		if slices.Contains(held, from) {
			return []p.Phase{p.Pending}
		}
	case p.EventTimedOut: // a group whose deadline has run out may wait for its members
		if from == p.Pending {
			return []p.Phase{p.PhaseTimeout, p.Pending}
		}
	case p.EventClosed: // complete is for groups
		return closedPhases
	case p.EventReturned: // where it was delivered
		return []p.Phase{from, p.PhaseReturned}
	}
	if table[e].to == stay {
		return []p.Phase{from}
	}
	return []p.Phase{table[e].to}
}

// leadsTo tells whether the table shows that an event leads from one phase to another.
func leadsTo(from p.Phase, e p.EventType, to p.Phase) bool {
	return slices.Contains(leads(from, e), to)
}

// groupEnds are the phases that a group closes in: none takes it, so none refuses it.
var groupEnds = []p.Phase{p.Complete, p.PhaseReturned, p.PhaseTimeout, p.PhaseFailed, p.Cancelled}

// closedPhase is where each outcome ends.
var closedPhase = map[p.Outcome]p.Phase{
	p.OutcomeSuccess: p.Complete, p.OutcomePartial: p.Complete, p.OutcomeFailed: p.PhaseFailed,
	p.OutcomeTimeout: p.PhaseTimeout, p.OutcomeRejected: p.PhaseRejected,
	p.OutcomeCancelled: p.Cancelled, p.OutcomeRolledBack: p.PhaseReturned,
}
