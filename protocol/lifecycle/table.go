package lifecycle

import (
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// fresh is the phase of a handoff before its first event.
const fresh p.Phase = ""

// open are the phases in which a handoff may still change: the last three
// while the core has yet to decide about them. Closed handoffs are in
// complete, returned, timeout, rejected, failed or cancelled, and nothing is
// legal there.
var open = []p.Phase{p.AwaitingApproval, p.Pending, p.Conditional, p.PhaseAccepted, p.Working,
	p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}

var held = []p.Phase{p.PhaseAccepted, p.Working}

// rule says in which open phases an event is legal and which phase follows.
type rule struct {
	from  []p.Phase
	to    p.Phase // stay: the phase does not change
	apply func(s *p.State, e p.Event) error
}

const stay p.Phase = "="

// table is the whole of what is legal. To come with the next issue: approved
// and denied (awaiting_approval), returned and rolled_back (complete and open
// phases to returned), handed_on and child_closed (stay), result_parked (stay).
var table = map[p.EventType]rule{
	p.EventSubmitted:       {[]p.Phase{fresh}, p.Pending, applySubmitted},
	p.EventOffered:         {[]p.Phase{p.Pending, p.Conditional, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.Pending, applyOffered},
	p.EventClaimed:         {[]p.Phase{p.Pending}, stay, applyClaimed},
	p.EventAccepted:        {[]p.Phase{p.Pending}, p.PhaseAccepted, applyAccepted},
	p.EventStarted:         {[]p.Phase{p.PhaseAccepted}, p.Working, applyStarted},
	p.EventProgressed:      {held, stay, applyProgressed},
	p.EventCompleted:       {held, p.Complete, applyCompleted},
	p.EventFailed:          {held, p.PhaseFailed, applyFailed},
	p.EventRejected:        {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.PhaseRejected, applyRejected},
	p.EventConditioned:     {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Conditional, applyConditioned},
	p.EventAnswered:        {[]p.Phase{p.Conditional}, stay, applyAnswered}, // denied: rejected
	p.EventRetryScheduled:  {[]p.Phase{p.PhaseFailed, p.PhaseTimeout}, p.Retrying, applyRetryScheduled},
	p.EventRerouted:        {[]p.Phase{p.PhaseRejected, p.PhaseTimeout}, stay, applyRerouted},
	p.EventEscalated:       {[]p.Phase{p.Conditional, p.PhaseRejected, p.PhaseTimeout, p.PhaseFailed}, stay, applyEscalated},
	p.EventLeaseLost:       {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, applyLeaseLost},
	p.EventReleased:        {[]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, applyReleased},
	p.EventReminded:        {held, stay, applyReminded},
	p.EventTimedOut:        {[]p.Phase{p.AwaitingApproval, p.Pending, p.Conditional, p.PhaseAccepted, p.Working, p.Retrying}, p.PhaseTimeout, applyTimedOut},
	p.EventCancelRequested: {open, stay, applyCancelRequested},
	p.EventClosed:          {open, stay, applyClosed}, // the phase of its outcome
	p.EventStuck:           {open, stay, applyStuck},
}

// Legal tells whether the event type may follow in an open handoff's phase.
func Legal(phase p.Phase, e p.EventType) bool {
	return slices.Contains(table[e].from, phase)
}

// branches are the phases that an event may lead to beside its rule's.
var branches = map[p.EventType][]p.Phase{
	p.EventAnswered: {p.PhaseRejected}, // denied
	p.EventClosed:   {p.PhaseReturned, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed, p.Cancelled},
}

// leadsTo tells whether the table shows that an event leads from one phase to another.
func leadsTo(from p.Phase, e p.EventType, to p.Phase) bool {
	if slices.Contains(branches[e], to) {
		return true
	}
	if table[e].to == stay {
		return from == to && e != p.EventClosed
	}
	return table[e].to == to
}

// closedPhase is where each outcome ends.
var closedPhase = map[p.Outcome]p.Phase{
	p.OutcomeSuccess: p.Complete, p.OutcomePartial: p.Complete, p.OutcomeFailed: p.PhaseFailed,
	p.OutcomeTimeout: p.PhaseTimeout, p.OutcomeRejected: p.PhaseRejected,
	p.OutcomeCancelled: p.Cancelled, p.OutcomeRolledBack: p.PhaseReturned,
}
