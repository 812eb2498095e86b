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

var (
	held  = []p.Phase{p.PhaseAccepted, p.Working}
	gated = []p.Phase{p.AwaitingApproval}
)

// begun are the open phases in which an agent has, or had, the handoff. What comes of an attempt
// that ended may also come while a gate stands before the next one: gatedToo.
var (
	begun    = open[2:]
	gatedToo = append(slices.Clone(begun), p.AwaitingApproval)
)

// closed are the phases of closed handoffs; those that closed without success
// are all but the first. What is legal there tells what became of the end:
// nothing changes the outcome any more.
var (
	closedPhases = []p.Phase{p.Complete, p.PhaseReturned, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed, p.Cancelled}
	unsuccessful = closedPhases[1:]
)

// rule is a row of the table: all that the lifecycle knows of an event.
type rule struct {
	from  []p.Phase // the phases of open handoffs in which it is legal
	to    p.Phase   // the phase that follows; stay: the same
	stale func(s *p.State, e p.Event) string
	apply func(s *p.State, e p.Event) error
	after []p.Phase // the phases of closed handoffs in which it is legal
	by    []Role    // the roles that make it
	words string    // what it says
}

// newRow makes the row of one type of event. stale returns in words why an event no
// longer applies, or nothing; nil is an event that is never stale while a handoff is open.
func newRow[E p.Event](from []p.Phase, to p.Phase, stale func(*p.State, E) string, apply func(*p.State, E) error,
	after []p.Phase, by []Role, words string) rule {
	r := rule{from: from, to: to, after: after, by: by, words: words}
	r.apply = func(s *p.State, e p.Event) error { return apply(s, e.(E)) }
	r.stale = func(*p.State, p.Event) string { return "" }
	if stale != nil {
		r.stale = func(s *p.State, e p.Event) string { return stale(s, e.(E)) }
	}
	return r
}

const stay p.Phase = "="

// The roles that make an event.
var (
	byHolder     = []Role{RoleHolder}
	bySupervisor = []Role{RoleSupervisor}
	byClient     = []Role{RoleAgent, RoleHuman}
	byAny        = []Role{RoleSupervisor, RoleHolder, RoleAgent, RoleHuman}
	byWorkers    = []Role{RoleSupervisor, RoleHolder}
	byRouters    = []Role{RoleSupervisor, RoleAgent, RoleHuman}
)

