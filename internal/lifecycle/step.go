package lifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	p "github.com/agenthandoff/handoff/protocol"
)

// Step is one append as the core decides it: its events, and the state after them. The events are
// applied once, here, and a writer stores both unchanged. A Step without events needs no append.
type Step struct {
	Events []p.Event
	State  p.State
}

// StepOf returns the step that events make from a state.
func StepOf(s p.State, events ...p.Event) (t Step, err error) {
	t.State = s
	if err = t.add(events...); err != nil {
		return Step{}, err
	}
	return t, nil
}

// Then returns both steps as one append. next was made from the state of t.
func (t Step) Then(next Step) Step {
	if len(t.Events) == 0 {
		return next
	}
	return Step{Events: append(t.Events, next.Events...), State: next.State}
}

// add applies more events.
func (t *Step) add(events ...p.Event) error {
	if err := applyAll(&t.State, events); err != nil {
		return err
	}
	if t.Events == nil {
		t.Events = events
	} else {
		t.Events = append(t.Events, events...)
	}
	return nil
}

// ErrUndecidable: the core decided events that do not apply. Its state contradicts itself, or this is
// a bug of the core; nothing is appended.
var ErrUndecidable = errors.New("nothing can be decided about this state")

// addDecided applies more events that the core has decided.
func (t *Step) addDecided(events ...p.Event) error {
	if err := t.add(events...); err != nil {
		return fmt.Errorf("%w: %w", ErrUndecidable, err)
	}
	return nil
}

// decide adds the core's next decisions.
func (t *Step) decide(q Query) error {
	for range stepsMax {
		more := withinBudget(t.State, step(t.State, q), q.Now)
		if len(more) == 0 {
			break
		}
		counts := t.State.Breaker != ""
		var before p.State
		if counts {
			before = t.State
		}
		if err := t.addDecided(more...); err != nil {
			return err
		}
		if counts {
			if a, ok := AttemptEnded(&before, &t.State, more); ok {
				q = q.afterEnd(a)
			}
		}
	}
	return nil
}

// fresh is the phase of a handoff before its first event.
const fresh p.Phase = ""

// open lists the phases in which a handoff may still change; in the last three the core has yet to
// decide.
var open = []p.Phase{p.AwaitingApproval, p.AwaitingSource, p.Pending, p.Conditional, p.PhaseAccepted, p.Working,
	p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}

var (
	held  = []p.Phase{p.PhaseAccepted, p.Working}
	gated = []p.Phase{p.AwaitingApproval}
)

// begun lists the open phases in which an agent has, or had, the handoff. Reports of an ended
// attempt may also arrive while a gate delays the next one: gatedToo.
var (
	begun    = open[2:]
	gatedToo = append(slices.Clone(begun), p.AwaitingApproval)
)

// closedPhases lists the phases of closed handoffs; all but the first are without success. Legal
// events there report facts of later: the outcome no longer changes.
var (
	closedPhases = []p.Phase{p.Complete, p.PhaseReturned, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed, p.Cancelled}
	unsuccessful = closedPhases[1:]
)

// rule is a row of the table: everything that the lifecycle knows of an event.
type rule struct {
	from  []p.Phase // the phases of open handoffs in which it is legal
	to    p.Phase   // the phase that follows; stay: the same
	stale func(s *p.State, e p.Event) string
	apply func(s *p.State, e p.Event) error
	after []p.Phase // the phases of closed handoffs in which it is legal
	by    []role    // the roles that make it
	words string    // its description
}

// newRow returns the row of one type of event. stale returns in words why an event no longer
// applies, or nothing; a nil stale means that the event is never stale while a handoff is open.
func newRow[E p.Event](from []p.Phase, to p.Phase, stale func(*p.State, E) string, apply func(*p.State, E) error,
	after []p.Phase, by []role, words string) rule {
	r := rule{from: from, to: to, after: after, by: by, words: words}
	r.apply = func(s *p.State, e p.Event) error { return apply(s, e.(E)) }
	r.stale = func(*p.State, p.Event) string { return "" }
	if stale != nil {
		r.stale = func(s *p.State, e p.Event) string { return stale(s, e.(E)) }
	}
	return r
}

// does returns the effect of an event that no state refuses.
func does[E p.Event](apply func(*p.State, E)) func(*p.State, E) error {
	return func(s *p.State, e E) error { apply(s, e); return nil }
}

const stay p.Phase = "="

// The roles that make an event.
var (
	byHolder     = []role{roleHolder}
	bySupervisor = []role{roleSupervisor}
	byClient     = []role{roleAgent, roleHuman}
	byAny        = []role{roleSupervisor, roleHolder, roleAgent, roleHuman}
	byWorkers    = []role{roleSupervisor, roleHolder}
	byRouters    = []role{roleSupervisor, roleAgent, roleHuman}
)

// table defines everything that is legal: one row per event.
var table = map[p.EventType]rule{
	p.EventSubmitted:       newRow([]p.Phase{fresh}, p.Pending, staleSubmitted, applySubmitted, nil, byClient, "the source hands off a package"),
	p.EventOffered:         newRow([]p.Phase{p.AwaitingApproval, p.Pending, p.Conditional, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.Pending, staleOffered, applyOffered, nil, byAny, "an offer is in the queue of an agent"),
	p.EventClaimed:         newRow([]p.Phase{p.Pending}, stay, staleClaimed, applyClaimed, nil, byHolder, "a polling worker has the offer, and has not acknowledged it"),
	p.EventAccepted:        newRow([]p.Phase{p.Pending}, p.PhaseAccepted, staleAccepted, applyAccepted, nil, byHolder, "the worker takes the work; an attempt begins"),
	p.EventStarted:         newRow([]p.Phase{p.PhaseAccepted}, p.Working, staleStarted, does(applyStarted), nil, byHolder, "the worker begins to work"),
	p.EventProgressed:      newRow(held, stay, fenced(func(e *p.Progressed) uint64 { return e.Fence }), does(applyProgressed), nil, byHolder, "the worker reports its progress"),
	p.EventSpent:           newRow(held, stay, staleSpent, does(applySpent), nil, byWorkers, "the attempt has used more"),
	p.EventCompleted:       newRow(held, p.Complete, fenced(func(e *p.Completed) uint64 { return e.Fence }), does(applyCompleted), nil, byHolder, "the worker delivers a result; the handoff closes"),
	p.EventFailed:          newRow(held, p.PhaseFailed, fenced(func(e *p.Failed) uint64 { return e.Fence }), does(applyFailed), nil, byHolder, "the attempt failed"),
	p.EventRejected:        newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.PhaseRejected, staleRejected, does(applyRejected), nil, byHolder, "the agent refuses the handoff"),
	p.EventConditioned:     newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Conditional, staleConditioned, does(applyConditioned), nil, byHolder, "the agent needs context, a permission or time first"),
	p.EventAnswered:        newRow([]p.Phase{p.Conditional, p.Pending, p.PhaseAccepted, p.Working}, stay, staleAnswered, does(applyAnswered), nil, byClient, "the source, a person or an authority answers"),
	p.EventDecided:         newRow(held, stay, staleDecided, does(applyDecided), nil, byHolder, "the worker decides something by itself"),
	p.EventRetryScheduled:  newRow([]p.Phase{p.Pending, p.PhaseFailed, p.PhaseTimeout}, p.Retrying, staleRetryScheduled, does(applyRetryScheduled), nil, bySupervisor, "the next attempt is scheduled"),
	p.EventRerouted:        newRow(gatedToo, stay, staleRerouted, applyRerouted, nil, byRouters, "the handoff goes to another agent"),
	p.EventEscalated:       newRow([]p.Phase{p.Pending, p.Conditional, p.PhaseAccepted, p.Working, p.PhaseRejected, p.PhaseTimeout, p.PhaseFailed}, stay, staleEscalated, applyEscalated, nil, byWorkers, "the handoff goes up to an authority"),
	p.EventLeaseLost:       newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, staleLeaseLost, applyLeaseLost, nil, byWorkers, "the worker is lost"),
	p.EventReleased:        newRow([]p.Phase{p.Pending, p.PhaseAccepted, p.Working}, p.Pending, staleReleased, applyReleased, nil, byHolder, "the worker releases the handoff, uncharged"),
	p.EventReminded:        newRow(held, stay, staleReminded, does(applyReminded), nil, bySupervisor, "the worker is warned that its time runs out"),
	p.EventExtended:        newRow(held, stay, staleExtended, applyExtended, nil, byHolder, "the worker has more time for its work"),
	p.EventTimedOut:        newRow(gatedToo, stay, staleTimedOut, does(applyTimedOut), nil, bySupervisor, "a clock ran out"),
	p.EventDeadlocked:      newRow([]p.Phase{p.Pending}, p.PhaseTimeout, staleDeadlocked, does(applyDeadlocked), nil, bySupervisor, "it waits in a circle with the handoffs that hold the slots of its agent"),
	p.EventCancelRequested: newRow(open, stay, staleCancelRequested, does(applyCancelRequested), nil, byRouters, "the end of the handoff is requested"),
	p.EventClosed:          newRow(open, stay, nil, applyClosed, nil, byWorkers, "the handoff closes without a result of its worker"),
	p.EventStuck:           newRow(open, stay, staleStuck, does(applyStuck), nil, bySupervisor, "supervisors could not process the handoff, and stop trying"),
	p.EventGated:           newRow([]p.Phase{p.Pending, p.Conditional, p.Retrying, p.PhaseTimeout, p.PhaseRejected, p.PhaseFailed}, p.AwaitingApproval, staleGated, applyGated, nil, byAny, "a gate delays the next offer"),
	p.EventGateOpened:      newRow(gated, stay, staleGateOpened, applyGateOpened, nil, bySupervisor, "a condition of the gate is met"),
	p.EventApproved:        newRow(gated, stay, staleApproved, does(applyApproved), nil, byClient, "its agent may have the handoff"),
	p.EventDenied:          newRow(gated, stay, staleDenied, does(applyDenied), nil, byClient, "its agent may not have the handoff"),
	p.EventLapsed:          newRow(gated, stay, staleLapsed, does(applyLapsed), nil, bySupervisor, "the approver has not answered; the authority above is asked"),
	p.EventAwarded:         newRow(gated, p.Pending, staleAwarded, applyAwarded, nil, bySupervisor, "the agent with the best bid gets the handoff"),
	p.EventUnawarded:       newRow(gated, p.PhaseRejected, staleUnawarded, applyUnawarded, nil, bySupervisor, "there are too few bids"),
	p.EventBidAnswered:     newRow(nil, stay, staleBidAnswered, applyBidAnswered, closedPhases[:1], bySupervisor, "of a call: its agent learns the result of its bid"),
	p.EventHandedOff:       newRow(held, stay, staleHandedOff, applyHandedOff, nil, byHolder, "the worker hands off a part of the work, as a child"),
	p.EventAdopted:         newRow(held, stay, staleAdopted, applyAdopted, nil, byHolder, "the attempt asks for children that an earlier one handed off"),
	p.EventSuspended:       newRow(held, p.Conditional, fenced(func(e *p.Suspended) uint64 { return e.Fence }), applySuspended, nil, byHolder, "the worker releases the handoff until children have closed"),
	p.EventChildrenClosed:  newRow(gatedToo, stay, staleChildrenClosed, does(applyChildrenClosed), closedPhases, bySupervisor, "children have closed"),
	p.EventAssigned:        newRow([]p.Phase{p.Pending}, stay, staleAssigned, applyAssigned, groupEnds, bySupervisor, "a member of a group has an agent, and no other member gets that one"),
	p.EventTaken:           newRow(gatedToo, p.PhaseAccepted, staleTaken, applyTaken, nil, byHolder, "an agent takes the handoff out of turn"),
	p.EventRolledBack:      newRow(open, p.PhaseReturned, staleRolledBack, does(applyRolledBack), nil, byAny, "the handoff goes back to its source, undone"),
	p.EventLateResultUsed:  newRow([]p.Phase{p.Pending, p.PhaseTimeout, p.PhaseFailed}, p.Complete, staleLateResultUsed, applyLateResultUsed, nil, byWorkers, "a parked result completes the handoff"),
	p.EventResultParked:    newRow(gatedToo, stay, staleResultParked, applyResultParked, closedPhases, byHolder, "the result of a lost attempt is kept with the history"),
	p.EventReturnSent:      newRow(nil, stay, staleReturnSent, applyReturnSent, closedPhases, bySupervisor, "the return is on its way to the source"),
	p.EventReturned:        newRow(nil, stay, staleReturned, applyReturned, closedPhases, bySupervisor, "the return has arrived, or never will"),
	p.EventRedriven:        newRow(nil, stay, staleRedriven, applyRedriven, unsuccessful, byClient, "the handoff was submitted again, as another one"),
	p.EventDismissed:       newRow(nil, stay, staleDismissed, does(applyDismissed), closedPhases, byClient, "a person has seen the end; the handoff leaves the inbox"),
	p.EventChainEnded:      newRow(nil, stay, staleChainEnded, applyChainEnded, closedPhases[:1], bySupervisor, "the chain that it began has ended; its source or parent receives that end"),
	p.EventBarred:          newRow(held, stay, fenced(func(e *p.Barred) uint64 { return e.Fence }), does(applyBarred), nil, byHolder, "a limit or a rule refuses a hand-off of the worker"),
	p.EventRaised:          newRow(open, stay, staleRaised, applyRaised, nil, byClient, "a person adds to the limits"),
	p.EventSourceCompleted: newRow([]p.Phase{p.AwaitingSource}, p.Pending, staleSourceCompleted, does(applySourceCompleted), nil, bySupervisor, "the handoff that it follows from has completed"),
}