// table is the whole of what is legal: a row for each event.
var table = map[p.EventType]rule{
	p.EventSubmitted:       newRow([]p.Phase{fresh}, p.Pending, staleSubmitted, applySubmitted, nil, byClient, "the source hands off a package"),
	p.EventOffered:         newRow([]p.Phase{p.AwaitingApproval, p.Pending, p.Conditional, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.Pending, staleOffered, applyOffered, nil, byAny, "an offer stands in the queue of an agent"),
	p.EventClaimed:         newRow([]p.Phase{p.Pending}, stay, staleClaimed, applyClaimed, nil, byHolder, "a holder that polls has the offer, and has not acknowledged it"),
	p.EventAccepted:        newRow([]p.Phase{p.Pending}, p.PhaseAccepted, staleAccepted, applyAccepted, nil, byHolder, "the holder takes the work; an attempt begins"),
	p.EventStarted:         newRow([]p.Phase{p.PhaseAccepted}, p.Working, staleStarted, applyStarted, nil, byHolder, "the holder begins to work"),
	p.EventProgressed:      newRow(held, stay, fenced(func(e *p.Progressed) uint64 { return e.Fence }), applyProgressed, nil, byHolder, "the holder reports how far it is"),
	p.EventSpent:           newRow(held, stay, staleSpent, applySpent, nil, byWorkers, "the attempt has used more"),
	p.EventCompleted:       newRow(held, p.Complete, fenced(func(e *p.Completed) uint64 { return e.Fence }), applyCompleted, nil, byHolder, "the holder delivers a result; the handoff closes"),
	p.EventFailed:          newRow(held, p.PhaseFailed, fenced(func(e *p.Failed) uint64 { return e.Fence }), applyFailed, nil, byHolder, "the attempt failed"),
	p.EventRejected:        newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.PhaseRejected, staleRejected, applyRejected, nil, byHolder, "the agent refuses the handoff"),
	p.EventConditioned:     newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Conditional, staleConditioned, applyConditioned, nil, byHolder, "the agent needs context, a permission or time first"),
	p.EventAnswered:        newRow([]p.Phase{p.Conditional, p.Pending, p.PhaseAccepted, p.Working}, stay, staleAnswered, applyAnswered, nil, byClient, "the source, a person or an authority answers"),
	p.EventDecided:         newRow(held, stay, staleDecided, applyDecided, nil, byHolder, "the holder decides something by itself"),
	p.EventRetryScheduled:  newRow([]p.Phase{p.Pending, p.PhaseFailed, p.PhaseTimeout}, p.Retrying, staleRetryScheduled, applyRetryScheduled, nil, bySupervisor, "the next attempt has its time"),
	p.EventRerouted:        newRow(gatedToo, stay, staleRerouted, applyRerouted, nil, byRouters, "the handoff goes to another agent"),
	p.EventEscalated:       newRow([]p.Phase{p.Pending, p.Conditional, p.PhaseAccepted, p.Working, p.PhaseRejected, p.PhaseTimeout, p.PhaseFailed}, stay, staleEscalated, applyEscalated, nil, byWorkers, "the handoff goes up to an authority"),
	p.EventLeaseLost:       newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, staleLeaseLost, applyLeaseLost, nil, byWorkers, "the holder is gone"),
	p.EventReleased:        newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, staleReleased, applyReleased, nil, byHolder, "the holder releases the handoff, uncharged"),
	p.EventReminded:        newRow(held, stay, staleReminded, applyReminded, nil, bySupervisor, "the holder is told that its time runs out"),
	p.EventExtended:        newRow(held, stay, staleExtended, applyExtended, nil, byHolder, "the holder has more time for its work"),
	p.EventTimedOut:        newRow(gatedToo, stay, staleTimedOut, applyTimedOut, nil, bySupervisor, "a clock ran out"),
	p.EventDeadlocked:      newRow([]p.Phase{p.Pending}, p.PhaseTimeout, staleDeadlocked, applyDeadlocked, nil, bySupervisor, "it waits in a circle with what holds the slots of its agent"),
	p.EventCancelRequested: newRow(open, stay, staleCancelRequested, applyCancelRequested, nil, byRouters, "the end of the handoff is asked for"),
	p.EventClosed:          newRow(open, stay, nil, applyClosed, nil, byWorkers, "the handoff closes without a result of its holder"),
	p.EventStuck:           newRow(open, stay, staleStuck, applyStuck, nil, bySupervisor, "supervisors could not deal with the handoff, and stop trying"),
	p.EventGated:           newRow([]p.Phase{p.Pending, p.Conditional, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.AwaitingApproval, staleGated, applyGated, nil, byAny, "a gate stands before the next offer"),
	p.EventGateOpened:      newRow(gated, stay, staleGateOpened, applyGateOpened, nil, bySupervisor, "something is there that the gate waited for"),
	p.EventApproved:        newRow(gated, stay, staleApproved, applyApproved, nil, byClient, "its agent may have the handoff"),
	p.EventDenied:          newRow(gated, stay, staleDenied, applyDenied, nil, byClient, "its agent may not have the handoff"),
	p.EventLapsed:          newRow(gated, stay, staleLapsed, applyLapsed, nil, bySupervisor, "the approver has not answered; the authority above is asked"),
	p.EventAwarded:         newRow(gated, p.Pending, staleAwarded, applyAwarded, nil, bySupervisor, "the agent with the best bid gets the handoff"),
	p.EventUnawarded:       newRow(gated, p.PhaseRejected, staleUnawarded, applyUnawarded, nil, bySupervisor, "there are too few bids"),
	p.EventBidAnswered:     newRow(nil, stay, staleBidAnswered, applyBidAnswered, closedPhases[:1], bySupervisor, "of a call: its agent is told what became of its bid"),
	p.EventHandedOff:       newRow(held, stay, staleHandedOff, applyHandedOff, nil, byHolder, "the holder hands off a part of the work, as a child"),
	p.EventAdopted:         newRow(held, stay, staleAdopted, applyAdopted, nil, byHolder, "the attempt asks for children that an earlier one handed off"),
	p.EventSuspended:       newRow(held, p.Conditional, fenced(func(e *p.Suspended) uint64 { return e.Fence }), applySuspended, nil, byHolder, "the holder lets go until children have closed"),
	p.EventChildrenClosed:  newRow(gatedToo, stay, staleChildrenClosed, applyChildrenClosed, closedPhases, bySupervisor, "children have closed"),
	p.EventAssigned:        newRow([]p.Phase{p.Pending}, stay, staleAssigned, applyAssigned, groupEnds, bySupervisor, "a member of a group has an agent, and no other member gets that one"),
	p.EventTaken:           newRow(gatedToo, p.PhaseAccepted, staleTaken, applyTaken, nil, byHolder, "an agent takes the handoff out of turn"),
	p.EventRolledBack:      newRow(open, p.PhaseReturned, staleRolledBack, applyRolledBack, nil, byAny, "the handoff goes back to its source, undone"),
	p.EventLateResultUsed:  newRow([]p.Phase{p.Pending, p.PhaseTimeout, p.PhaseFailed}, p.Complete, staleLateResultUsed, applyLateResultUsed, nil, byWorkers, "a parked result completes the handoff"),
	p.EventResultParked:    newRow(gatedToo, stay, staleResultParked, applyResultParked, closedPhases, byHolder, "the result of a lost attempt is kept beside the history"),
	p.EventReturnSent:      newRow(nil, stay, staleReturnSent, applyReturnSent, closedPhases, bySupervisor, "the return is on its way to the source"),
	p.EventReturned:        newRow(nil, stay, staleReturned, applyReturned, closedPhases, bySupervisor, "the return has arrived, or never will"),
	p.EventRedriven:        newRow(nil, stay, staleRedriven, applyRedriven, unsuccessful, byClient, "the handoff was submitted again, as another one"),
	p.EventDismissed:       newRow(nil, stay, staleDismissed, applyDismissed, closedPhases, byClient, "a person has seen the end; the handoff leaves the inbox"),
	p.EventChainEnded:      newRow(nil, stay, staleChainEnded, applyChainEnded, closedPhases[:1], bySupervisor, "the chain that it begins has ended, and its source or parent gets that end"),
	p.EventBarred:          newRow(held, stay, fenced(func(e *p.Barred) uint64 { return e.Fence }), applyBarred, nil, byHolder, "a hand-off of the holder is refused by a limit or a rule"),
	p.EventRaised:          newRow(open, stay, staleRaised, applyRaised, nil, byClient, "a person adds to the limits"),
	p.EventSourceCompleted: newRow([]p.Phase{p.AwaitingSource}, p.Pending, staleSourceCompleted, applySourceCompleted, nil, bySupervisor, "what it follows from has completed"),
}

// EventWords returns in a few words what an event of a type says.
func EventWords(e p.EventType) string { return table[e].words }

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

// groupEnds are the phases that a group closes in: none takes it, so none refuses it.
var groupEnds = []p.Phase{p.Complete, p.PhaseReturned, p.PhaseTimeout, p.PhaseFailed, p.Cancelled}

// closedPhase is where each outcome ends.
var closedPhase = map[p.Outcome]p.Phase{
	p.OutcomeSuccess: p.Complete, p.OutcomePartial: p.Complete, p.OutcomeFailed: p.PhaseFailed,
	p.OutcomeTimeout: p.PhaseTimeout, p.OutcomeRejected: p.PhaseRejected,
	p.OutcomeCancelled: p.Cancelled, p.OutcomeRolledBack: p.PhaseReturned,
}