// EventWords describes an event type in a few words.
func EventWords(e p.EventType) string { return table[e].words }

// Legal reports whether the event type may follow in a phase of an open or closed handoff.
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

// groupEnds lists the phases in which a group closes: no agent takes it, so none refuses it.
var groupEnds = []p.Phase{p.Complete, p.PhaseReturned, p.PhaseTimeout, p.PhaseFailed, p.Cancelled}

// closedPhase maps each outcome to its phase.
var closedPhase = map[p.Outcome]p.Phase{
	p.OutcomeSuccess: p.Complete, p.OutcomePartial: p.Complete, p.OutcomeFailed: p.PhaseFailed,
	p.OutcomeTimeout: p.PhaseTimeout, p.OutcomeRejected: p.PhaseRejected,
	p.OutcomeCancelled: p.Cancelled, p.OutcomeRolledBack: p.PhaseReturned,
}

// role is the kind of author of an event, derived from the name in the event.
type role string

const (
	roleSupervisor role = "supervisor" // decisions of Decide, also if another role appends them
	roleHolder     role = "holder"     // a worker, or an agent that polls: its holder id
	roleAgent      role = "agent"      // a source, an authority, or a person by name
	roleHuman      role = "human"
)

// roleOf returns the role of a name. Ids of holders are UUIDs.
func roleOf(by string) role {
	switch by {
	case By:
		return roleSupervisor
	case p.Human:
		return roleHuman
	}
	if _, err := uuid.Parse(by); err == nil {
		return roleHolder
	}
	return roleAgent
}

// follows lists the events that only a supervisor makes alone.
var follows = []p.EventType{p.EventOffered, p.EventGated, p.EventClosed, p.EventLateResultUsed}

// CheckWriters checks that each event of an append is allowed for the role of its By. An event must
// also not name a holder that did not have the handoff. CheckWriters cannot check which client
// appended: a forged name in an otherwise legal event is not found. Events that follow one of a
// newer version are skipped.
func CheckWriters(before p.State, events []p.Event) error {
	holder := before.Holder
	for i, e := range events {
		kind, by := e.EventType(), e.Author()
		rule, known := table[kind]
		roles := rule.by
		if !known {
			return nil
		}
		role := roleOf(by)
		switch {
		case by == "":
			return fmt.Errorf("%s has no author", kind)
		case role == roleSupervisor && slices.Contains(roles, roleAgent): // an agent may have that name
		case !slices.Contains(roles, role):
			return fmt.Errorf("%s has the author %s (%s), but only %s may make it", kind, by, role, listed(roles))
		case i == 0 && role != roleSupervisor && slices.Contains(follows, kind):
			return fmt.Errorf("%s has the author %s (%s), but follows no event of that author", kind, by, role)
		}
		if kind == p.EventSubmitted && role == roleSupervisor && closesLost(events) {
			continue
		}
		o := p.OutlineOf(e)
		if named := writerOf(e, o, roles, holder); named != "" && named != by {
			return fmt.Errorf("%s has the author %s, but only %s may make it", kind, by, named)
		}
		if o.Takes {
			holder = o.Holder
		}
	}
	return nil
}

// closesLost reports whether CloseLost made an append: its submission replaces a lost one.
func closesLost(events []p.Event) bool {
	closed, ok := events[len(events)-1].(*p.Closed)
	return ok && closed.Reason == ReasonLedgerDamaged
}

// writerOf returns the only name that an event of some roles can have, if known. holder had the
// handoff before it.
func writerOf(e p.Event, o p.Outline, roles []role, holder string) string {
	switch e := e.(type) {
	case *p.Submitted:
		return e.Summary.Source
	case *p.Escalated:
		if e.Fence != 0 {
			return holder
		}
	case *p.RolledBack:
		if e.Fence != 0 {
			return holder
		}
	}
	if slices.Equal(roles, byHolder) {
		return cmp.Or(o.Holder, holder)
	}
	return ""
}

func listed(roles []role) string {
	text := ""
	for i, role := range roles {
		switch {
		case i > 0 && i == len(roles)-1:
			text += " or "
		case i > 0:
			text += ", "
		}
		text += string(role)
	}
	return text
}
